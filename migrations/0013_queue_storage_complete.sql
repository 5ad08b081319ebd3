-- schema: engine
-- The end of an attempt. An attempt is (slot, batch, nonce, member): batch ids can come back after a crash, nonces do
-- not. Lock order everywhere: maintenance, lanes ascending, owners ascending, relations.

-- A job after an attempt.
create type awa.successor as (
  job_id bigint,
  state awa/*control*/.job_state,
  run_at timestamptz,
  created_at timestamptz,
  attempted_at timestamptz,
  run_lease bigint,
  priority smallint,
  shard smallint,
  attempt smallint,
  max_attempts smallint,
  queue text,
  kind text,
  args json,
  envelope jsonb,
  dlq_reason text -- why a failed job is a dead letter; null when it is none
);

-- Writes jobs where they belong now: the ended ones to finished_jobs or dlq_entries, those that are due to the log,
-- the rest to deferred_jobs. Answers the jobs as they were written: one whose unique key was taken meanwhile has become cancelled.
create function awa.place(p_jobs awa.successor[], p_now timestamptz) returns awa.successor[]
language plpgsql
as $$
declare
  v_xid constant xid8 := pg_current_xact_id(); -- before the first position
  v_slot constant smallint := awa.ready_slot();
  v_queue text;
begin
  if p_jobs is null then
    return null;
  end if;
  if exists (select from unnest(p_jobs) j where j.envelope ? 'unique') then
    p_jobs := awa.settle_unique(p_jobs, p_now);
  end if;
  insert into awa.finished_jobs (
    job_id, state, finished_at, run_at, created_at, attempted_at, run_lease, priority, shard, attempt, max_attempts,
    queue, kind, args, envelope
  )
  select
    j.job_id, j.state, p_now, j.run_at, j.created_at, j.attempted_at, j.run_lease, j.priority, j.shard, j.attempt,
    j.max_attempts, j.queue, j.kind, j.args, j.envelope
  from unnest(p_jobs) j
  where j.state in ('completed', 'failed', 'cancelled') and j.dlq_reason is null;

  insert into awa.dlq_entries (
    job_id, dlq_at, reason, finished_at, run_at, created_at, attempted_at, run_lease, priority, shard, attempt,
    max_attempts, queue, kind, args, envelope
  )
  select
    j.job_id, date_trunc('milliseconds', p_now), j.dlq_reason, p_now, j.run_at, j.created_at, j.attempted_at,
    j.run_lease, j.priority, j.shard, j.attempt, j.max_attempts, j.queue, j.kind, j.args, j.envelope
  from unnest(p_jobs) j
  where j.dlq_reason is not null;

  insert into awa.deferred_jobs (
    job_id, state, run_at, created_at, attempted_at, run_lease, priority, shard, attempt, max_attempts,
    queue, kind, args, envelope
  )
  select
    j.job_id, j.state, j.run_at, j.created_at, j.attempted_at, j.run_lease, j.priority, j.shard, j.attempt,
    j.max_attempts, j.queue, j.kind, j.args, j.envelope
  from unnest(p_jobs) j
  where j.state in ('scheduled', 'retryable') and j.run_at > p_now;

  with due as materialized (
    select j.*, awa.lane_id(j.queue, j.priority, j.shard) as lane_id
    from unnest(awa.sharded(p_jobs)) j
    where j.state = 'available' or j.state in ('scheduled', 'retryable') and j.run_at <= p_now
  ),
  lane as (
    select count(awa.ensure_lane(l.lane_id, l.queue, l.priority, l.shard))
    from (select distinct d.lane_id, d.queue, d.priority, d.shard from due d) l
  )
  insert into awa.ready_entries (
    slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args, envelope
  )
  select
    v_slot, d.lane_id, nextval('awa.pos_seq'), v_xid, d.job_id, d.attempt, d.run_lease, d.max_attempts, d.run_at,
    d.created_at, d.kind, d.args, d.envelope
  from (select * from due order by run_at, job_id) d, lane;
  perform awa.settle(v_slot);

  for v_queue in
    select distinct j.queue from unnest(p_jobs) j
    where j.state = 'available' or j.state in ('scheduled', 'retryable') and j.run_at <= p_now
  loop
    perform awa.wake(v_queue);
  end loop;
  return p_jobs;
end
$$;

-- The position of a member of a batch.
create function awa.member_pos(p_batch awa.claim_batches, p_member integer) returns bigint
language sql immutable parallel safe
as $$
  select case
    when p_member <= coalesce(cardinality(p_batch.late), 0) then p_batch.late[p_member]
    else p_batch.lo + p_batch.offsets[p_member - coalesce(cardinality(p_batch.late), 0)]
  end
