/**
 * The database's own record of ends: written by triggers, in the transaction that ends a job, and kept when its slot is
 * freed.
 */
import { Database, Migrations } from "@awa/model"
import { Effect } from "effect"
import { query } from "../Server.js"
import type { Line } from "./Ends.js"

export const slots = 16

const triggers = `
create table public.line (
  id bigint generated always as identity primary key,
  job bigint not null,
  lease bigint not null,
  nonce bigint,
  state text not null,
  at timestamptz not null default clock_timestamp()
);

create function public.closed() returns trigger language plpgsql set enable_seqscan = off as $$
begin
  if new.act = 'complete' then
    insert into public.line (job, lease, nonce, state)
    select r.job_id, r.run_lease + 1, b.nonce, 'completed'
    from awa.claim_batches b
    cross join unnest(new.members) m(member)
    join awa.ready_entries r on r.slot = new.slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, m.member)
    where b.slot = new.slot and b.batch_id = new.batch_id;
  end if;
  return null;
end
$$;

create function public.finished() returns trigger language plpgsql as $$
begin
  insert into public.line (job, lease, state) values (new.job_id, new.run_lease, to_jsonb(new) ->> 'state');
  return null;
end
$$;

create function public.dead() returns trigger language plpgsql as $$
begin
  insert into public.line (job, lease, state) values (new.job_id, new.run_lease, 'failed');
  return null;
end
$$;

create function public.revived() returns trigger language plpgsql as $$
begin
  insert into public.line (job, lease, state) values (old.job_id, old.run_lease, 'revived');
  return null;
end
$$;

create trigger closed after insert on awa.closures for each row execute function public.closed();
create trigger finished after insert on awa.finished_jobs for each row execute function public.finished();
create trigger dead after insert on awa.dlq_entries for each row execute function public.dead();
-- Nothing is thrown away while it is looked at, but successes.
create trigger revived after delete on awa.finished_jobs for each row when (old.state <> 'completed')
  execute function public.revived();
create trigger revived after delete on awa.dlq_entries for each row execute function public.revived();

-- What was taken from a worker is tried again soon.
create or replace function awa.backoff(p_attempt integer) returns interval language sql volatile parallel safe
as $$ select interval '50 milliseconds' $$;
`

/** Makes an empty database ready. */
export const install = (url: string): Effect.Effect<void> =>
  Migrations.run({ queueStorage: { queueSlotCount: slots } }).pipe(
    Effect.provide(Database.layer({ url })),
    Effect.orDie,
    Effect.zipRight(query(url, triggers))
  )

export const lines = (url: string): Effect.Effect<ReadonlyArray<Line>> =>
  query<{ readonly [Field in keyof Line]: Line[Field] }>(
    url,
    `select job::text, lease::text, nonce::text, state, date_part('epoch', at) * 1000 as at from public.line order by id`
  )

/** Jobs that have not ended, and unique keys that somebody holds. */
export const left = (url: string): Effect.Effect<{ readonly unfinished: number; readonly keysLeft: number }> =>
  Effect.map(
    query<{ unfinished: number; keysLeft: number }>(
      url,
      `select
        (select count(*) from awa.jobs where state not in ('completed', 'failed', 'cancelled'))::int as unfinished,
        (select count(*) from awa.unique_claims)::int as "keysLeft"`
    ),
    ([row]) => row!
  )
