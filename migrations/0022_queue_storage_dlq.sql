-- schema: engine
-- Dead letters: looking at them, moving jobs there, letting them run again, throwing them away. What is done in bulk is
-- done in pieces, each of which tells where the next begins.

-- The newest first, older than (p_before_at, p_before_id) if that is given. A filter that is null accepts everything.
create function awa.dlq_list(
  p_kind text,
  p_queue text,
  p_tag text,
  p_before_at timestamptz,
  p_before_id bigint,
  p_limit integer
) returns setof awa.dlq_entries
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan -- a filter that is not there is not planned for
as $$
begin
  return query
  select e.*
  from awa.dlq_entries e
  where (p_kind is null or e.kind = p_kind)
    and (p_queue is null or e.queue = p_queue)
    and (p_tag is null or e.envelope -> 'tags' ? p_tag)
    and (e.dlq_at, e.job_id) < (coalesce(p_before_at, 'infinity'), coalesce(p_before_id, 9223372036854775807))
  order by e.dlq_at desc, e.job_id desc
  limit least(greatest(p_limit, 1), 1000);
end
$$;

revoke execute on function awa.dlq_list(text, text, text, timestamptz, bigint, integer) from public;

create function awa.dlq_get(p_job_id bigint) returns setof awa.dlq_entries
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select e.* from awa.dlq_entries e where e.job_id = p_job_id
$$;

revoke execute on function awa.dlq_get(bigint) from public;