$$;

-- Appends an entry to a job's error history, which keeps the newest hundred.
create function awa.append_error(p_errors jsonb, p_error text, p_attempt integer, p_terminal boolean, p_now timestamptz)
returns jsonb
language sql stable parallel safe
as $$
  select case when jsonb_array_length(p_errors) >= 100 then p_errors - 0 else coalesce(p_errors, '[]') end
    || jsonb_build_array(
      jsonb_build_object(
        'error', p_error,
        'attempt', p_attempt,
        'at', to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
      ) || case when p_terminal then '{"terminal": true}'::jsonb else '{}'::jsonb end
    )
$$;

-- Whether what fails in a queue becomes a dead letter: what an operator said of the queue decides, then what the caller
-- was told of it, then what it was told of all. p_policy: {"enabled"?: boolean, "queues"?: {name: boolean}}.
create function awa.is_dead_lettered(p_queue text, p_policy jsonb) returns boolean
language sql stable
as $$
  select coalesce(
    (select q.dlq from awa/*control*/.queues q where q.name = p_queue),
    (p_policy -> 'queues' -> p_queue)::boolean,
    (p_policy -> 'enabled')::boolean,
    false
  )
$$;

-- Where a job goes when its attempt ends. A success is written down only when the log does not keep it.
create function awa.successor_of(
  p_entry awa.ready_entries,
  p_lane awa.lanes,
  p_claimed_at timestamptz,
  p_act awa.closing,
  p_delay_ms bigint,
  p_error text,
  p_progress jsonb,
  p_now timestamptz,
  p_dlq jsonb
) returns awa.successor
language plpgsql
as $$
declare
  v_attempt constant integer := p_entry.attempt + 1;
  v_exhausted constant boolean := p_act in ('retry', 'rescue') and v_attempt >= p_entry.max_attempts;
  v_failed constant boolean := p_act = 'fail' or v_exhausted;
  v_error constant text := case when v_exhausted then coalesce(p_error, 'max_attempts exhausted') else p_error end;
  v_progress constant jsonb := coalesce(p_progress, p_entry.envelope -> 'progress');
  v_envelope jsonb := p_entry.envelope;
  v_job awa.successor;
begin
  if p_act = 'complete' then
    v_envelope := nullif(v_envelope - 'progress', '{}');
  end if;
  if v_error is not null then
    v_envelope := coalesce(v_envelope, '{}') || jsonb_build_object(
      'errors', awa.append_error(v_envelope -> 'errors', v_error, v_attempt, v_failed, p_now));
  end if;
  if v_progress is not null and p_act <> 'complete' then
    v_envelope := coalesce(v_envelope, '{}') || jsonb_build_object('progress', v_progress);
  end if;
  v_job.job_id := p_entry.job_id;
  v_job.state := case
    when p_act = 'complete' then 'completed'
    when v_failed then 'failed'
    when p_act in ('cancel', 'abort') then 'cancelled'
    when p_act in ('retry', 'rescue') then 'retryable'
    when p_act = 'snooze' then 'scheduled'
    else 'available'
  end;
  v_job.run_at := case v_job.state
    when 'retryable' then p_now
      + coalesce(p_delay_ms * interval '1 millisecond', awa/*control*/.backoff(v_attempt))
    when 'scheduled' then p_now + p_delay_ms * interval '1 millisecond'
    else p_entry.run_at
  end;
  v_job.created_at := p_entry.created_at;
  v_job.attempted_at := p_claimed_at;
  v_job.run_lease := p_entry.run_lease + 1;
  v_job.priority := p_lane.priority;
  v_job.shard := p_lane.shard;
  -- A snoozed or returned attempt does not count.
  v_job.attempt := case when p_act in ('snooze', 'return') then p_entry.attempt else v_attempt end;
  v_job.max_attempts := p_entry.max_attempts;
  v_job.queue := p_lane.queue;
  v_job.kind := p_entry.kind;
  v_job.args := p_entry.args;
  v_job.envelope := v_envelope;
  if v_failed and awa.is_dead_lettered(p_lane.queue, p_dlq) then
    v_job.dlq_reason := case when v_exhausted then 'max_attempts_exhausted' else 'terminal_error' end;
  end if;
  return v_job;
end
$$;

-- The job that a lease has taken over.
create function awa.entry_of(p_entry json) returns awa.ready_entries
language plpgsql stable parallel safe
as $$
declare
  v_entry awa.ready_entries := json_populate_record(null::awa.ready_entries, p_entry);
begin
  v_entry.args := coalesce(v_entry.args, 'null'); -- a JSON null reads as SQL null
  return v_entry;
