-- schema: engine
-- Enqueue: one call for one or ten thousand jobs, inside the caller's transaction, at any isolation level, without a
-- lock that another producer could wait for.

-- NOTIFY takes a cluster-wide lock until commit, so it is sent only when a dispatcher sleeps. A sleeping dispatcher
-- holds the queue's idle lock in share mode. Try and unlock are one expression: a cancel between two statements would
-- leak a session lock. Transaction locks would survive PREPARE and block the sleeper.
create function awa.sleeps(p_queue_key integer) returns boolean
language sql volatile
as $$
  select case
    when pg_try_advisory_lock(awa.lock_class('idle'), p_queue_key)
      then not pg_advisory_unlock(awa.lock_class('idle'), p_queue_key)
    else true
  end
$$;

-- `set local awa.wakeup = 'off'` keeps a transaction free of NOTIFY, which PREPARE TRANSACTION does not allow.
create function awa.notify(p_queue text) returns void
language plpgsql
as $$
begin
  if current_setting('awa.wakeup', true) is distinct from 'off' then
    perform pg_notify('awa:' || md5(/*schema*/'awa' || ':' || p_queue), '');
  end if;
end
$$;

-- Call it after the rows are written.
create function awa.wake(p_queue text) returns void
language plpgsql
as $$
begin
  if awa.sleeps(awa.lock_key(p_queue)) then
    perform awa.notify(p_queue);
  end if;
end
$$;

-- Adds a lane that is not visible yet. Another first producer may add it too.
create function awa.ensure_lane(p_lane_id bigint, p_queue text, p_priority smallint, p_shard smallint) returns void
language plpgsql
as $$
declare
  v_seen awa.lanes;
begin
  select * into v_seen from awa.lanes l where l.lane_id = p_lane_id limit 1;
  if not found then
    insert into awa.lanes (lane_id, queue, priority, shard) values (p_lane_id, p_queue, p_priority, p_shard);
  elsif (v_seen.queue, v_seen.priority, v_seen.shard) is distinct from (p_queue, p_priority, p_shard) then
    raise exception using
      errcode = 'AW003',
      message = format('queue %L, priority %s has the lane id of queue %L, priority %s',
        p_queue, p_priority, v_seen.queue, v_seen.priority),
      hint = 'Choose another queue name.';
  end if;
end
$$;

-- Apart from job_problem, which is inlined as long as it has no query in it.
create function awa.tags_problem(p_tags text[]) returns text
language sql immutable parallel safe
as $$
  select case
    when cardinality(p_tags) > 20 then 'tags: at most 20'
    when array_ndims(p_tags) > 1 or exists (
      select from unnest(p_tags) t where t is null or char_length(t) not between 1 and 200
    ) then 'tags: must have 1 to 200 characters each'
  end
$$;

-- The first thing wrong with a job of an enqueue call, as "field: reason", or null.
create function awa.job_problem(
  p_kind text,
  p_queue text,
  p_priority integer,
  p_max_attempts integer,
  p_run_at timestamptz,
  p_metadata jsonb,
  p_tags text[]
) returns text
language sql immutable parallel safe
as $$
  select case
    when p_kind is null or char_length(p_kind) not between 1 and 200 then 'kind: must have 1 to 200 characters'
    when char_length(p_queue) not between 1 and 200 then 'queue: must have 1 to 200 characters'
    when p_priority not between 1 and 4 then 'priority: must be 1 to 4'
    when p_max_attempts not between 1 and 1000 then 'max_attempts: must be 1 to 1000'
    when not isfinite(p_run_at) then 'run_at: must be a finite instant'
    when p_metadata is not null and jsonb_typeof(p_metadata) <> 'object' then 'metadata: must be an object'
    when p_tags is not null then awa.tags_problem(p_tags)
  end
$$;

-- When a job is due that is to wait for so long; null for no delay, and for one that is below 0 or above 100 years.
create function awa.due_at(p_now timestamptz, p_delay_ms float8) returns timestamptz
language sql stable parallel safe
as $$
  select case when p_delay_ms between 0 and 3155760000000 then p_now + p_delay_ms * interval '1 millisecond' end
