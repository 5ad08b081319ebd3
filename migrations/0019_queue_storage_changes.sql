-- schema: engine
-- What an operator, or the application, changes of jobs that exist: cancel, retry, priority, queue, time, payload, delete.
--
-- A job's fate is decided under the lock of what could decide it otherwise: the lane's for a waiting job, the owner's for
-- a running one, the row's for one that stands in a row table. Each is looked up again in a statement after the lock, and
-- a waiting row has been consumed or not by what the lane's newest cursor row says.

-- Where jobs are. `home` is log, lease, deferred or finished; the rest is for the first two.
create type awa.job_home as (
  job_id bigint,
  home text,
  state awa/*control*/.job_state,
  slot smallint,
  lane_id bigint,
  pos bigint,
  batch_id bigint,
  nonce bigint,
  member smallint,
  owner uuid,
  run_lease bigint
);

-- Jobs that exist, each once, from the snapshot of the calling statement.
create function awa.locate(p_ids bigint[]) returns setof awa.job_home
language plpgsql stable
as $$
begin
  return query
  -- Look-ups, not joins: the log has no statistics to plan a join by.
  with entry as materialized (
    select r.slot, r.lane_id, r.pos, r.xid, r.job_id
    from (select distinct l.lane_id from awa.lanes l) l
    cross join lateral (
      select * from awa.ready_entries r
      where r.lane_id = l.lane_id and r.pos = any (p_ids) and r.job_id = r.pos
      offset 0
    ) r
    union all
    select r.slot, r.lane_id, r.pos, r.xid, r.job_id
    from awa.ready_entries r
    where r.job_id = any (p_ids) and r.job_id <> r.pos
  ),
  lane as materialized (
    select e.lane_id, c.cursor_pos, c.pending_xids, c.pending_after
    from (select distinct lane_id from entry) e
    left join lateral (
      select b.cursor_pos, b.pending_xids, b.pending_after
      from awa.claim_batches b
      where b.lane_id = e.lane_id and b.cursor_pos is not null
      order by -b.batch_id limit 1
    ) c on true
  ),
  judged as materialized (
    select e.*, awa.is_consumed(e.pos, e.xid, l.cursor_pos, l.pending_xids, l.pending_after) as consumed
    from entry e join lane l on l.lane_id = e.lane_id
  )
  select j.job_id, 'log', 'available'::awa/*control*/.job_state, j.slot, j.lane_id, j.pos,
    null::bigint, null::bigint, null::smallint, null::uuid, null::bigint
  from judged j
  where not j.consumed and not awa.is_tombstoned(j.slot, j.lane_id, j.pos)
  union all
  select j.job_id, 'log', s.state, j.slot, j.lane_id, j.pos, b.batch_id, b.nonce, s.member::smallint, b.owner, s.run_lease
  from judged j
  cross join lateral (
    select v.state, v.batch_id, v.member, v.run_lease
    from awa.log_jobs v
    where j.consumed and v.slot = j.slot and v.lane_id = j.lane_id and v.pos = j.pos and v.batch_id is not null
    limit 1
  ) s
  cross join lateral (
    select b.batch_id, b.nonce, b.owner from awa.claim_batches b
    where b.slot = j.slot and b.batch_id = s.batch_id limit 1
  ) b
  where j.consumed
  union all
  -- Attempts that the log has let go of.
  select x.job_id, 'lease', 'running', x.slot, null, null, x.batch_id, x.nonce, x.member, x.owner, x.run_lease
  from awa.leases x where x.entry is not null and x.job_id = any (p_ids)
  union all
  select d.job_id, 'deferred', d.state, null, null, null, null, null, null, null, null
  from awa.deferred_jobs d where d.job_id = any (p_ids)
  union all
  select f.job_id, 'finished', f.state, null, null, null, null, null, null, null, null
  from awa.finished_jobs f where f.job_id = any (p_ids);
end
$$;

-- What is wrong with a change, as "field: reason", or null.
create function awa.change_problem(p_change jsonb) returns text
language sql stable
as $$
  select case coalesce(p_change ->> 'op', '')
    when 'cancel' then null
    when 'retry' then null
    when 'delete' then null
    when 'payload' then case when not p_change ? 'args' then 'args: is missing' end
    when 'priority' then case
      when jsonb_typeof(p_change -> 'priority') is distinct from 'number' then 'priority: must be 1 to 4'
      else awa.job_problem('k', 'q', (p_change ->> 'priority')::integer, 1, null, null, null)
    end
    when 'queue' then case
      when p_change ->> 'queue' is null then 'queue: must have 1 to 200 characters'
      else awa.job_problem('k', p_change ->> 'queue', 1, 1, null, null, null)
    end
    when 'run_at' then case
      when p_change ->> 'run_at' is null then 'run_at: must be a finite instant'
      else awa.job_problem('k', 'q', 1, 1, (p_change ->> 'run_at')::timestamptz, null, null)
    end
    else 'op: must be cancel, retry, delete, payload, priority, queue or run_at'
  end