end
$$;

-- Ends attempts that the log has let go of, whose leases decide: each token that names one takes it along. p_asked: as
-- p_ended of close_attempts, completions included. Answers those it ended, as batch/nonce/member, and what became of
-- their jobs.
create function awa.close_evicted(
  p_owners uuid[],
  p_asked jsonb,
  p_now timestamptz,
  p_dlq jsonb,
  out ended text[],
  out successors awa.successor[]
)
language sql
as $$
  with asked as materialized (
    select distinct on (e.batch, e.nonce, e.member) e.*
    from rows from (
      jsonb_to_recordset(p_asked) as (
        batch bigint, nonce bigint, member smallint, act awa.closing, delay_ms bigint, error text, progress jsonb
      )
    ) with ordinality as e(batch, nonce, member, act, delay_ms, error, progress, ordinal)
    order by e.batch, e.nonce, e.member, e.ordinal
  ),
  ended as (
    delete from awa.leases x
    using asked a
    where x.batch_id = a.batch and x.member = a.member and x.nonce = a.nonce
      and x.owner = any (p_owners) and x.entry is not null
    returning a.*, x.claimed_at, x.entry, x.progress as last_progress
  )
  select
    array_agg(concat(e.batch, '/', e.nonce, '/', e.member)),
    array_agg(
      awa.successor_of(
        r, l, e.claimed_at, e.act, e.delay_ms, e.error, coalesce(e.progress, e.last_progress), p_now,
        p_dlq
      ) order by e.ordinal
    )
  from ended e
  cross join lateral awa.entry_of(e.entry) r
  cross join lateral (select * from awa.lanes l where l.lane_id = r.lane_id limit 1) l
$$;

-- Whether an owner whose lock the caller holds may have leases. Most never have: an attempt gets one with its first sign of
-- life. To look into every partition takes as long as the rest of a completion, so a session notes what it found as the
-- setting `awa.leases`, with the count of before. What was added since has counted, for it was under the same lock; what
-- went away since does no harm.
create function awa.leases_mark(p_owner uuid) returns text
language sql volatile
as $$
  select concat('awa.leases'::regclass::oid, ' ', pg_sequence_last_value('awa.lease_marks'), ' ', p_owner, ' ')
$$;

create function awa.may_have_leases(p_owner uuid) returns boolean
language plpgsql
as $$
declare
  v_mark constant text := awa.leases_mark(p_owner);
  v_note constant text := current_setting('awa.leases', true);
  v_found boolean;
begin
  if starts_with(v_note, v_mark) then
    return right(v_note, 1) = 't';
  end if;
  v_found := exists (select from awa.leases x where x.owner = p_owner);
  -- A prepared transaction keeps its settings and may yet give back the leases it has taken away.
  if current_setting('awa.leases_ended', true) is distinct from 'on' then
    perform set_config('awa.leases', concat(v_mark, v_found), false);
  end if;
  return v_found;
end
$$;