$$;

-- What a job carries beside its payload; null when there is nothing, which is the common case.
create function awa.envelope(p_metadata jsonb, p_tags text[], p_errors jsonb, p_progress jsonb) returns jsonb
language sql stable parallel safe
as $$
  select case
    when p_metadata is null and p_tags is null and p_errors is null and p_progress is null then null
    else nullif(
      case when p_metadata is null or p_metadata = '{}' then '{}' else jsonb_build_object('metadata', p_metadata) end
        || case when cardinality(p_tags) > 0 then jsonb_build_object('tags', p_tags) else '{}' end
        || case when p_errors is null or p_errors = '[]' then '{}' else jsonb_build_object('errors', p_errors) end
        || case when p_progress is null then '{}' else jsonb_build_object('progress', p_progress) end,
      '{}'
    )
  end
$$;

-- p_ids: null, or what enqueue_unique has drawn: the position of each job, 0 for one that is left out.
create function awa.enqueue_many(p_xid xid8, p_jobs jsonb, p_now timestamptz, p_ids bigint[] default null) returns text
language plpgsql
as $$
declare
  v_slot smallint;
  v_ids text;
  v_problem text;
  v_queues text[];
  v_lanes bigint;
begin
  v_slot := awa.ready_slot();
  with spread as materialized (
    -- null when no queue has several shards
    select jsonb_object_agg(q.name, q.shards) as shards from awa/*control*/.queues q where q.shards > 1
  ),
  job as materialized (
    select
      j.ordinal, j.kind,
      coalesce(j.run_at, awa.due_at(p_now, j.delay_ms)) as run_at,
      coalesce(j.args, 'null') as args, -- a JSON null reads as SQL null here
      coalesce(j.queue, 'default') as queue,
      coalesce(j.priority, 2)::smallint as priority,
      coalesce(j.max_attempts, 25)::smallint as max_attempts,
      case
        when j."unique" is null then awa.with_ordering_key(awa.envelope(j.metadata, j.tags, null, null), j.ordering_key)
        else coalesce(awa.with_ordering_key(awa.envelope(j.metadata, j.tags, null, null), j.ordering_key), '{}')
          || jsonb_build_object('unique', j."unique")
      end as envelope,
      coalesce((s.shards ->> coalesce(j.queue, 'default'))::integer, 1) as shards,
      case when s.shards is not null then awa.ordering_hash(j.ordering_key) end as hash,
      coalesce(
        case when j."unique" is not null and p_ids is null then 'unique: jobs with a key go through enqueue_unique' end,
        case
          when j.delay_ms is not null and awa.due_at(p_now, j.delay_ms) is null then 'delay_ms: must be 0 to 100 years'
        end,
        awa.job_problem(
          j.kind, j.queue, j.priority, j.max_attempts, coalesce(j.run_at, awa.due_at(p_now, j.delay_ms), p_now),
          j.metadata, j.tags
        ),
        awa.ordering_key_problem(j.ordering_key)
      ) as problem
    from rows from (
      jsonb_to_recordset(p_jobs) as (
        kind text, args json, queue text, priority integer, max_attempts integer, run_at timestamptz,
        delay_ms float8, metadata jsonb, tags text[], ordering_key text, "unique" jsonb
      )
    ) with ordinality as j(
      kind, args, queue, priority, max_attempts, run_at, delay_ms, metadata, tags, ordering_key, "unique", ordinal
    )
    cross join spread s
    where p_ids is null or p_ids[j.ordinal] <> 0
  ),
  -- The ordering key decides on the shard; without one the position does, which goes round.
  positioned as materialized (
    select p.*, case when p.shards = 1 then 0 else mod(coalesce(p.hash, p.pos), p.shards) end::smallint as shard
    from (
      select j.*, coalesce(p_ids[j.ordinal], nextval('awa.pos_seq')) as pos
      from (select * from job where problem is null order by ordinal) j
      offset 0
    ) p
  ),
  lane as materialized (
    select l.*, awa.lane_id(l.queue, l.priority, l.shard) as lane_id
    from (
      select p.queue, p.priority, p.shard, bool_or(p.run_at is null or p.run_at <= p_now) as is_ready
      from positioned p
      group by p.queue, p.priority, p.shard
    ) l
  ),
  ready as (
    insert into awa.ready_entries (
      slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args, envelope
    )
    select
      v_slot, l.lane_id, p.pos, p_xid, p.pos, 0, 0, p.max_attempts, coalesce(p.run_at, p_now), p_now,
      p.kind, p.args, p.envelope
    from positioned p
    join lane l on l.queue = p.queue and l.priority = p.priority and l.shard = p.shard
    where p.run_at is null or p.run_at <= p_now
  ),
  deferred as (
    insert into awa.deferred_jobs (
      job_id, state, run_at, created_at, run_lease, priority, shard, attempt, max_attempts, queue, kind, args, envelope
    )
    select
      p.pos, 'scheduled', p.run_at, p_now, 0, p.priority, p.shard, 0, p.max_attempts, p.queue, p.kind, p.args, p.envelope
    from positioned p
    where p.run_at > p_now
  )
  select
    (select string_agg(p.pos::text, ',' order by p.ordinal) from positioned p),
    (
      select format('job %s: %s', j.ordinal - 1, j.problem)
      from job j where j.problem is not null order by j.ordinal limit 1
    ),
    (select array_agg(distinct l.queue) from lane l where l.is_ready),
    (select count(awa.ensure_lane(l.lane_id, l.queue, l.priority, l.shard)) from lane l)
  into v_ids, v_problem, v_queues, v_lanes;
  if v_problem is not null then
    raise exception using errcode = '22023', message = v_problem;
  end if;
  perform awa.settle(v_slot);
  -- Once a queue, after the rows are written.
  for i in 1..coalesce(cardinality(v_queues), 0) loop
    perform awa.wake(v_queues[i]);
  end loop;
  return coalesce(v_ids, '');