$$;

create function awa.can_change(p_op text, p_home text, p_state awa/*control*/.job_state) returns boolean
language sql immutable
as $$
  select case p_op
    when 'cancel' then p_state in ('available', 'scheduled', 'retryable', 'running')
    when 'retry' then p_state in ('failed', 'cancelled')
    when 'delete' then p_state in ('available', 'scheduled', 'retryable') or p_home = 'finished'
    else p_state in ('available', 'scheduled', 'retryable')
  end
$$;

-- Why a job was cancelled, as its error history says it, if anybody said: each for itself, or all for the same reason.
create function awa.cancel_error(p_job_id bigint, p_change jsonb) returns text
language sql immutable
as $$
  select 'cancelled: ' || coalesce(p_change -> 'reasons' ->> p_job_id::text, p_change ->> 'reason')
$$;

-- A job after a change. One that is left as it was need not be moved.
create function awa.changed(p_job awa.successor, p_change jsonb, p_now timestamptz) returns awa.successor
language plpgsql stable
as $$
declare
  v_job awa.successor := p_job;
  v_error text;
  v_run_at timestamptz;
begin
  case p_change ->> 'op'
    when 'cancel' then
      v_job.state := 'cancelled';
      v_error := awa.cancel_error(v_job.job_id, p_change);
      if v_error is not null then
        v_job.envelope := coalesce(v_job.envelope, '{}') || jsonb_build_object(
          'errors', awa.append_error(v_job.envelope -> 'errors', v_error, v_job.attempt, false, p_now));
      end if;
    when 'retry' then
      v_job.state := 'available';
      v_job.attempt := 0;
      v_job.run_at := p_now;
    when 'priority' then
      v_job.priority := (p_change ->> 'priority')::smallint;
    when 'queue' then
      v_job.queue := p_change ->> 'queue';
    when 'run_at' then
      v_run_at := (p_change ->> 'run_at')::timestamptz;
      if v_run_at > p_now then
        v_job.run_at := v_run_at;
        v_job.state := case when v_job.state = 'retryable' then 'retryable' else 'scheduled' end;
      elsif v_job.state <> 'available' then
        v_job.run_at := v_run_at;
        v_job.state := 'available';
      end if;
    when 'payload' then
      v_job.args := (p_change -> 'args')::json;
    else null;
  end case;
  return v_job;
end
$$;

-- Says that a lane, whose lock the caller holds, has tombstones up to p_pos, and lets claims look for them up to p_mark.
create function awa.mark_tombstones(p_lane_id bigint, p_pos bigint, p_mark bigint) returns void
language plpgsql
as $$
begin
  if p_pos is not null
    and not exists (select from awa.tombstoned_lanes o where o.lane_id = p_lane_id and o.last_pos >= p_pos) then
    insert into awa.tombstoned_lanes as k (lane_id, last_pos) values (p_lane_id, p_mark)
    on conflict (lane_id) do update set last_pos = greatest(k.last_pos, excluded.last_pos);
  end if;
end
$$;

-- Gives up waiting rows of lanes that the caller has locked.
create function awa.give_up(p_homes awa.job_home[], p_now timestamptz) returns void
language plpgsql
as $$
begin
  insert into awa.tombstones (slot, lane_id, pos, written_at)
  select h.slot, h.lane_id, h.pos, p_now from unnest(p_homes) h;
  -- Marked beyond the last one: further tombstones for jobs that are there already then need no further mark.
  perform awa.mark_tombstones(h.lane_id, h.pos, s.last_value)
  from (select lane_id, max(pos) as pos from unnest(p_homes) h group by lane_id order by lane_id) h, awa.pos_seq s;
end
$$;

-- Tells the workers which of their attempts are over: "<owner> <fence>,<fence>,...", not much more than 7,000 bytes each.
create function awa.notify_aborted(p_homes awa.job_home[]) returns void
language plpgsql
as $$
begin
  perform pg_notify('awa:aborted:' || md5(/*schema*/'awa'), a.owner::text || ' ' || a.fences)
  from (
    select n.owner, string_agg(n.fence, ',') as fences
    from (
      select h.owner, format('%s.%s.%s', h.job_id, h.run_lease, h.nonce) as fence,
        (row_number() over (partition by h.owner order by h.job_id) - 1) / 100 as part
      from unnest(p_homes) h
    ) n
    group by n.owner, n.part
  ) a;