-- Closes attempts of p_owners, whose locks the caller holds. A token that does not match a batch of theirs, nonce
-- included, writes nothing: its closure would count as somebody else's in the slot's next life.
--
-- p_completed: [{"slot", "batch", "nonce", "members": [..]}]: attempts that ended well.
-- p_ended: [{"slot", "batch", "nonce", "member", "act", "delay_ms"?, "error"?, "progress"?}]: all others. Among them the
-- successes of jobs with a unique key, as act `complete`: their keys are let go.
-- p_dlq: where jobs go that fail, see is_dead_lettered.
-- rejected: [[slot, "batch", "nonce", member, verdict], ..] of those not accepted: `repeated` when the same act of the attempt's
-- owner was recorded before, else `refused`. Null when all were accepted.
create function awa.close_attempts(
  p_owners uuid[],
  p_completed jsonb,
  p_ended jsonb,
  p_now timestamptz,
  p_dlq jsonb default null,
  out rejected jsonb,
  out successors awa.successor[]
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_leases constant boolean := cardinality(p_owners) > 1 or awa.may_have_leases(p_owners[1]);
  v_slot smallint;
  v_rejected jsonb;
  v_accepted bigint[];
  v_batches bigint[];
  v_successors awa.successor[];
  v_evicted text[];
begin
  if v_leases and exists (select from awa.leases x where x.owner = any (p_owners) and x.entry is not null) then
    select c.ended, c.successors
    into v_evicted, close_attempts.successors
    from awa.close_evicted(
      p_owners,
      p_ended || coalesce(
        (
          select jsonb_agg(
            jsonb_build_object('batch', c.batch, 'nonce', c.nonce, 'member', m.member, 'act', 'complete'))
          from jsonb_to_recordset(p_completed) c(batch bigint, nonce bigint, members smallint[])
          cross join unnest(c.members) m(member)
        ),
        '[]'
      ),
      p_now,
      p_dlq
    ) c;
    if close_attempts.successors is not null then
      perform set_config('awa.leases_ended', 'on', true);
      close_attempts.successors := awa.place(close_attempts.successors, p_now);
    end if;
  end if;

  -- Slot by slot: with the slot as a parameter only its partitions are set up.
  for v_slot in
    select c.slot from jsonb_to_recordset(p_completed) c(slot smallint)
    union
    select e.slot from jsonb_to_recordset(p_ended) e(slot smallint)
  loop
    with asked as materialized (
      -- The same attempt twice in one call: the first wins.
      select distinct on (a.batch, a.nonce, a.member) a.*
      from (
        select c.batch, c.nonce, m.member, 'complete'::awa.closing as act, 0::bigint as ordinal
        from jsonb_to_recordset(p_completed) c(slot smallint, batch bigint, nonce bigint, members smallint[])
        cross join unnest(c.members) m(member)
        where c.slot = v_slot
        union all
        select e.batch, e.nonce, e.member, e.act, e.ordinal
        from rows from (
          jsonb_to_recordset(p_ended) as (
            slot smallint, batch bigint, nonce bigint, member smallint, act awa.closing
          )
        ) with ordinality as e(slot, batch, nonce, member, act, ordinal)
        where e.slot = v_slot
      ) a
      where v_evicted is null or concat(a.batch, '/', a.nonce, '/', a.member) <> all (v_evicted)
      order by a.batch, a.nonce, a.member, a.ordinal
    ),
    claimed as materialized (
      select a.batch, a.nonce, b.n
      from (select distinct batch, nonce from asked) a
      join awa.claim_batches b on b.slot = v_slot and b.batch_id = a.batch and b.nonce = a.nonce
      where b.owner = any (p_owners)
    ),
    closed as materialized (
      select c.batch, k.act, m.member
      from claimed c
      join awa.closures k on k.slot = v_slot and k.batch_id = c.batch
      cross join unnest(k.members) m(member)
    ),
    answered as materialized (
      select a.*,
        case
          when c.n is null or (a.member between 1 and c.n) is not true then 'refused'
          when k.act is null then 'accepted'
          when k.act = a.act and k.act not in ('rescue', 'evict', 'abort') then 'repeated'
          else 'refused'
        end as verdict
      from asked a
      left join claimed c on c.batch = a.batch and c.nonce = a.nonce
      left join closed k on k.batch = c.batch and k.member = a.member
    ),
    written as (
      insert into awa.closures (slot, batch_id, act, n, members, finished_at)
      select v_slot, a.batch, a.act, count(*), array_agg(a.member order by a.member), p_now
      from answered a
      where a.verdict = 'accepted'
      group by a.batch, a.act
    )
    select
      jsonb_agg(jsonb_build_array(v_slot, a.batch::text, a.nonce::text, a.member, a.verdict))
        filter (where a.verdict <> 'accepted'),
      array_agg(a.ordinal) filter (where a.verdict = 'accepted' and a.ordinal > 0),
      array_agg(distinct a.batch)
    into v_rejected, v_accepted, v_batches
    from answered a;
    close_attempts.rejected := coalesce(close_attempts.rejected || v_rejected, v_rejected, close_attempts.rejected);

    if v_accepted is not null then
      if p_ended @> '[{"act": "complete"}]' then
        perform awa.release_completed(v_slot, p_ended, v_accepted);
      end if;
      select array_agg(
        awa.successor_of(r, l, b.claimed_at, e.act, e.delay_ms, e.error, coalesce(e.progress, x.progress), p_now,
          p_dlq)
        order by r.job_id
      )
      into v_successors
      from rows from (
        jsonb_to_recordset(p_ended) as (
          batch bigint, member smallint, act awa.closing, delay_ms bigint, error text, progress jsonb
        )
      ) with ordinality as e(batch, member, act, delay_ms, error, progress, ordinal)
      join awa.claim_batches b on b.slot = v_slot and b.batch_id = e.batch
      -- A look-up: as a join it is planned to read the whole lane for each attempt while there are few rows.
      cross join lateral (
        select * from awa.ready_entries r
        where r.slot = v_slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, e.member) limit 1
      ) r
      cross join lateral (select * from awa.lanes l where l.lane_id = b.lane_id limit 1) l
      left join awa.leases x on x.batch_id = e.batch and x.member = e.member
      where e.ordinal = any (v_accepted) and e.act <> 'complete';
      v_successors := awa.place(v_successors, p_now);
      close_attempts.successors := close_attempts.successors || v_successors;
    end if;

    if v_leases then
      delete from awa.leases x
      where x.batch_id = any (v_batches) and x.entry is null
        and exists (
          select from awa.closures k
          where k.slot = v_slot and k.batch_id = x.batch_id and x.member = any (k.members)
        );
      if found then
        perform set_config('awa.leases_ended', 'on', true);
      end if;
    end if;
  end loop;
