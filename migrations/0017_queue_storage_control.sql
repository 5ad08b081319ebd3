-- schema: engine
-- What operators say of queues, and what they ask about them. A queue needs no row in the control table, so everything
-- here writes one if there is none.

-- Promotion, drain and depth go through the deferred jobs of one queue; the state comes along for counting.
create index deferred_jobs_by_queue on awa.deferred_jobs (queue, run_at, job_id) include (state);

-- Locks the lanes of a queue but those the caller had before, ascending, and answers which: no claim of them is under way
-- then. Two seconds are all a claim may take; the caller's transaction must be its own, or a forgotten one stops a queue.
create function awa.lock_queue(p_queue text, p_except bigint[]) returns bigint[]
language plpgsql
as $$
declare
  v_lanes constant bigint[] := array(
    select distinct l.lane_id from awa.lanes l where l.queue = p_queue and l.lane_id <> all (p_except)
  );
  v_key integer;
begin
  perform awa.assert_read_committed();
  perform set_config('lock_timeout', '2s', true);
  for v_key in select distinct awa.lane_lock_key(l) from unnest(v_lanes) l order by 1 loop
    perform pg_advisory_xact_lock(awa.lock_class('lane'), v_key);
  end loop;
  return v_lanes;
end
$$;

-- Pauses a queue. Claims decide under the locks of their lanes, so none that is under way outlives this transaction,
-- except in lanes that came into being meanwhile: see await_claims. Answers the lanes that were waited for.
create function awa.pause_queue(p_queue text, p_by text, p_now timestamptz) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_lanes constant bigint[] := awa.lock_queue(p_queue, '{}');
begin
  insert into awa/*control*/.queues as q (name, paused_at, paused_by)
  values (p_queue, coalesce(p_now, clock_timestamp()), p_by)
  on conflict (name) do update
  set paused_at = excluded.paused_at, paused_by = excluded.paused_by, updated_at = clock_timestamp();
  return v_lanes;
end
$$;

revoke execute on function awa.pause_queue(text, text, timestamptz) from public;