end
$$;

-- Changes jobs. p_change: {"op", ...} with
--   cancel: reason?, or reasons? by job id; retry; delete; priority: priority; queue: queue; run_at: run_at; payload: args.
-- Answers, per different id, [["job id", verdict, state before or null], ..]: `changed`; `missing`; `refused`, not in a
-- state for it; `again`: it moved while we looked, ask once more; `taken`: another job has its
-- unique key, followed by its kind and that job; `dead`: it is a dead letter.
--
-- Without p_waits what somebody else keeps locked is answered with `again` at once, instead of failing all after two
-- seconds.
--
-- Holds the locks of lanes and owners until the transaction ends: nobody claims from these lanes meanwhile, and these
-- owners store nothing.
create function awa.change_jobs(
  p_ids bigint[],
  p_change jsonb,
  p_now timestamptz,
  p_waits boolean default true
) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set max_parallel_workers_per_gather = 0
set jit = off
set lock_timeout = '2s'
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_op constant text := p_change ->> 'op';
  v_problem constant text := awa.change_problem(p_change);
  v_ids constant bigint[] := array(select distinct i from unnest(p_ids) i where i is not null);
  v_rows bigint[] := v_ids;
  v_homes awa.job_home[];
  v_keys integer[];
  v_owners uuid[];
  v_waiting awa.job_home[];
  v_running awa.job_home[];
  v_before awa.successor[];
  v_some awa.successor[];
  v_rejected jsonb;
  v_conflicts jsonb := '{}'; -- by job id
  v_done bigint[] := '{}';
