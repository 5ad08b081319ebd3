-- schema: engine
-- Uniqueness: at most one job holds a key. A job that was given one carries it in its envelope, wherever it goes:
--   "unique": {"key": 32 hexadecimal digits, "states": 8 bits, ..}
-- and holds its claim exactly while its state is in `states`, written as bits of which the leftmost is bit 0. Jobs without
-- a key never come here.
--
-- Who takes a job out of a state or out of the database elsewhere calls release_unique, and who brings one back take_key.

-- Row by row inserted and deleted: it is no part of the log. Keys are taken in byte order, so that two calls that want
-- the same ones cannot wait for each other.
create table awa.unique_claims (
  unique_key bytea primary key check (octet_length(unique_key) = 16),
  job_id bigint not null,
  states bit(8) not null
);

create index unique_claims_job on awa.unique_claims (job_id);

-- The place of a state in a mask.
create function awa.state_bit(p_state awa/*control*/.job_state) returns integer
language sql immutable strict parallel safe
as $$
  select case p_state
    when 'scheduled' then 0
    when 'available' then 1
    when 'running' then 2
    when 'completed' then 3
    when 'retryable' then 4
    when 'failed' then 5
    when 'cancelled' then 6
    when 'waiting_external' then 7
  end
$$;

create function awa.holds_key(p_states bit, p_state awa/*control*/.job_state) returns boolean
language sql immutable strict parallel safe
as $$
  select get_bit(p_states, awa.state_bit(p_state)) = 1
$$;

-- What is wrong with the "unique" of a job, as "field: reason", or null. Any two of the states that are not final are
-- connected by transitions, so that a mask which leaves one of them out would let the key go and want it back.
create function awa.unique_problem(p_unique jsonb) returns text
language sql immutable strict parallel safe
as $$
  select case
    when jsonb_typeof(p_unique) <> 'object' then 'unique: must be an object'
    when coalesce(p_unique ->> 'key', '') !~ '^[0-9a-f]{32}$' then 'unique.key: must be 32 hexadecimal digits'
    when coalesce(p_unique ->> 'states', '') !~ '^[01]{8}$' then 'unique.states: must be 8 bits'
    when (p_unique ->> 'states')::bit(8) & B'11101001' <> B'11101001'
      then 'unique.states: must hold scheduled, available, running, retryable and waiting_external'
  end
$$;

