-- schema: engine
-- Reading jobs one by one and page by page, at a cost that does not grow with the history that is kept.
--
-- All functions are stable: everything in one answer is of one snapshot.

create function awa.job(p_id bigint) returns setof awa/*control*/.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off -- an index has the order: a session that plans late must not read all to sort it
set enable_hashjoin = off
set enable_mergejoin = off
set max_parallel_workers_per_gather = 0
set jit = off
as $$
begin
  return query
  select
    j.id, j.kind, j.queue, j.args, j.state, j.priority, j.attempt, j.max_attempts, j.run_lease, j.run_at, j.attempted_at,
    j.heartbeat_at, j.deadline_at, j.finalized_at, j.created_at, j.errors, j.metadata, j.tags, j.progress,
    j.ordering_key
  from awa.locate(array[p_id]) h
  cross join lateral (
    select * from awa.log_job_rows r where r.slot = h.slot and r.lane_id = h.lane_id and r.pos = h.pos limit 1
  ) j
  where h.home = 'log';
  if not found then
    return query
    select * from awa.evicted_job_rows e where e.id = p_id
    union all
    select * from awa.deferred_job_rows d where d.id = p_id
    union all
    select * from awa.finished_job_rows f where f.id = p_id
    union all
    select * from awa.dlq_job_rows q where q.id = p_id;
  end if;
end
$$;

revoke execute on function awa.job(bigint) from public;

-- A place in the log where a job may stand.
create type awa.appearance as (slot smallint, lane_id bigint, pos bigint, job_id bigint);

create function awa.has_tag(p_envelope jsonb, p_tag text) returns boolean
language sql immutable parallel safe
as $$
  select p_tag is null or coalesce(p_envelope -> 'tags' ? p_tag, false)
$$;

-- The waiting jobs of some lanes, newest id first: what their cursors have not consumed.
create function awa.waiting_page(p_lanes bigint[], p_kind text, p_tag text, p_before bigint, p_limit integer)
returns setof awa.appearance
language plpgsql stable
as $$
begin
  return query
  select w.slot, w.lane_id, w.pos, w.job_id
  from unnest(p_lanes) l(lane_id)
  left join lateral (
    select b.cursor_pos, b.pending_xids, b.pending_after
    from awa.claim_batches b
    where b.lane_id = l.lane_id and b.cursor_pos is not null
    order by -b.batch_id limit 1
  ) c on true
  left join awa.tombstoned_lanes k on k.lane_id = l.lane_id
  cross join lateral (
    (
      select r.slot, r.lane_id, r.pos, r.job_id
      from awa.ready_entries r
      left join lateral (
        select true as is_dead from awa.tombstones t
        where k.lane_id is not null and t.slot = r.slot and t.lane_id = r.lane_id and t.pos = r.pos limit 1
      ) t on true
      where r.lane_id = l.lane_id and r.pos > coalesce(c.cursor_pos, 0) and r.pos < p_before and r.job_id = r.pos
        and (p_kind is null or r.kind = p_kind) and awa.has_tag(r.envelope, p_tag) and t.is_dead is null
      order by r.pos desc limit p_limit
    )
    union all
    -- Retried, promoted and moved jobs.
    (
      select r.slot, r.lane_id, r.pos, r.job_id
      from awa.ready_entries r
      left join lateral (
        select true as is_dead from awa.tombstones t
        where k.lane_id is not null and t.slot = r.slot and t.lane_id = r.lane_id and t.pos = r.pos limit 1
      ) t on true
      where r.lane_id = l.lane_id and r.pos > coalesce(c.cursor_pos, 0) and r.job_id <> r.pos and r.job_id < p_before
        and (p_kind is null or r.kind = p_kind) and awa.has_tag(r.envelope, p_tag) and t.is_dead is null
      order by r.job_id desc limit p_limit
    )
    union all
    -- Those the cursor has passed when their transactions were under way.
    (
      select r.slot, r.lane_id, r.pos, r.job_id
      from unnest(c.pending_xids, c.pending_after) p(xid, after)
      cross join lateral (
        -- Apart, or it is planned to read all that the cursor has passed.
        select r.* from awa.ready_entries r
        where r.lane_id = l.lane_id and r.xid = p.xid and r.pos > p.after and r.pos <= c.cursor_pos
        offset 0
      ) r
      where r.job_id < p_before and (p_kind is null or r.kind = p_kind) and awa.has_tag(r.envelope, p_tag)
        and not awa.is_tombstoned(r.slot, r.lane_id, r.pos)
      order by r.job_id desc limit p_limit
    )
  ) w
  order by w.job_id desc limit p_limit;
end
$$;