begin
  if v_problem is not null then
    raise exception using errcode = '22023', message = v_problem;
  end if;
  perform awa.assert_read_committed();
  v_homes := array(select h from awa.locate(v_ids) h);

  if v_op <> 'retry' then
    if p_waits then
      perform awa.hold_lanes(array_agg(h.lane_id)) from unnest(v_homes) h where h.state = 'available';
    end if;
    -- Free to whoever holds them.
    v_keys := array(
      select k.key
      from (
        select distinct awa.lane_lock_key(h.lane_id) as key from unnest(v_homes) h where h.state = 'available' order by 1
      ) k
      where pg_try_advisory_xact_lock(awa.lock_class('lane'), k.key)
    );
    if v_keys <> '{}' then
      -- A statement of its own: its snapshot shows what the last holder of the lock committed.
      v_homes := array(select h from awa.locate(v_ids) h);
    end if;
  end if;
  if v_op = 'cancel' then
    v_owners := array(select distinct h.owner from unnest(v_homes) h where h.state = 'running');
    if v_owners <> '{}' then
      if p_waits then
        perform awa.hold_owners(v_owners);
      else
        v_owners := awa.try_owners(v_owners);
      end if;
      v_homes := array(select h from awa.locate(v_ids) h);
    end if;
  end if;

  v_waiting := array(
    select h from unnest(v_homes) h
    where h.state = 'available' and awa.lane_lock_key(h.lane_id) = any (v_keys) and awa.can_change(v_op, h.home, h.state)
  );
  if v_waiting <> '{}' then
    -- The rows as they are, and then only those the change moves.
    v_before := array(
      select (
        r.job_id, 'available', r.run_at, r.created_at, null, r.run_lease, l.priority, l.shard, r.attempt,
        r.max_attempts, l.queue, r.kind, r.args, r.envelope, null
      )::awa.successor
      from unnest(v_waiting) h
      join awa.ready_entries r on r.slot = h.slot and r.lane_id = h.lane_id and r.pos = h.pos
      cross join lateral (select * from awa.lanes l where l.lane_id = h.lane_id limit 1) l
      order by r.job_id
    );
    v_done := array(select b.job_id from unnest(v_before) b);
    v_before := array(
      select b from unnest(v_before) b
      where v_op = 'delete' or awa.changed(b, p_change, v_now)::text is distinct from b::text -- json has no equality
    );
    perform awa.give_up(
      array(select h from unnest(v_waiting) h where h.job_id = any (select b.job_id from unnest(v_before) b)), v_now);
  end if;

  if not p_waits then
    -- Not those of rows that somebody else is changing.
    v_rows := array(select d.job_id from awa.deferred_jobs d where d.job_id = any (v_ids) for update skip locked)
      || array(select f.job_id from awa.finished_jobs f where f.job_id = any (v_ids) for update skip locked);
  end if;
  if exists (select from unnest(v_homes) h where h.home = 'deferred') and v_op <> 'retry' then
    with due as materialized (
      select d.job_id from awa.deferred_jobs d
      where d.job_id = any (v_rows)
      order by d.job_id for update
    ),
    gone as (
      delete from awa.deferred_jobs d using due where d.job_id = due.job_id returning d.*
    )
    select array_agg((
      d.job_id, d.state, d.run_at, d.created_at, d.attempted_at, d.run_lease, d.priority, d.shard, d.attempt,
      d.max_attempts, d.queue, d.kind, d.args, d.envelope, null
    )::awa.successor)
    into v_some
    from gone d;
    v_before := v_before || v_some;
    v_done := v_done || array(select s.job_id from unnest(v_some) s);
  end if;

  if exists (select from unnest(v_homes) h where h.home = 'finished') and v_op in ('retry', 'delete') then
    v_some := array(
      select (
        f.job_id, f.state, f.run_at, f.created_at, f.attempted_at, f.run_lease, f.priority, f.shard, f.attempt,
        f.max_attempts, f.queue, f.kind, f.args, f.envelope, null
      )::awa.successor
      from awa.finished_jobs f
      where f.job_id = any (v_rows) and awa.can_change(v_op, 'finished', f.state)
      order by f.job_id for update
    );
    if v_op = 'retry' then
      v_conflicts := coalesce((
        select jsonb_object_agg(c.job_id, jsonb_build_array(s.kind, c.holder::text))
        from awa.key_conflicts(array(select awa.changed(s, p_change, v_now) from unnest(v_some) s)) c
        join unnest(v_some) s on s.job_id = c.job_id
      ), '{}');
      v_some := array(select s from unnest(v_some) s where not v_conflicts ? s.job_id::text);
    end if;
    delete from awa.finished_jobs f where f.job_id = any (array(select s.job_id from unnest(v_some) s));
    v_before := v_before || v_some;
    v_done := v_done || array(select s.job_id from unnest(v_some) s);
  end if;

  if v_op = 'delete' and exists (select from unnest(v_before) b where b.envelope ? 'unique') then
    perform awa.release_unique(array(select b.job_id from unnest(v_before) b where b.envelope ? 'unique'));
  end if;
  if v_op <> 'delete' then
    v_some := array(select awa.changed(b, p_change, v_now) from unnest(v_before) b);
    if cardinality(v_some) > 0 then
      perform awa.place(v_some, v_now);
    end if;
  end if;

  v_running := array(select h from unnest(v_homes) h where h.state = 'running' and h.owner = any (v_owners));
  if v_running <> '{}' then
    select c.rejected into v_rejected
    from awa.close_attempts(v_owners, '[]', (
      select jsonb_agg(jsonb_build_object(
        'slot', h.slot, 'batch', h.batch_id, 'nonce', h.nonce, 'member', h.member, 'act', 'abort',
        'error', awa.cancel_error(h.job_id, p_change)
      ))
      from unnest(v_running) h
    ), v_now) c;
    v_running := array(
      select h from unnest(v_running) h
      where not exists (
        select from jsonb_array_elements(v_rejected) r
        where (r ->> 1)::bigint = h.batch_id and (r ->> 3)::smallint = h.member
      )
    );
    perform awa.notify_aborted(v_running);
    v_done := v_done || array(select h.job_id from unnest(v_running) h);
  end if;

  return coalesce(
    (
      select jsonb_agg(jsonb_build_array(
        i.id::text,
        case
          when i.id = any (v_done) then 'changed'
          when h.job_id is null and e.job_id is not null then 'dead'
          when h.job_id is null then 'missing'
          when v_conflicts -> i.id::text ->> 1 is not null then 'taken'
          when v_conflicts ? i.id::text then 'again'
          when awa.can_change(v_op, h.home, h.state) then 'again'
          else 'refused'
        end,
        coalesce(b.state, h.state, case when e.job_id is not null then 'failed'::awa/*control*/.job_state end)
      ) || case when v_conflicts -> i.id::text ->> 1 is not null then v_conflicts -> i.id::text else '[]' end order by i.id)
      from unnest(v_ids) i(id)
      left join unnest(v_homes) h on h.job_id = i.id
      left join unnest(v_before) b on b.job_id = i.id
      left join awa.dlq_entries e on e.job_id = i.id
    ),
    '[]'
  );
end
$$;