create function awa.unique_key(p_envelope jsonb) returns bytea
language sql immutable parallel safe
as $$
  select decode(p_envelope #>> '{unique,key}', 'hex')
$$;

create function awa.unique_states(p_envelope jsonb) returns bit
language sql immutable parallel safe
as $$
  select (p_envelope #>> '{unique,states}')::bit(8)
$$;

-- Enqueues jobs of which any may have a key (see `enqueue` for the others). A key that another job holds is no error of
-- SQL: the transaction goes on, and `duplicates` tells of it.
-- p_each: true writes the jobs that are free to go; false writes all or none.
-- ids: of the jobs written, in the order of the input, separated by commas, with nothing in the place of a duplicate;
-- null when none were written because of a duplicate.
-- duplicates: [[index, "id of the holder", index of the job of this call that is the holder, or null], ..], counted from 0,
-- null when there are none. Without an id: the other job was not written either.
--
-- Waits for the transaction of whoever is enqueueing one of the keys. Under REPEATABLE READ a job that was enqueued since
-- the transaction began is a serialization failure (40001).
create function awa.enqueue_unique(
  p_jobs jsonb,
  p_each boolean,
  p_now timestamptz default null,
  out ids text,
  out duplicates jsonb,
  out now timestamptz
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the first position
  v_jobs constant integer := case when jsonb_typeof(p_jobs) = 'array' then jsonb_array_length(p_jobs) end;
  v_problem text;
  v_wanted awa.unique_claims[]; -- what each job of the call wants: null for those without a key
  v_first bigint[]; -- the first job of the call with the same key
  v_holders bigint[];
  v_ids bigint[];
begin
  if v_jobs is null or v_jobs > 10000 then
    raise exception using errcode = '22023', message = 'jobs must be an array of at most 10000 objects';
  end if;
  enqueue_unique.now := coalesce(p_now, clock_timestamp());

  -- In the order of the input.
  v_ids := array(select nextval('awa.pos_seq') from generate_series(1, v_jobs));
  with job as materialized (
    select j.ordinal, j."unique", awa.unique_problem(j."unique") as problem
    from rows from (jsonb_to_recordset(p_jobs) as ("unique" jsonb)) with ordinality as j("unique", ordinal)
  ),
  wanted as (
    select j.ordinal,
      (decode(j."unique" ->> 'key', 'hex'), v_ids[j.ordinal], (j."unique" ->> 'states')::bit(8))::awa.unique_claims
        as claim
    from job j
    where j."unique" is not null and not exists (select from job p where p.problem is not null)
  )
  select
    array_agg(w.claim order by j.ordinal),
    array_agg(w.first order by j.ordinal),
    (
      select format('job %s: %s', p.ordinal - 1, p.problem)
      from job p where p.problem is not null order by p.ordinal limit 1
    )
  into v_wanted, v_first, v_problem
  from job j
  left join (
    select w.ordinal, w.claim, min(w.ordinal) over (partition by (w.claim).unique_key) as first from wanted w
  ) w on w.ordinal = j.ordinal;
  if v_problem is not null then
    raise exception using errcode = '22023', message = v_problem;
  end if;

  if p_each then
    v_holders := awa.take_keys(v_wanted);
  else
    -- A call that is refused wants nothing: most are seen before others could wait for what it took.
    v_holders := awa.holders_of(v_wanted);
    if not exists (
      select from unnest(v_holders, v_first) with ordinality w(holder, first, ordinal)
      where w.holder is not null or w.first < w.ordinal
    ) then
      v_holders := awa.take_keys(v_wanted);
    end if;
  end if;

  select jsonb_agg(
    jsonb_build_array(
      w.ordinal - 1,
      case when p_each or w.holder <> all (v_ids) then w.holder::text end,
      case when w.first < w.ordinal and v_ids[w.first] = coalesce(w.holder, v_ids[w.first]) then w.first - 1 end
    )
    order by w.ordinal
  )
  into enqueue_unique.duplicates
  from unnest(v_holders, v_first, v_ids) with ordinality w(holder, first, id, ordinal)
  where w.holder <> w.id or w.first < w.ordinal;

  if enqueue_unique.duplicates is not null then
    if not p_each then
      perform awa.release_unique(v_ids);
      return;
    end if;
    v_ids := array(
      select case when w.holder is null or w.holder = w.id then w.id end
      from unnest(v_holders, v_ids) with ordinality w(holder, id, ordinal) order by w.ordinal
    );
  end if;
  -- Without nulls an element of a long array is found at once.
  perform awa.enqueue_many(v_xid, p_jobs, enqueue_unique.now, array_replace(v_ids, null, 0));
  enqueue_unique.ids := array_to_string(v_ids, ',', '');
end
$$;

revoke execute on function awa.enqueue_unique(jsonb, boolean, timestamptz) from public;

-- Who holds what is wanted, in the order of the input. An old snapshot shows beside the job that took a key in this very
-- transaction the one that let it go since: the former counts.
create function awa.holders_of(p_wanted awa.unique_claims[]) returns bigint[]
language sql stable
as $$
  select array(
    select (
      select u.job_id from awa.unique_claims u
      where u.unique_key = w.unique_key
      order by u.job_id <> w.job_id, u.job_id desc limit 1
    )
    from unnest(p_wanted) with ordinality w(unique_key, job_id, states, ordinal)
    order by w.ordinal
  )
$$;

-- Takes every key that is free, and answers who holds each. Waits for transactions that are enqueueing one of them.
create function awa.take_keys(p_wanted awa.unique_claims[]) returns bigint[]
language plpgsql
as $$
declare
  v_holders bigint[];
begin
  -- A holder may let go between the insert, which found it, and the look, which is to tell who it is.
  for i in 1..4 loop
    insert into awa.unique_claims (unique_key, job_id, states)
    select w.unique_key, w.job_id, w.states
    from unnest(p_wanted) with ordinality w(unique_key, job_id, states, ordinal)
    where w.unique_key is not null
    order by w.unique_key, w.ordinal
    on conflict (unique_key) do nothing;
    -- A statement of its own: its snapshot shows who was waited for.
    v_holders := awa.holders_of(p_wanted);
    if not exists (
      select from unnest(p_wanted, v_holders) w(unique_key, job_id, states, holder)
      where w.unique_key is not null and w.holder is null
    ) then
      return v_holders;
    end if;
  end loop;
  raise exception using
    errcode = '40001',
    message = 'could not tell who holds a unique key: it was let go and taken again and again',
    hint = 'Enqueue again.';
end
$$;

-- The job that holds a key, or null.
create function awa.unique_holder(p_key bytea) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select u.job_id from awa.unique_claims u where u.unique_key = p_key
$$;

revoke execute on function awa.unique_holder(bytea) from public;

-- Takes the key of a job that comes back into a state of its mask: null when the job holds it now, or else who does.
create function awa.take_key(p_key bytea, p_job_id bigint, p_states bit) returns bigint
language plpgsql
as $$
begin
  -- Locked against the sweep, which may have looked at the job before it came back.
  perform from awa.unique_claims u where u.unique_key = p_key and u.job_id = p_job_id for update;
  if found then
    return null;
  end if;
  return nullif((awa.take_keys(array[(p_key, p_job_id, p_states)::awa.unique_claims]))[1], p_job_id);
end
$$;

-- take_key, but a job does not make the others of its batch wait for an application's open transaction.
create function awa.try_take_key(p_key bytea, p_job_id bigint, p_states bit, out holder bigint, out in_doubt boolean)
language plpgsql
set lock_timeout = '200ms'
as $$
begin
  in_doubt := false;
  holder := awa.take_key(p_key, p_job_id, p_states);
exception when lock_not_available or serialization_failure or deadlock_detected then
  in_doubt := true;
end
$$;

-- Takes the keys of jobs that somebody wants to bring back, in byte order. Answers those that are to stay where they are:
-- another job has their key, or (no holder) an open transaction may come to have it. Waits for a few of these, no more.
create function awa.key_conflicts(p_jobs awa.successor[]) returns table (job_id bigint, holder bigint)
language plpgsql
as $$
declare
  v_patience integer := 5;
  v_job record;
  v_in_doubt boolean;
begin
  for v_job in
    select j.job_id, awa.unique_key(j.envelope) as key, awa.unique_states(j.envelope) as states
    from unnest(p_jobs) j
    where awa.holds_key(awa.unique_states(j.envelope), j.state)
    order by 2, 1
  loop
    key_conflicts.job_id := v_job.job_id;
    key_conflicts.holder := null;
    v_in_doubt := v_patience = 0;
    if not v_in_doubt then
      select t.holder, t.in_doubt into key_conflicts.holder, v_in_doubt
      from awa.try_take_key(v_job.key, v_job.job_id, v_job.states) t;
    end if;
    if v_in_doubt then
      v_patience := greatest(v_patience - 1, 0);
    end if;
    if v_in_doubt or key_conflicts.holder is not null then
      return next;
    end if;
  end loop;
end
$$;

-- Lets go of what these jobs hold, if a job of that state holds nothing. Without a state: the jobs are no more.
create function awa.release_unique(p_job_ids bigint[], p_state awa/*control*/.job_state default null) returns void
language sql
as $$
  delete from awa.unique_claims u
  where u.job_id = any (p_job_ids) and (p_state is null or not awa.holds_key(u.states, p_state))
$$;

-- Jobs that are about to be placed, with the keys they then have. Of a job that comes back and finds its key taken the
-- rest of its life is decided here: it is cancelled, and says why.
create function awa.settle_unique(p_jobs awa.successor[], p_now timestamptz) returns awa.successor[]
language plpgsql
as $$
declare
  v_jobs awa.successor[] := p_jobs;
  v_held bigint[];
  v_index integer;
  v_job awa.successor;
  v_holder bigint;
  v_in_doubt boolean;
begin
  -- Nearly always all of them. Locked against the sweep, which may have looked at a job before it came back.
  select array_agg(h.job_id) into v_held
  from (
    select u.job_id
    from awa.unique_claims u
    join unnest(p_jobs) j on j.job_id = u.job_id and awa.unique_key(j.envelope) = u.unique_key
    where awa.holds_key(awa.unique_states(j.envelope), j.state)
    order by u.unique_key
    for update of u
  ) h;
  -- Keys are taken before any is let go, in byte order.
  for v_index in
    select j.ordinal
    from unnest(p_jobs) with ordinality as j(
      job_id, state, run_at, created_at, attempted_at, run_lease, priority, shard, attempt, max_attempts, queue, kind,
      args, envelope, dlq_reason, ordinal
    )
    where awa.holds_key(awa.unique_states(j.envelope), j.state)
      and (v_held is null or j.job_id <> all (v_held))
    order by awa.unique_key(j.envelope), j.job_id
  loop
    v_job := v_jobs[v_index];
    select t.holder, t.in_doubt into v_holder, v_in_doubt
    from awa.try_take_key(awa.unique_key(v_job.envelope), v_job.job_id, awa.unique_states(v_job.envelope)) t;
    if v_in_doubt and v_job.state in ('available', 'scheduled', 'retryable') then
      -- Asked again when it is promoted.
      v_job.state := case
        when v_job.state <> 'available' then v_job.state
        when v_job.attempt = 0 then 'scheduled'
        else 'retryable'
      end;
      v_job.run_at := greatest(v_job.run_at, p_now + interval '1 second');
    elsif v_in_doubt or v_holder is not null then
      if v_job.state not in ('completed', 'failed', 'cancelled') then
        v_job.envelope := v_job.envelope || jsonb_build_object('errors', awa.append_error(
          v_job.envelope -> 'errors',
          format('cancelled: job %s holds the unique key of this one', v_holder), v_job.attempt, true, p_now
        ));
        v_job.state := 'cancelled';
      end if;
      if awa.holds_key(awa.unique_states(v_job.envelope), v_job.state) then
        v_job.envelope := nullif(v_job.envelope - 'unique', '{}');
      end if;
    end if;
    v_jobs[v_index] := v_job;
  end loop;

  perform awa.release_unique(array_agg(j.job_id), j.state)
  from unnest(v_jobs) j
  where j.envelope ? 'unique' and not awa.holds_key(awa.unique_states(j.envelope), j.state)
  group by j.state;
  return v_jobs;
end
$$;

-- Ended attempts that completed a job with a key: the place of a success is its closure, so nothing is placed.
create function awa.release_completed(p_slot smallint, p_ended jsonb, p_accepted bigint[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
  perform awa.release_unique(
    array(
      select r.job_id
      from rows from (
        jsonb_to_recordset(p_ended) as (batch bigint, member smallint, act awa.closing)
      ) with ordinality as e(batch, member, act, ordinal)
      join awa.claim_batches b on b.slot = p_slot and b.batch_id = e.batch
      cross join lateral (
        select * from awa.ready_entries r
        where r.slot = p_slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, e.member) limit 1
      ) r
      where e.act = 'complete' and e.ordinal = any (p_accepted)
    ),
    'completed'
  );
end
$$;

-- Whether a job is, as of the calling statement's snapshot, in a state of the mask of its claim.
create function awa.is_claim_due(p_claim awa.unique_claims) returns boolean
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
  if exists (select from awa.deferred_jobs d where d.job_id = p_claim.job_id)
    or exists (select from awa.leases x where x.job_id = p_claim.job_id)
  then
    return true;
  end if;
  return exists (
    select from awa.finished_jobs f where f.job_id = p_claim.job_id and awa.holds_key(p_claim.states, f.state)
  ) or exists (
    select from awa.dlq_entries e where e.job_id = p_claim.job_id and awa.holds_key(p_claim.states, 'failed')
  ) or exists (
    -- Where it came back to, and where it first was.
    select from awa.log_jobs j
    where j.job_id = p_claim.job_id and j.job_id <> j.pos and awa.holds_key(p_claim.states, j.state)
  ) or exists (
    select from (select distinct l.lane_id from awa.lanes l) l
    join awa.log_jobs j on j.lane_id = l.lane_id and j.pos = p_claim.job_id
    where awa.holds_key(p_claim.states, j.state)
  );
end
$$;

-- Successes hold their keys, if they do, until they are forgotten: for a slot whose rows are all closed. What has left it
-- has not ended there.
create function awa.release_slot(p_slot smallint) returns void
language plpgsql
as $$
begin
  if exists (select from awa.unique_claims u where awa.holds_key(u.states, 'completed')) then
    delete from awa.unique_claims u
    using awa.ready_entries r
    where r.slot = p_slot and r.job_id = u.job_id and awa.holds_key(u.states, 'completed')
      and not exists (select from awa.deferred_jobs d where d.job_id = u.job_id)
      and not exists (select from awa.finished_jobs f where f.job_id = u.job_id)
      and not exists (select from awa.dlq_entries e where e.job_id = u.job_id)
      and not exists (select from awa.leases x where x.job_id = u.job_id)
      and not exists (
        select from awa.ready_entries n where n.job_id = u.job_id and n.job_id <> n.pos and n.slot <> p_slot
      )
      and not exists (
        select from awa.ready_entries n where n.lane_id = r.lane_id and n.pos = r.pos and n.slot <> p_slot
      );
  end if;
end
$$;

-- The safety net: lets go of claims whose jobs are gone, or in a state in which they hold nothing. Jobs leave such claims
-- behind whose success the log has forgotten, or was told of by a client that does not know of keys. Looks at up to p_limit
-- claims above the key p_after; `last` is the key to go on from, null after the last one.
create function awa.sweep_unique(p_after bytea, p_limit integer, out released integer, out last bytea)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_doubtful bytea[];
  v_claims awa.unique_claims[];
begin
  perform awa.assert_read_committed();
  -- Nearly all are as they should be, which needs no lock.
  with page as materialized (
    select u.* from awa.unique_claims u
    where p_after is null or u.unique_key > p_after
    order by u.unique_key
    limit p_limit
  )
  select
    array_agg(p.unique_key) filter (
      where not awa.is_claim_due((p.unique_key, p.job_id, p.states)::awa.unique_claims)
    ),
    case when count(*) = p_limit then (array_agg(p.unique_key order by p.unique_key desc))[1] end
  into v_doubtful, sweep_unique.last
  from page p;
  sweep_unique.released := 0;
  if v_doubtful is null then
    return;
  end if;
  select array_agg((c.unique_key, c.job_id, c.states)::awa.unique_claims) into v_claims
  from (
    select u.* from awa.unique_claims u
    where u.unique_key = any (v_doubtful)
    order by u.unique_key
    for update skip locked
  ) c;
  -- Again, under the locks: a job that comes back waits for them, or has come back already.
  with gone as materialized (
    select c.unique_key from unnest(v_claims) c where not awa.is_claim_due(c)
  )
  delete from awa.unique_claims u using gone g where u.unique_key = g.unique_key;
  get diagnostics sweep_unique.released = row_count;
end
$$;

revoke execute on function awa.sweep_unique(bytea, integer) from public;