-- The running jobs of some lanes, newest id first: attempts with a lease, and those from the rescue's frontier on.
create function awa.running_page(p_lanes bigint[], p_kind text, p_tag text, p_before bigint, p_limit integer)
returns setof awa.appearance
language plpgsql stable
as $$
declare
  v_frontier constant bigint := (select max(f.batch_id) from awa.rescue_frontier f);
begin
  return query
  with recent as materialized (
    select b.slot, b.batch_id, b.n
    from awa.claim_batches b
    cross join lateral (
      select sum(k.n) as n from awa.closures k where k.slot = b.slot and k.batch_id = b.batch_id
    ) k
    where b.batch_id >= v_frontier and b.lane_id = any (p_lanes) and coalesce(k.n, 0) < b.n
  ),
  open as materialized (
    select r.slot, r.batch_id, m.member
    from recent r
    cross join lateral (
      select array_agg(u.member) as members
      from awa.closures k cross join lateral unnest(k.members) u(member)
      where k.slot = r.slot and k.batch_id = r.batch_id
    ) k
    cross join lateral generate_series(1, r.n) m(member)
    where k.members is null or m.member <> all (k.members)
    union
    select x.slot, x.batch_id, x.member from awa.leases x where x.entry is null
  )
  select r.slot, r.lane_id, r.pos, r.job_id
  from open o
  cross join lateral (
    select b.lane_id, awa.member_pos(b, o.member) as pos
    from awa.claim_batches b where b.slot = o.slot and b.batch_id = o.batch_id limit 1
  ) b
  cross join lateral (
    select * from awa.ready_entries r where r.slot = o.slot and r.lane_id = b.lane_id and r.pos = b.pos limit 1
  ) r
  where b.lane_id = any (p_lanes) and r.job_id < p_before
    and (p_kind is null or r.kind = p_kind) and awa.has_tag(r.envelope, p_tag)
  order by r.job_id desc limit p_limit;
end
$$;

-- Appearances in some lanes, newest id first, whatever became of them. Of a job all or none: more than p_limit, if it
-- has several. p_passed: only those at or below the lanes' cursors.
create function awa.appearances(
  p_lanes bigint[],
  p_kind text,
  p_tag text,
  p_before bigint,
  p_limit integer,
  p_passed boolean
) returns setof awa.appearance
language plpgsql stable
as $$
begin
  return query
  select a.slot, a.lane_id, a.pos, a.job_id
  from (
    select r.slot, r.lane_id, r.pos, r.job_id
    from unnest(p_lanes) l(lane_id)
    left join lateral (
      select b.cursor_pos from awa.claim_batches b
      where p_passed and b.lane_id = l.lane_id and b.cursor_pos is not null
      order by -b.batch_id limit 1
    ) c on true
    cross join lateral (
      select r.slot, r.lane_id, r.pos, r.job_id
      from awa.ready_entries r
      where r.lane_id = l.lane_id
        and r.pos < case when p_passed then least(p_before, coalesce(c.cursor_pos, 0) + 1) else p_before end
        and r.job_id = r.pos
        and (p_kind is null or r.kind = p_kind) and awa.has_tag(r.envelope, p_tag)
      order by r.pos desc limit p_limit
    ) r
    union all
    (
      select r.slot, r.lane_id, r.pos, r.job_id
      from awa.ready_entries r
      where r.job_id <> r.pos and r.job_id < p_before and r.lane_id = any (p_lanes)
        and (p_kind is null or r.kind = p_kind) and awa.has_tag(r.envelope, p_tag)
      order by r.job_id desc fetch first p_limit rows with ties
    )
  ) a
  order by a.job_id desc fetch first p_limit rows with ties;
end
$$;

-- The jobs that stand at these places of the log, in this state if one is given.
create function awa.jobs_at(p_places awa.appearance[], p_state awa/*control*/.job_state)
returns setof awa/*control*/.jobs
language plpgsql stable
as $$
begin
  return query
  select
    j.id, j.kind, j.queue, j.args, j.state, j.priority, j.attempt, j.max_attempts, j.run_lease, j.run_at, j.attempted_at,
    j.heartbeat_at, j.deadline_at, j.finalized_at, j.created_at, j.errors, j.metadata, j.tags, j.progress,
    j.ordering_key
  from unnest(p_places) a
  cross join lateral (
    select * from awa.log_job_rows r where r.slot = a.slot and r.lane_id = a.lane_id and r.pos = a.pos limit 1
  ) j
  where p_state is null or j.state = p_state;
end
$$;