-- Waits for the claims of all other lanes than these. Called when the pause is committed: who sees a lane only after
-- this sees the pause.
create function awa.await_claims(p_queue text, p_except bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform awa.lock_queue(p_queue, p_except);
end
$$;

revoke execute on function awa.await_claims(text, bigint[]) from public;

-- Answers whether the queue was paused. Those who sleep are told even if none seems to sleep now: this transaction may
-- commit much later.
create function awa.resume_queue(p_queue text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_paused constant boolean := awa.is_paused(p_queue);
begin
  insert into awa/*control*/.queues as q (name) values (p_queue)
  on conflict (name) do update set paused_at = null, paused_by = null, updated_at = clock_timestamp();
  perform awa.notify(p_queue);
  return v_paused;
end
$$;

revoke execute on function awa.resume_queue(text) from public;

-- The first thing wrong with overrides, as "field: reason", or null.
create function awa.overrides_problem(p_overrides jsonb) returns text
language sql immutable
as $$
  select case
    when jsonb_typeof(p_overrides) is distinct from 'object' then 'overrides: must be an object'
    else (
      select case o.key
        when 'poll_interval_ms' then 'poll_interval_ms: must be 1 to 86400000'
        when 'claim_batch_size' then 'claim_batch_size: must be a whole number from 1 to 10000'
        when 'deadline_ms' then 'deadline_ms: must be 1 to 3155760000000'
        else o.key || ': no such override'
      end
      from jsonb_each(p_overrides) o
      where case
        when jsonb_typeof(o.value) <> 'number' then true
        when o.key = 'poll_interval_ms' then o.value::numeric not between 1 and 86400000
        when o.key = 'claim_batch_size'
          then o.value::numeric not between 1 and 10000 or o.value::numeric <> trunc(o.value::numeric)
        when o.key = 'deadline_ms' then o.value::numeric not between 1 and 3155760000000
        else true
      end
      limit 1
    )
  end
$$;

-- Replaces all overrides of a queue: {"poll_interval_ms"?, "claim_batch_size"?, "deadline_ms"?}.
create function awa.set_queue_overrides(p_queue text, p_overrides jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_problem constant text := awa.overrides_problem(p_overrides);
begin
  if v_problem is not null then
    raise exception using errcode = '22023', message = v_problem;
  end if;
  insert into awa/*control*/.queues as q (name, overrides) values (p_queue, p_overrides)
  on conflict (name) do update set overrides = excluded.overrides, updated_at = clock_timestamp();
end
$$;

revoke execute on function awa.set_queue_overrides(text, jsonb) from public;

-- Milliseconds as an interval; refuses what is no time to keep something.
create function awa.retention(p_field text, p_ms bigint) returns interval
language plpgsql immutable
as $$
begin
  if p_ms not between 1 and 3155760000000 then
    raise exception using errcode = '22023', message = format('%s: must be 1 millisecond to 100 years', p_field);
  end if;
  return p_ms * interval '1 millisecond';
end
$$;

-- Replaces how long ended jobs of a queue are kept, in milliseconds; null for the default of the workers.
create function awa.set_queue_retention(p_queue text, p_completed bigint, p_failed bigint, p_cancelled bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  insert into awa/*control*/.queues as q (name, completed_retention, failed_retention, cancelled_retention)
  values (
    p_queue, awa.retention('completed', p_completed), awa.retention('failed', p_failed),
    awa.retention('cancelled', p_cancelled)
  )
  on conflict (name) do update
  set completed_retention = excluded.completed_retention, failed_retention = excluded.failed_retention,
    cancelled_retention = excluded.cancelled_retention, updated_at = clock_timestamp();
end
$$;

revoke execute on function awa.set_queue_retention(text, bigint, bigint, bigint) from public;

-- Replaces what becomes of jobs that fail, and how long dead letters are kept; null for the default of the workers.
create function awa.set_queue_dlq(p_queue text, p_enabled boolean, p_retention bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  insert into awa/*control*/.queues as q (name, dlq, dlq_retention)
  values (p_queue, p_enabled, awa.retention('retention', p_retention))
  on conflict (name) do update
  set dlq = excluded.dlq, dlq_retention = excluded.dlq_retention, updated_at = clock_timestamp();
end
$$;

revoke execute on function awa.set_queue_dlq(text, boolean, bigint) from public;

-- What is said of these queues, or of all when null; nothing of those without a row.
create function awa.queue_settings(p_queues text[])
returns table (
  queue text,
  paused_at timestamptz,
  paused_by text,
  overrides jsonb,
  completed_ms float8,
  failed_ms float8,
  cancelled_ms float8,
  dlq boolean,
  dlq_ms float8,
  shards integer
)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select
    q.name, q.paused_at, q.paused_by, q.overrides,
    date_part('epoch', q.completed_retention) * 1000, date_part('epoch', q.failed_retention) * 1000,
    date_part('epoch', q.cancelled_retention) * 1000, q.dlq, date_part('epoch', q.dlq_retention) * 1000,
    q.shards
  from awa/*control*/.queues q
  where p_queues is null or q.name = any (p_queues)
  order by q.name
$$;

revoke execute on function awa.queue_settings(text[]) from public;

-- Locks up to p_limit due jobs of queues that are not paused, the longest due first. While a queue is paused, all of what
-- it holds may be due: then each other queue is read by itself, so that a promotion does not read all that again and again.
create function awa.lock_due(p_limit integer, p_now timestamptz) returns bigint[]
language plpgsql
as $$
declare
  v_ids bigint[];
begin
  if not exists (select from awa/*control*/.queues q where q.paused_at is not null) then
    return array(
      select d.job_id from awa.deferred_jobs d
      where d.run_at <= p_now
      order by d.run_at, d.job_id
      limit p_limit
      for update skip locked
    );
  end if;
  v_ids := array(
    select j.job_id
    from awa.deferred_queues() q(name)
    cross join lateral (
      select d.job_id, d.run_at from awa.deferred_jobs d
      where d.queue = q.name and d.run_at <= p_now
      order by d.run_at, d.job_id
      limit p_limit
    ) j
    where not awa.is_paused(q.name)
    order by j.run_at, j.job_id
    limit p_limit
  );
  return array(
    select d.job_id from awa.deferred_jobs d where d.job_id = any (v_ids) for update skip locked
  );
end
$$;

-- The queues that have rows in a table, by jumping from one to the next in its index.
create function awa.deferred_queues() returns setof text
language sql stable
as $$
  with recursive q(name) as (
    select min(d.queue) from awa.deferred_jobs d
    union all
    select (select min(d.queue) from awa.deferred_jobs d where d.queue > q.name) from q where q.name is not null
  )
  select q.name from q where q.name is not null
$$;

create function awa.finished_queues() returns setof text
language sql stable
as $$
  with recursive q(name) as (
    select min(f.queue) from awa.finished_jobs f
    union all
    select (select min(f.queue) from awa.finished_jobs f where f.queue > q.name) from q where q.name is not null
  )
  select q.name from q where q.name is not null
$$;

create function awa.dlq_queues() returns setof text
language sql stable
as $$
  with recursive q(name) as (
    select min(e.queue) from awa.dlq_entries e
    union all
    select (select min(e.queue) from awa.dlq_entries e where e.queue > q.name) from q where q.name is not null
  )
  select q.name from q where q.name is not null
$$;

-- Depth. All of it reads one snapshot: that of the statement that asks.

-- What a lane's newest cursor row has not consumed: the rows beyond it, and those of transactions that it knew to be
-- pending. Every tombstone stands for one such row, or for one that is consumed and not counted here.
create function awa.lane_depth(
  p_lane_id bigint,
  p_cursor_pos bigint,
  p_xids xid8[],
  p_afters bigint[],
  out waiting bigint,
  out oldest timestamptz -- since when who has waited longest among the first thousand in line could have run
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_late bigint;
  v_late_oldest timestamptz;
begin
  select
    (select count(r.pos) from awa.ready_entries r where r.lane_id = p_lane_id and r.pos > p_cursor_pos)
      - (select count(t.pos) from awa.tombstones t where t.lane_id = p_lane_id and t.pos > p_cursor_pos),
    (
      select min(greatest(h.run_at, h.created_at))
      from (
        select r.run_at, r.created_at from awa.ready_entries r
        where r.lane_id = p_lane_id and r.pos > p_cursor_pos
          and not exists (
            select from awa.tombstones t where t.slot = r.slot and t.lane_id = p_lane_id and t.pos = r.pos
          )
        order by r.pos limit 1000
      ) h
    )
  into waiting, oldest;
  if p_xids is not null then
    select count(r.pos), min(greatest(r.run_at, r.created_at)) into v_late, v_late_oldest
    from unnest(p_xids, p_afters) p(xid, after)
    cross join lateral (
      select r.slot, r.pos, r.run_at, r.created_at from awa.ready_entries r
      where r.lane_id = p_lane_id and r.xid = p.xid and r.pos > p.after and r.pos <= p_cursor_pos
      offset 0 -- or all that the cursor has passed may be read
    ) r
    where not exists (
      select from awa.tombstones t where t.slot = r.slot and t.lane_id = p_lane_id and t.pos = r.pos
    );
    waiting := waiting + v_late;
    oldest := least(oldest, v_late_oldest);
  end if;
end
$$;

-- What the claims came to whose rows are in a slot.
create function awa.slot_attempts(p_slot smallint)
returns table (lane_id bigint, running bigint, completed bigint)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_nestloop = off -- a session that planned when there were few batches would read all for each of them
set jit = off
as $$
begin
  return query
  select b.lane_id, sum(b.n - coalesce(k.closed, 0))::bigint, coalesce(sum(k.completed), 0)::bigint
  from awa.claim_batches b
  left join (
    select c.batch_id, sum(c.n) as closed, sum(c.n) filter (where c.act = 'complete') as completed
    from awa.closures c
    where c.slot = p_slot
    group by c.batch_id
  ) k on k.batch_id = b.batch_id
  where b.slot = p_slot
  group by b.lane_id;
end
$$;

-- What the claims of these lanes, or of all when null, came to, a row or several a lane. Slots whose rows are all closed
-- have it written down. What the log has let go of runs still.
create function awa.lane_attempts(p_lanes bigint[])
returns table (lane_id bigint, running bigint, completed bigint)
language sql stable
as $$
  select a.lane_id, a.running, a.completed
  from (
    select h.key::bigint as lane_id, 0 as running, h.value::bigint as completed
    from awa.slots s cross join lateral jsonb_each_text(s.completed) h
    where not exists (select from awa.slot_strays n where n.slot = s.slot)
    union all
    select o.*
    from (
      select s.slot from awa.slots s where s.ring <> 'lease' and s.completed is null
      union
      select n.slot from awa.slot_strays n
    ) s
    cross join lateral awa.slot_attempts(s.slot) o
    union all
    select (x.entry ->> 'lane_id')::bigint, 1, 0 from awa.leases x where x.entry is not null
  ) a
  where p_lanes is null or a.lane_id = any (p_lanes)
$$;

-- How many jobs of a queue, or of every queue that is known when null, are in each state. `failed` contains `dead`, the
-- dead letters. `lag_ms`: how long the oldest of those next in line waits, null when nothing waits.
create function awa.queue_depths(p_queue text, p_now timestamptz)
returns table (
  queue text,
  scheduled bigint,
  available bigint,
  running bigint,
  completed bigint,
  retryable bigint,
  failed bigint,
  cancelled bigint,
  dead bigint,
  lag_ms float8,
  paused_at timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
  return query
  with lane as materialized (
    select distinct on (l.lane_id) l.lane_id, l.queue from awa.lanes l where p_queue is null or l.queue = p_queue
  ),
  waiting as materialized (
    select l.queue, sum(d.waiting)::bigint as available, min(d.oldest) as oldest
    from lane l
    left join lateral (
      select b.cursor_pos, b.pending_xids, b.pending_after
      from awa.claim_batches b
      where b.lane_id = l.lane_id and b.cursor_pos is not null
      order by -b.batch_id limit 1
    ) c on true
    cross join lateral awa.lane_depth(l.lane_id, coalesce(c.cursor_pos, 0), c.pending_xids, c.pending_after) d
    group by l.queue
  ),
  attempted as materialized (
    select l.queue, sum(a.running)::bigint as running, sum(a.completed)::bigint as completed
    from awa.lane_attempts(case when p_queue is null then null else array(select n.lane_id from lane n) end) a
    join lane l on l.lane_id = a.lane_id
    group by l.queue
  ),
  name as (
    select p_queue as queue where p_queue is not null
    union select l.queue from lane l
    union select awa.deferred_queues() where p_queue is null
    union select awa.finished_queues() where p_queue is null
    union select awa.dlq_queues() where p_queue is null
    union select q.name from awa/*control*/.queues q where p_queue is null
  )
  select
    n.queue,
    (select count(*) from awa.deferred_jobs d where d.queue = n.queue and d.state = 'scheduled'),
    coalesce(w.available, 0),
    coalesce(a.running, 0),
    coalesce(a.completed, 0)
      + (select count(*) from awa.finished_jobs f where f.queue = n.queue and f.state = 'completed'),
    (select count(*) from awa.deferred_jobs d where d.queue = n.queue and d.state = 'retryable'),
    (select count(*) from awa.finished_jobs f where f.queue = n.queue and f.state = 'failed') + e.dead,
    (select count(*) from awa.finished_jobs f where f.queue = n.queue and f.state = 'cancelled'),
    e.dead,
    case when w.oldest is not null then
      greatest(date_part('epoch', coalesce(p_now, clock_timestamp()) - w.oldest) * 1000, 0)
    end,
    q.paused_at
  from name n
  left join waiting w on w.queue = n.queue
  left join attempted a on a.queue = n.queue
  left join awa/*control*/.queues q on q.name = n.queue
  cross join lateral (select count(*) as dead from awa.dlq_entries e where e.queue = n.queue) e
  order by n.queue;
end
$$;

revoke execute on function awa.queue_depths(text, timestamptz) from public;

-- Drain. What waited when it began is cancelled; what comes later is not its business, or it would never end where jobs
-- come faster than it works.

-- Cancels up to p_limit scheduled and retryable jobs that were there when p_bound, a position, was the last one given
-- out; null takes the bound now. A job that somebody promotes meanwhile is waited for: then it is found in the log.
create function awa.drain_deferred(
  p_queue text,
  p_bound bigint,
  p_limit integer,
  p_now timestamptz,
  out cancelled integer,
  out bound bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_jobs awa.successor[];
begin
  perform awa.assert_read_committed();
  perform set_config('lock_timeout', '2s', true);
  drain_deferred.bound := coalesce(p_bound, (select s.last_value from awa.pos_seq s));
  with gone as (
    delete from awa.deferred_jobs d
    where d.job_id in (
      select j.job_id from awa.deferred_jobs j
      where j.queue = p_queue and j.job_id <= drain_deferred.bound
      order by j.run_at, j.job_id
      limit p_limit
      for update
    )
    returning d.*
  )
  select array_agg((
    g.job_id, 'cancelled', g.run_at, g.created_at, g.attempted_at, g.run_lease, g.priority, g.shard, g.attempt,
    g.max_attempts, g.queue, g.kind, g.args, g.envelope, null
  )::awa.successor)
  into v_jobs
  from gone g;
  cancelled := coalesce(cardinality(v_jobs), 0);
  if cancelled > 0 then
    perform awa.place(v_jobs, v_now);
  end if;
end
$$;

revoke execute on function awa.drain_deferred(text, bigint, integer, timestamptz) from public;

-- Cancels up to p_limit jobs that wait in the log at positions after p_after, and were there when p_bound was the last one
-- given out; null takes the bound now. Under the locks of the queue's lanes the newest cursor rows say which those are.
create function awa.drain_ready(
  p_queue text,
  p_after bigint,
  p_bound bigint,
  p_limit integer,
  p_now timestamptz,
  out cancelled integer,
  out bound bigint,
  out last bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_bound constant bigint := coalesce(p_bound, (select s.last_value from awa.pos_seq s));
  v_lanes constant bigint[] := awa.lock_queue(p_queue, '{}');
  v_rows awa.ready_entries[];
begin
  -- A statement after the locks: what the last claim took is seen to be taken.
  v_rows := array(
    select w.entry
    from (select distinct on (n.lane_id) n.* from awa.lanes n where n.lane_id = any (v_lanes)) l
    left join lateral (
      select b.cursor_pos, b.pending_xids, b.pending_after
      from awa.claim_batches b
      where b.lane_id = l.lane_id and b.cursor_pos is not null
      order by -b.batch_id limit 1
    ) c on true
    cross join lateral (
      (
        select r.pos, r as entry
        from awa.ready_entries r
        where r.lane_id = l.lane_id and r.pos > greatest(c.cursor_pos, p_after, 0) and r.pos <= v_bound
          and not exists (
            select from awa.tombstones t where t.slot = r.slot and t.lane_id = r.lane_id and t.pos = r.pos
          )
        order by r.pos limit p_limit
      )
      union all
      (
        select r.pos, r.entry
        from unnest(c.pending_xids, c.pending_after) p(xid, after)
        cross join lateral (
          select r.slot, r.lane_id, r.pos, r as entry from awa.ready_entries r
          where r.lane_id = l.lane_id and r.xid = p.xid
            and r.pos > greatest(p.after, p_after) and r.pos <= least(c.cursor_pos, v_bound)
          offset 0
        ) r
        where not exists (
          select from awa.tombstones t where t.slot = r.slot and t.lane_id = r.lane_id and t.pos = r.pos
        )
        order by r.pos limit p_limit
      )
    ) w
    order by w.pos limit p_limit
  );
  cancelled := cardinality(v_rows);
  drain_ready.bound := v_bound;
  drain_ready.last := v_rows[cardinality(v_rows)].pos;
  if cancelled = 0 then
    return;
  end if;
  perform awa.give_up(
    array(
      select (r.job_id, 'log', 'available', r.slot, r.lane_id, r.pos, null, null, null, null, null)::awa.job_home
      from unnest(v_rows) r
    ),
    v_now
  );
  perform awa.place(
    array(
      select (
        r.job_id, 'cancelled', r.run_at, r.created_at, null, r.run_lease, l.priority, l.shard, r.attempt,
        r.max_attempts, l.queue, r.kind, r.args, r.envelope, null
      )::awa.successor
      from unnest(v_rows) r
      cross join lateral (select * from awa.lanes n where n.lane_id = r.lane_id limit 1) l
    ),
    v_now
  );
end
$$;

revoke execute on function awa.drain_ready(text, bigint, bigint, integer, timestamptz) from public;