end
$$;

-- p_jobs: a JSON array of at most 10,000 objects with
--   kind text; args any JSON value; queue text 'default'; priority 1..4 (2); max_attempts 1..1000 (25);
--   run_at timestamp text, or delay_ms number counted from now, 0 to 100 years; metadata object; tags array of text;
--   ordering_key text of 1 to 200 characters.
-- p_now: the caller's clock, null for the database's.
-- Answers the ids in the order of the input, separated by commas, and the instant it took as now. A job whose run_at is
-- later than that is scheduled, every other one available.
create function awa.enqueue(p_jobs jsonb, p_now timestamptz default null, out ids text, out now timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  -- The transaction's id before its first position: whoever sees a position above ours knows our id to be pending.
  v_xid constant xid8 := pg_current_xact_id();
  v_jobs constant integer := case when jsonb_typeof(p_jobs) = 'array' then jsonb_array_length(p_jobs) end;
begin
  if v_jobs is null or v_jobs > 10000 then
    raise exception using errcode = '22023', message = 'jobs must be an array of at most 10000 objects';
  end if;
  enqueue.now := coalesce(p_now, clock_timestamp());
  enqueue.ids := awa.enqueue_many(v_xid, p_jobs, enqueue.now);
end
$$;

revoke execute on function awa.enqueue(jsonb, timestamptz) from public;

-- Plain jobs that differ in nothing but their payload: no metadata, no tags, to run now. Much cheaper than `enqueue`.
-- p_lane_id and p_queue_key are the caller's computations of lane_id(queue, priority, 0) and lock_key(queue): they are
-- checked where the session does not remember that they were right.

-- The answer of both: "<now, milliseconds since 1970> <ids, separated by commas>".
create function awa.enqueue_answer(p_now timestamptz, p_ids text) returns text
language sql stable
as $$
  select concat(floor(date_part('epoch', p_now) * 1000)::bigint, ' ', p_ids)
$$;

-- What a session remembers of the lane it used last, as the setting `awa.lane`: looking a lane up costs a tenth of an
-- enqueue. A setting goes with the transaction that made it when that rolls back, as the lane's row does, and the table
-- in it tells the schemas of one database apart, also one created anew. `awa.lanes` holds the same and the lanes, when
-- the queue has several shards.
create function awa.lane_note(p_lane_id bigint, p_queue text, p_queue_key integer, p_priority smallint) returns text
language sql volatile -- else it is not inlined
as $$
  select concat(
    'awa.lanes'::regclass::oid, ' ', awa.layout_version(), ' ', p_lane_id, ' ', p_priority, ' ', p_queue_key, ' ',
    p_queue
  )
$$;

-- The lanes over which plain jobs are spread, after all checks; for those whose one lane the session does not remember.
create function awa.plain_lanes(
  p_kind text,
  p_queue text,
  p_priority smallint,
  p_max_attempts smallint,
  p_lane_id bigint,
  p_queue_key integer,
  p_now timestamptz
) returns bigint[]
language plpgsql
as $$
declare
  v_problem constant text := awa.job_problem(p_kind, p_queue, p_priority, p_max_attempts, p_now, null, null);
  -- Before the number of shards is read: it may change in between.
  v_note constant text := awa.lane_note(p_lane_id, p_queue, p_queue_key, p_priority);
  v_noted constant text := current_setting('awa.lanes', true);
  v_settled constant boolean := awa.layout_settled();
  v_shards smallint;
  v_lanes bigint[];
begin
  if v_problem is not null then
    raise exception using errcode = '22023', message = format('job 0: %s', v_problem);
  end if;
  if starts_with(v_noted, v_note || '{') then
    return substr(v_noted, length(v_note) + 1)::bigint[];
  end if;
  if p_queue_key is distinct from awa.lock_key(p_queue) then
    raise exception using errcode = '22023', message = format('%s is not the key of queue %L', p_queue_key, p_queue);
  end if;
  select q.shards into v_shards from awa/*control*/.queues q where q.name = p_queue and q.shards > 1;
  if not exists (
    select from awa.lanes l where l.lane_id = p_lane_id and l.queue = p_queue and l.priority = p_priority
  ) then
    if p_lane_id <> awa.lane_id(p_queue, p_priority, 0) then
      raise exception using
        errcode = '22023',
        message = format('%s is not the lane id of queue %L, priority %s', p_lane_id, p_queue, p_priority);
    end if;
    perform awa.ensure_lane(p_lane_id, p_queue, p_priority, 0::smallint);
  end if;
  if v_shards is null then
    v_lanes := array[p_lane_id];
  else
    v_lanes := array(select awa.lane_id(p_queue, p_priority, s) from generate_series(0, v_shards - 1) s);
    perform awa.ensure_lane(v_lanes[i], p_queue, p_priority, (i - 1)::smallint) from generate_series(1, v_shards) i;
  end if;
  if v_settled
    and not awa.layout_changed()
    and awa.is_read_committed() -- an older snapshot may show an older number
  then
    if v_shards is null then
      perform set_config('awa.lane', v_note, false);
    else
      perform set_config('awa.lanes', concat(v_note, v_lanes), false);
    end if;
  end if;
  return v_lanes;
end
$$;

-- The lane of one of them: they go round.
create function awa.plain_lane(
  p_kind text,
  p_queue text,
  p_priority smallint,
  p_max_attempts smallint,
  p_lane_id bigint,
  p_queue_key integer,
  p_now timestamptz
) returns bigint
language plpgsql
as $$
declare
  v_lanes constant bigint[] := awa.plain_lanes(
    p_kind, p_queue, p_priority, p_max_attempts, p_lane_id, p_queue_key, p_now
  );
begin
  return v_lanes[1 + coalesce(pg_sequence_last_value('awa.pos_seq'), 0) % cardinality(v_lanes)];
end
$$;

-- A payload as it is kept: as the text it is. What has escapes goes through jsonb, which refuses those it cannot hold:
-- \u0000 and half a pair of surrogates. Inlined.
create function awa.storable(p_args text) returns json
language sql stable parallel safe
as $$
  select case when strpos(p_args, chr(92) || 'u') = 0 then p_args::json else p_args::jsonb::json end
$$;

-- Few expressions, and nothing to return: each is set up anew in every transaction, what an insert into a partitioned table
-- returns twice.
create function awa.enqueue_one(
  p_kind text,
  p_args text,
  p_queue text,
  p_priority smallint,
  p_max_attempts smallint,
  p_lane_id bigint,
  p_queue_key integer,
  p_now timestamptz
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_slot constant smallint := awa.ready_slot();
  v_now constant timestamptz := coalesce(p_now, statement_timestamp());
begin
  insert into awa.ready_entries (
    lane_id, pos, xid, job_id, slot, attempt, run_lease, max_attempts, run_at, created_at, kind, args
  )
  values (
    case
      when current_setting('awa.lane', true) = awa.lane_note(p_lane_id, p_queue, p_queue_key, p_priority)
        and char_length(p_kind) between 1 and 200 and p_max_attempts between 1 and 1000 and isfinite(v_now)
        then p_lane_id
      else awa.plain_lane(p_kind, p_queue, p_priority, p_max_attempts, p_lane_id, p_queue_key, p_now)
    end,
    -- The transaction's id before the position. What follows is worked out after it, column by column.
    case when pg_current_xact_id() is not null then nextval('awa.pos_seq') end,
    pg_current_xact_id(), currval('awa.pos_seq'), v_slot, 0, 0, p_max_attempts, v_now, v_now, p_kind,
    awa.storable(p_args)
  );
  if awa.ready_slot() <> v_slot or awa.sleeps(p_queue_key) then
    perform awa.settle(v_slot);
    perform awa.wake(p_queue);
  end if;
  return awa.enqueue_answer(v_now, currval('awa.pos_seq')::text);
end
$$;

revoke execute on function awa.enqueue_one(text, text, text, smallint, smallint, bigint, integer, timestamptz)
from public;

-- p_args: at most 10,000 payloads, as JSON each, with the control character between them that JSON has for records
-- (RFC 7464): one array would be parsed twice, to be taken apart and for what is in it.
create function awa.enqueue_alike(
  p_kind text,
  p_args text,
  p_queue text,
  p_priority smallint,
  p_max_attempts smallint,
  p_lane_id bigint,
  p_queue_key integer,
  p_now timestamptz
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_slot constant smallint := awa.ready_slot();
  v_xid constant xid8 := pg_current_xact_id(); -- before the first position
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_lanes constant bigint[] := awa.plain_lanes(
    p_kind, p_queue, p_priority, p_max_attempts, p_lane_id, p_queue_key, p_now
  );
  v_shards constant integer := cardinality(v_lanes);
  v_ids text;
  v_n integer;
begin
  -- One pass, in the order of the text.
  with written as (
    insert into awa.ready_entries (
      slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args
    )
    select
      v_slot, v_lanes[1 + p.pos % v_shards], p.pos, v_xid, p.pos, 0, 0, p_max_attempts, v_now, v_now, p_kind,
      awa.storable(p.args)
    from (
      select nextval('awa.pos_seq') as pos, a.args from string_to_table(p_args, chr(30)) a(args) offset 0
    ) p
    returning pos
  )
  select coalesce(string_agg(w.pos::text, ','), ''), count(*) into v_ids, v_n from written w;
  if v_n > 10000 then
    raise exception using errcode = '22023', message = 'payloads must be at most 10000';
  end if;
  perform awa.settle(v_slot);
  if awa.sleeps(p_queue_key) then
    perform awa.notify(p_queue);
  end if;
  return awa.enqueue_answer(v_now, v_ids);
end
$$;

revoke execute on function awa.enqueue_alike(text, text, text, smallint, smallint, bigint, integer, timestamptz)
from public;