-- Jobs whose home is the log, newest id first.
create function awa.log_page(
  p_state awa/*control*/.job_state,
  p_kind text,
  p_queue text,
  p_tag text,
  p_before bigint,
  p_limit integer
) returns setof awa/*control*/.jobs
language plpgsql stable
as $$
declare
  v_lanes constant bigint[] := array(
    select distinct l.lane_id from awa.lanes l where p_queue is null or l.queue = p_queue
  );
  v_before bigint := p_before;
  v_chunk integer := p_limit;
  v_left integer := p_limit;
  v_places awa.appearance[];
  v_found integer;
begin
  if p_state in ('available', 'running') then
    v_places := case p_state
      when 'available'
        then array(select a from awa.waiting_page(v_lanes, p_kind, p_tag, p_before, p_limit) a)
      else array(select a from awa.running_page(v_lanes, p_kind, p_tag, p_before, p_limit) a)
    end;
    return query select * from awa.jobs_at(v_places, p_state);
    return;
  end if;
  -- Appearances whose job stands elsewhere are passed over, some more each time.
  while v_left > 0 loop
    v_places := array(
      select a from awa.appearances(v_lanes, p_kind, p_tag, v_before, v_chunk, p_state is not null) a
    );
    return query
    select * from awa.jobs_at(v_places, p_state) j order by j.id desc limit v_left;
    get diagnostics v_found = row_count;
    exit when cardinality(v_places) < v_chunk;
    v_left := v_left - v_found;
    v_before := (select min(a.job_id) from unnest(v_places) a);
    v_chunk := least(2 * v_chunk, 10000);
  end loop;
end
$$;

-- Up to p_limit jobs with ids below p_before, newest first, that match everything that is not null.
--
-- A page of a state, of a queue, or of all jobs reads about as many rows as it answers. A kind or a tag is looked for from
-- the newest job down, however long that takes.
create function awa.list_jobs(
  p_state awa/*control*/.job_state,
  p_kind text,
  p_queue text,
  p_tag text,
  p_before bigint,
  p_limit integer
) returns setof awa/*control*/.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off -- an index has the order: a session that plans late must not read all to sort it
set enable_hashjoin = off
set enable_mergejoin = off
set max_parallel_workers_per_gather = 0
set jit = off
as $$
declare
  v_before constant bigint := coalesce(p_before, 9223372036854775807);
  v_limit constant integer := least(greatest(p_limit, 1), 1000);
  v_deferred constant boolean := p_state is null or p_state in ('scheduled', 'retryable');
  v_finished constant boolean := p_state is null or p_state in ('completed', 'failed', 'cancelled');
  v_log constant boolean := p_state is null or p_state in ('available', 'running', 'completed');
begin
  -- Where a state is given its index is to be used, where none is that of the ids.
  return query
  select j.* from (
    select * from awa.log_page(p_state, p_kind, p_queue, p_tag, v_before, v_limit) where v_log
    union all
    (
      select * from awa.evicted_job_rows e
      where (p_state is null or p_state = 'running') and e.id < v_before
        and (p_kind is null or e.kind = p_kind) and (p_queue is null or e.queue = p_queue)
        and (p_tag is null or p_tag = any (e.tags))
      order by e.id desc limit v_limit
    )
    union all
    (
      select * from awa.deferred_job_rows d
      where p_state is null and d.id < v_before
        and (p_kind is null or d.kind = p_kind) and (p_queue is null or d.queue = p_queue)
        and (p_tag is null or p_tag = any (d.tags))
      order by d.id desc limit v_limit
    )
    union all
    (
      select * from awa.deferred_job_rows d
      where v_deferred and d.state = p_state and d.id < v_before
        and (p_kind is null or d.kind = p_kind) and (p_queue is null or d.queue = p_queue)
        and (p_tag is null or p_tag = any (d.tags))
      order by d.id desc limit v_limit
    )
    union all
    (
      select * from awa.finished_job_rows f
      where p_state is null and f.id < v_before
        and (p_kind is null or f.kind = p_kind) and (p_queue is null or f.queue = p_queue)
        and (p_tag is null or p_tag = any (f.tags))
      order by f.id desc limit v_limit
    )
    union all
    (
      select * from awa.finished_job_rows f
      where v_finished and f.state = p_state and f.id < v_before
        and (p_kind is null or f.kind = p_kind) and (p_queue is null or f.queue = p_queue)
        and (p_tag is null or p_tag = any (f.tags))
      order by f.id desc limit v_limit
    )
    union all
    (
      select * from awa.dlq_job_rows q
      where (p_state is null or p_state = 'failed') and q.id < v_before
        and (p_kind is null or q.kind = p_kind) and (p_queue is null or q.queue = p_queue)
        and (p_tag is null or p_tag = any (q.tags))
      order by q.id desc limit v_limit
    )
  ) j
  order by j.id desc limit v_limit;
end
$$;

revoke execute on function awa.list_jobs(awa/*control*/.job_state, text, text, text, bigint, integer) from public;