-- How many dead letters there are in each queue that has some, the fullest first.
create function awa.dlq_depth() returns table (queue text, n bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select q.name, d.n
  from awa.dlq_queues() q(name)
  cross join lateral (select count(*) as n from awa.dlq_entries e where e.queue = q.name) d
  order by d.n desc, q.name
$$;

revoke execute on function awa.dlq_depth() from public;

create function awa.dlq_depth_of(p_queue text) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select count(*) from awa.dlq_entries e where e.queue = p_queue
$$;

revoke execute on function awa.dlq_depth_of(text) from public;

create function awa.dlq_chunk_size(p_limit integer) returns integer
language sql immutable
as $$
  select least(greatest(p_limit, 1), 10000)
$$;

-- Moves failed jobs among the dead letters, the longest failed first: one, or those of a kind and a queue, null for any,
-- that had failed at p_until.
create function awa.dlq_move(
  p_job_id bigint,
  p_kind text,
  p_queue text,
  p_reason text,
  p_until timestamptz,
  p_limit integer,
  p_now timestamptz
) returns setof awa.dlq_entries
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
  if char_length(p_reason) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'reason: must have 1 to 200 characters';
  end if;
  return query
  with moved as (
    delete from awa.finished_jobs f
    where f.job_id in (
      select j.job_id from awa.finished_jobs j
      where j.state = 'failed'
        and (p_job_id is null or j.job_id = p_job_id)
        and (p_kind is null or j.kind = p_kind)
        and (p_queue is null or j.queue = p_queue)
        and (p_until is null or j.finished_at <= p_until)
      order by j.finished_at, j.job_id
      limit awa.dlq_chunk_size(p_limit)
      for update
    ) and f.state = 'failed'
    returning f.*
  )
  insert into awa.dlq_entries (
    job_id, dlq_at, reason, finished_at, run_at, created_at, attempted_at, run_lease, priority, shard, attempt,
    max_attempts, queue, kind, args, envelope
  )
  select
    m.job_id, date_trunc('milliseconds', coalesce(p_now, clock_timestamp())), p_reason, m.finished_at, m.run_at,
    m.created_at, m.attempted_at, m.run_lease, m.priority, m.shard, m.attempt, m.max_attempts, m.queue, m.kind, m.args,
    m.envelope
  from moved m
  returning *;
end
$$;

revoke execute on function awa.dlq_move(bigint, text, text, text, timestamptz, integer, timestamptz) from public;

-- The next dead letters, the oldest first, after (p_after_at, p_after_id) and not younger than p_until, locked.
create function awa.dlq_chunk(
  p_kind text,
  p_queue text,
  p_tag text,
  p_after_at timestamptz,
  p_after_id bigint,
  p_until timestamptz,
  p_limit integer
) returns setof awa.dlq_entries
language plpgsql
set plan_cache_mode = force_custom_plan
as $$
begin
  return query
  select e.*
  from awa.dlq_entries e
  where (p_kind is null or e.kind = p_kind)
    and (p_queue is null or e.queue = p_queue)
    and (p_tag is null or e.envelope -> 'tags' ? p_tag)
    and (e.dlq_at, e.job_id) > (coalesce(p_after_at, '-infinity'), coalesce(p_after_id, 0))
    and e.dlq_at <= p_until
  order by e.dlq_at, e.job_id
  limit awa.dlq_chunk_size(p_limit)
  for update;
end
$$;

-- Lets a dead letter run again: at once, or at p_run_at if that is later. Its attempts and its progress begin anew; its
-- history stays, and so does its run lease, which never falls: a worker that still holds the attempt before must not end
-- the one that follows. Null priority or queue: as before. Answers where the job is now, or nothing when it was none.
-- One whose unique key another job has stays where it is: then only `holder`, that job, and `kind` are answered; without a
-- holder, who has the key was not to be found out in time.
create function awa.dlq_retry(
  p_job_id bigint,
  p_run_at timestamptz,
  p_priority integer,
  p_queue text,
  p_now timestamptz
) returns table (job awa.successor, holder bigint, kind text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_problem constant text := awa.job_problem('dlq', p_queue, p_priority, null, p_run_at, null, null);
  v_entry awa.dlq_entries;
  v_job awa.successor;
begin
  if v_problem is not null then
    raise exception using errcode = '22023', message = v_problem;
  end if;
  select e.* into v_entry from awa.dlq_entries e where e.job_id = p_job_id for update;
  if not found then
    return;
  end if;
  v_job := awa.revived(v_entry, p_run_at, p_priority, p_queue, v_now);
  dlq_retry.kind := v_entry.kind;
  select c.holder into dlq_retry.holder from awa.key_conflicts(array[v_job]) c;
  if not found then
    delete from awa.dlq_entries e where e.job_id = p_job_id;
    perform awa.place(array[v_job], v_now);
    dlq_retry.job := v_job;
  end if;
  return next;
end
$$;

revoke execute on function awa.dlq_retry(bigint, timestamptz, integer, text, timestamptz) from public;

create function awa.revived(
  p_entry awa.dlq_entries,
  p_run_at timestamptz,
  p_priority integer,
  p_queue text,
  p_now timestamptz
) returns awa.successor
language plpgsql
as $$
declare
  v_job awa.successor;
begin
  v_job.job_id := p_entry.job_id;
  v_job.state := case when p_run_at > p_now then 'scheduled' else 'available' end;
  v_job.run_at := case when p_run_at > p_now then p_run_at else p_now end;
  v_job.created_at := p_entry.created_at;
  v_job.attempted_at := p_entry.attempted_at;
  v_job.run_lease := p_entry.run_lease;
  v_job.priority := coalesce(p_priority, p_entry.priority);
  v_job.shard := case when p_queue is null or p_queue = p_entry.queue then p_entry.shard else 0 end;
  v_job.attempt := 0;
  v_job.max_attempts := p_entry.max_attempts;
  v_job.queue := coalesce(p_queue, p_entry.queue);
  v_job.kind := p_entry.kind;
  v_job.args := p_entry.args;
  v_job.envelope := nullif(p_entry.envelope - 'progress', '{}');
  return v_job;
end
$$;

-- A piece of a bulk retry. Answers how many were seen and how many run again, and the last one seen. Those whose unique key
-- another job has stay.
create function awa.dlq_retry_chunk(
  p_kind text,
  p_queue text,
  p_tag text,
  p_after_at timestamptz,
  p_after_id bigint,
  p_until timestamptz,
  p_limit integer,
  p_now timestamptz,
  out seen integer,
  out done integer,
  out last_at timestamptz,
  out last_id bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_entries constant awa.dlq_entries[] := array(
    select e from awa.dlq_chunk(p_kind, p_queue, p_tag, p_after_at, p_after_id, p_until, p_limit) e
  );
  v_jobs awa.successor[];
  v_stay bigint[];
begin
  seen := cardinality(v_entries);
  last_at := v_entries[cardinality(v_entries)].dlq_at;
  last_id := v_entries[cardinality(v_entries)].job_id;
  v_jobs := array(
    select awa.revived(e, null, null, null, v_now) from unnest(v_entries) e order by e.dlq_at, e.job_id
  );
  v_stay := array(select c.job_id from awa.key_conflicts(v_jobs) c);
  v_jobs := array(select j from unnest(v_jobs) j where j.job_id <> all (v_stay));
  done := cardinality(v_jobs);
  if done > 0 then
    delete from awa.dlq_entries e where e.job_id = any (select j.job_id from unnest(v_jobs) j);
    perform awa.place(v_jobs, v_now);
  end if;
end
$$;

revoke execute on function awa.dlq_retry_chunk(
  text, text, text, timestamptz, bigint, timestamptz, integer, timestamptz
) from public;

-- Where every dead letter that is thrown away goes through: what it held, goes with it. Answers how many there were.
create function awa.dlq_forget(p_job_ids bigint[]) returns integer
language plpgsql
as $$
declare
  v_gone integer;
begin
  delete from awa.dlq_entries e where e.job_id = any (p_job_ids);
  get diagnostics v_gone = row_count;
  perform awa.release_unique(p_job_ids);
  return v_gone;
end
$$;

create function awa.dlq_purge(p_job_id bigint) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp
as $$
  select awa.dlq_forget(array[p_job_id]) > 0
$$;

revoke execute on function awa.dlq_purge(bigint) from public;

-- A piece of a purge, answered like one of a retry.
create function awa.dlq_purge_chunk(
  p_kind text,
  p_queue text,
  p_tag text,
  p_after_at timestamptz,
  p_after_id bigint,
  p_until timestamptz,
  p_limit integer,
  out seen integer,
  out done integer,
  out last_at timestamptz,
  out last_id bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids bigint[];
begin
  select array_agg(e.job_id), count(*), (array_agg(e.dlq_at order by e.dlq_at desc, e.job_id desc))[1],
    (array_agg(e.job_id order by e.dlq_at desc, e.job_id desc))[1]
  into v_ids, seen, last_at, last_id
  from awa.dlq_chunk(p_kind, p_queue, p_tag, p_after_at, p_after_id, p_until, p_limit) e;
  done := awa.dlq_forget(v_ids);
end
$$;

revoke execute on function awa.dlq_purge_chunk(
  text, text, text, timestamptz, bigint, timestamptz, integer
) from public;

-- Throws away up to p_limit dead letters that were kept for long enough, the oldest of each queue first; answers how
-- many. What was said of a queue comes before p_retention_ms.
create function awa.dlq_cleanup(p_retention_ms bigint, p_limit integer, p_now timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_default constant interval := awa.retention('retention', p_retention_ms);
begin
  return awa.dlq_forget(array(
    select e.job_id
    from awa.dlq_queues() q(name)
    left join awa/*control*/.queues c on c.name = q.name
    cross join lateral (
      select e.job_id from awa.dlq_entries e
      where e.queue = q.name and e.dlq_at < v_now - coalesce(c.dlq_retention, v_default)
      order by e.dlq_at, e.job_id
      limit awa.dlq_chunk_size(p_limit)
    ) e
    limit awa.dlq_chunk_size(p_limit)
  ));
end
$$;

revoke execute on function awa.dlq_cleanup(bigint, integer, timestamptz) from public;