end
$$;

-- The commonest call: one success, of an attempt the log still holds. Answers whether it was stored; what it finds
-- otherwise writes nothing and is left to close_attempts. A call for each job is what a worker with little to do makes,
-- and close_attempts takes twice as long.
create function awa.close_success(p_owner uuid, p_completed jsonb, p_now timestamptz) returns boolean
language plpgsql
as $$
declare
  v_token constant jsonb := p_completed -> 0;
  v_slot constant smallint := v_token ->> 'slot';
  v_batch constant bigint := v_token ->> 'batch';
  v_nonce constant bigint := v_token ->> 'nonce';
  v_member constant smallint := v_token -> 'members' ->> 0;
begin
  if v_token -> 'members' -> 1 is not null then
    return false;
  end if;
  -- Mostly the session knows that there are none.
  if current_setting('awa.leases', true) is distinct from awa.leases_mark(p_owner) || 'f'
    and awa.may_have_leases(p_owner)
    and exists (select from awa.leases x where x.batch_id = v_batch and x.member = v_member)
  then
    return false;
  end if;
  insert into awa.closures (slot, batch_id, act, n, members, finished_at)
  select v_slot, b.batch_id, 'complete', 1, array[v_member], p_now
  from awa.claim_batches b
  where b.slot = v_slot and b.batch_id = v_batch and b.nonce = v_nonce and b.owner = p_owner
    and v_member between 1 and b.n
    and not exists (
      select from awa.closures k where k.slot = v_slot and k.batch_id = v_batch and v_member = any (k.members)
    );
  return found;
end
$$;

-- Ends attempts of one owner. One lock an owner, not a batch: thousands of batch locks would fill the lock table.
-- Answers close_attempts' rejected.
create function awa.complete(
  p_owner uuid,
  p_completed jsonb,
  p_ended jsonb,
  p_now timestamptz,
  p_dlq jsonb default null
) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
  if not awa.is_read_committed() then
    perform awa.assert_read_committed();
  end if;
  -- Completions are durable whatever the database's default is.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));
  -- Statements of their own: their snapshots show what the last holder of the lock committed.
  if jsonb_array_length(p_completed) = 1 and jsonb_array_length(p_ended) = 0
    and awa.close_success(p_owner, p_completed, coalesce(p_now, clock_timestamp())) then
    return null;
  end if;
  return (
    select c.rejected
    from awa.close_attempts(array[p_owner], p_completed, p_ended, coalesce(p_now, clock_timestamp()), p_dlq) c
  );
end
$$;

revoke execute on function awa.complete(uuid, jsonb, jsonb, timestamptz, jsonb) from public;

-- Ends attempts and claims, each in a transaction of its own, in one call: between them the first is committed, so it is
-- durable even if the claim fails. For a worker that has room for its next job when one has ended. Takes and answers what
-- `complete` and `claim` do, but for `claimed_at`, which is in milliseconds since 1970. jobs: null when claim answered no
-- row, `[]` when it answered one without jobs.
--
-- A procedure that commits can neither lend its owner's rights nor set a search path, so all is named in full. It adds
-- nothing to what its caller may call anyhow.
create procedure awa.complete_and_claim(
  p_owner uuid,
  p_completed jsonb,
  p_ended jsonb,
  p_dlq jsonb,
  p_queue text,
  p_limit integer,
  p_nonce bigint,
  p_deadline_ms bigint,
  p_async boolean,
  p_now timestamptz,
  p_aging_ms bigint,
  out rejected text,
  out jobs text,
  out claimed_at float8
)
language plpgsql
as $$
begin
  rejected := awa.complete(p_owner, p_completed, p_ended, p_now, p_dlq);
  commit;
  select coalesce(c.jobs, '[]'), pg_catalog.floor(extract(epoch from c.claimed_at) operator(pg_catalog.*) 1000)
  into complete_and_claim.jobs, complete_and_claim.claimed_at
  from awa.claim(p_queue, p_limit, p_owner, p_nonce, p_deadline_ms, p_async, p_now, p_aging_ms) c;
end
$$;