revoke execute on function awa.change_jobs(bigint[], jsonb, timestamptz, boolean) from public;

-- Cancels jobs, whether they wait, are deferred or run. Answers like change_jobs.
create function awa.cancel_jobs(p_ids bigint[], p_reason text, p_now timestamptz) returns jsonb
language sql security definer set search_path = pg_catalog, pg_temp
as $$
  select awa.change_jobs(p_ids, jsonb_build_object('op', 'cancel', 'reason', p_reason), p_now)
$$;

revoke execute on function awa.cancel_jobs(bigint[], text, timestamptz) from public;

-- Asks, in the caller's transaction and without a lock, that jobs be cancelled; takes effect after its commit.
create function awa.request_cancel(p_ids bigint[], p_reason text, p_now timestamptz) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$
  insert into awa.cancel_requests (job_id, requested_at, reason)
  select distinct i, coalesce(p_now, clock_timestamp()), p_reason from unnest(p_ids) i where i is not null
$$;

revoke execute on function awa.request_cancel(bigint[], text, timestamptz) from public;

-- What is left of the answer of a claim when the jobs that were to be cancelled are. In the claim's transaction, where
-- nobody else knows these attempts yet: the owner's lock is for what is noted of its leases.
create function awa.without_cancelled(p_jobs text, p_owner uuid, p_nonce bigint, p_now timestamptz) returns text
language plpgsql
as $$
declare
  v_ended jsonb;
  v_ids bigint[];
begin
  select
    jsonb_agg(jsonb_build_object(
      'slot', (b.batch ->> 0)::smallint, 'batch', (b.batch ->> 1)::bigint, 'nonce', p_nonce, 'member', m.number,
      'act', 'abort', 'error', 'cancelled: ' || c.reason
    )),
    array_agg((m.job ->> 0)::bigint)
  into v_ended, v_ids
  from json_array_elements(p_jobs::json) b(batch)
  cross join lateral json_array_elements(b.batch -> 3) with ordinality m(job, number)
  cross join lateral (select c.reason from awa.cancel_requests c where c.job_id = (m.job ->> 0)::bigint limit 1) c;
  if v_ended is null then
    return p_jobs;
  end if;
  perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));
  perform awa.close_attempts(array[p_owner], '[]', v_ended, p_now);
  -- Others delete requests too, but wait for no lane with one in hand.
  delete from awa.cancel_requests c
  where c.ctid = any (array(
    select o.ctid from awa.cancel_requests o where o.job_id = any (v_ids) for update skip locked
  ));
  return (
    select json_agg(json_build_array(
      b.batch -> 0, b.batch -> 1, b.batch -> 2,
      (
        select json_agg(case when (m.job ->> 0)::bigint = any (v_ids) then null else m.job end order by m.number)
        from json_array_elements(b.batch -> 3) with ordinality m(job, number)
      ),
      b.batch -> 4
    ))::text
    from json_array_elements(p_jobs::json) b(batch)
  );
end
$$;

-- Honours up to p_limit requests to cancel, the oldest first; answers how many are settled.
create function awa.apply_cancel_requests(p_limit integer, p_now timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids bigint[];
  v_reasons jsonb;
  v_requests tid[];
  v_change jsonb;
  v_waits boolean;
  v_answer jsonb;
  v_settled bigint[];
begin
  perform awa.assert_read_committed();
  -- Read, not locked: a claim that holds a lane we wait for takes requests, too.
  select array_agg(c.job_id), jsonb_object_agg(c.job_id, c.reason), array_agg(c.ctid)
  into v_ids, v_reasons, v_requests
  from (select o.reason, o.job_id, o.ctid from awa.cancel_requests o order by o.requested_at limit p_limit) c;
  if v_ids is null then
    return 0;
  end if;
  v_change := jsonb_build_object('op', 'cancel', 'reasons', v_reasons);
  -- An open transaction that has changed a job of one queue keeps no other queue's jobs from being cancelled.
  foreach v_waits in array '{t, f}'::boolean[] loop
    begin
      v_answer := awa.change_jobs(v_ids, v_change, p_now, v_waits);
      exit;
    exception when lock_not_available then
      if not v_waits then
        raise;
      end if;
    end;
  end loop;
  v_settled := array(
    select (a ->> 0)::bigint from jsonb_array_elements(v_answer) a where a ->> 1 <> 'again'
  );
  delete from awa.cancel_requests c where c.ctid = any (v_requests) and c.job_id = any (v_settled);
  return cardinality(v_settled);
end
$$;

revoke execute on function awa.apply_cancel_requests(integer, timestamptz) from public;
