-- schema: engine
-- Shards: a priority of a queue may be spread over several lanes. Order holds in a lane. Who needs it for some jobs gives
-- them one ordering key, and the key decides on the lane.

-- The hash of the bytes of a key, from 0 to 2^64 - 1: state := state * 1099511628211 + byte. In two halves, because
-- bigint would overflow; 1099511628211 is 2^40 + 435.
create function awa.ordering_hash(p_key text) returns numeric
language plpgsql immutable strict parallel safe
as $$
declare
  v_bytes constant bytea := convert_to(p_key, 'UTF8');
  v_high bigint := 3421674724;
  v_low bigint := 2216829733;
begin
  for i in 0..octet_length(v_bytes) - 1 loop
    v_high := v_high * 435 + (v_low << 8);
    v_low := v_low * 435 + get_byte(v_bytes, i);
    v_high := (v_high + (v_low >> 32)) & 4294967295;
    v_low := v_low & 4294967295;
  end loop;
  return v_high * 4294967296::numeric + v_low;
end
$$;

create function awa.ordering_key_problem(p_key text) returns text
language sql immutable parallel safe
as $$
  select case when char_length(p_key) not between 1 and 200 then 'ordering_key: must have 1 to 200 characters' end
$$;

-- The key is kept with the job: it decides again whenever the job comes back to a queue.
create function awa.with_ordering_key(p_envelope jsonb, p_key text) returns jsonb
language sql immutable parallel safe
as $$
  select case
    when p_key is null then p_envelope
    else coalesce(p_envelope, '{}') || jsonb_build_object('ordering_key', p_key)
  end
$$;

-- Jobs on their way to a queue, each with the shard it belongs to by the number of shards the queue has now: that of its
-- key, else the one it had, else, where that is gone, any.
create function awa.sharded(p_jobs awa.successor[]) returns awa.successor[]
language plpgsql
as $$
declare
  v_of_queue constant jsonb := (
    select jsonb_object_agg(q.name, q.shards) from awa/*control*/.queues q
    where q.shards > 1 and q.name in (select j.queue from unnest(p_jobs) j)
  );
  v_shards integer;
  v_key text;
begin
  if v_of_queue is null and not exists (select from unnest(p_jobs) j where j.shard > 0) then
    return p_jobs;
  end if;
  for i in 1..cardinality(p_jobs) loop
    v_shards := coalesce((v_of_queue ->> p_jobs[i].queue)::integer, 1);
    v_key := p_jobs[i].envelope ->> 'ordering_key';
    if v_shards = 1 then
      p_jobs[i].shard := 0;
    elsif v_key is not null then
      p_jobs[i].shard := mod(awa.ordering_hash(v_key), v_shards);
    elsif p_jobs[i].shard >= v_shards then
      p_jobs[i].shard := p_jobs[i].job_id % v_shards;
    end if;
  end loop;
  return p_jobs;
end
$$;

-- Changing the number of shards. Nothing has to stop for it: jobs that go by the old number land in lanes that are
-- claimed like all others. Only their order among the ones that go by the new number is open.

-- p_shards: 1 to 64.
create function awa.set_shards(p_queue text, p_shards integer) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if p_queue is null or char_length(p_queue) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'queue: must have 1 to 200 characters';
  end if;
  if p_shards is null or p_shards not between 1 and 64 then
    raise exception using errcode = '22023', message = 'shards: must be 1 to 64';
  end if;
  insert into awa/*control*/.queues (name, shards) values (p_queue, p_shards)
  on conflict (name) do update set shards = excluded.shards, updated_at = clock_timestamp();
end
$$;

revoke execute on function awa.set_shards(text, integer) from public;

-- Claims.

-- What the priority of a job counts after it has waited since p_since.
create function awa.aged_priority(p_priority smallint, p_since timestamptz, p_now timestamptz, p_aging_ms bigint)
returns integer
language sql immutable parallel safe
as $$
  select case
    when p_priority > 1 and p_aging_ms > 0 and p_now > p_since then greatest(
      1,
      p_priority - floor((date_part('epoch', p_now) - date_part('epoch', p_since)) * 1000 / p_aging_ms)
    )::integer
    else p_priority
  end
$$;

-- The lanes of a queue in the order in which they should be served, as far as they have something to claim: how many
-- jobs, up to p_limit of the same effective priority as the first one, and the position of that one.
create function awa.lane_heads(p_queue text, p_limit integer, p_now timestamptz, p_aging_ms bigint)
returns table (lane_id bigint, n bigint)
language plpgsql stable
as $$
declare
  -- Of the snapshot that is searched: the function is stable.
  v_ranges constant smallint[] := awa.slot_ranges();
begin
  return query
  select
    l.lane_id,
    case
      when awa.aged_priority(l.priority, h.youngest, p_now, p_aging_ms)
        > awa.aged_priority(l.priority, h.first, p_now, p_aging_ms) then 1
      else h.n
    end
  from (select distinct a.lane_id, a.priority from awa.lanes a where a.queue = p_queue) l
  left join lateral (
    select b.cursor_pos, b.pending_xids, b.pending_after
    from awa.claim_batches b
    where awa.is_within(b.slot, v_ranges)
      and b.lane_id = l.lane_id and b.cursor_pos is not null
    order by -b.batch_id limit 1
  ) c on true
  left join awa.tombstoned_lanes k on k.lane_id = l.lane_id
  -- Transactions that were pending and have ended since.
  cross join lateral (
    select count(*) as n, array_agg(p.xid) as xids, array_agg(p.after) as afters
    from unnest(c.pending_xids, c.pending_after) p(xid, after)
    where pg_visible_in_snapshot(p.xid, pg_current_snapshot())
  ) f
  cross join lateral (
    select count(*) as n, min(w.pos) as pos, max(w.since) as youngest, (array_agg(w.since order by w.pos))[1] as first
    from (
      select e.pos, greatest(e.run_at, e.created_at) as since
      from (select f.xids, f.afters where f.n > 0) x
      cross join lateral awa.late_entries(v_ranges, l.lane_id, c.cursor_pos, x.xids, x.afters, p_limit) e
      union all
      (
        select e.pos, greatest(e.run_at, e.created_at)
        from awa.ready_entries e
        where awa.is_within(e.slot, v_ranges)
          and k.lane_id is null and e.lane_id = l.lane_id and e.pos > coalesce(c.cursor_pos, 0)
        order by e.pos limit p_limit
      )
      union all
      select e.pos, greatest(e.run_at, e.created_at)
      from (select where k.lane_id is not null) x
      cross join lateral awa.live_entries(v_ranges, l.lane_id, coalesce(c.cursor_pos, 0), p_limit) e
    ) w
  ) h
  -- A cursor that has learned enough is worth a claim that finds nothing, and so is one that is ahead of the sequence.
  where h.n > 0 or f.n >= 16 or k.lane_id is not null
      and awa.is_claimable(v_ranges, l.lane_id, coalesce(c.cursor_pos, 0), c.pending_xids, c.pending_after)
    or c.cursor_pos > (select s.last_value from awa.pos_seq s)
  order by awa.aged_priority(l.priority, h.first, p_now, p_aging_ms), h.pos;
end
$$;

-- Locks lanes of a queue with several shards until there is enough for p_limit jobs. A lane that somebody else has is left
-- to them; only when all that have something are taken it waits for one. It never waits while it holds one: nobody can
-- wait for it in turn. lanes: null when there is nothing to claim. expecting: there should be jobs in them.
--
-- To look at all lanes costs half of what a claim of one job does. So while the session's claims find jobs, and all lanes
-- are of one priority, a small claim takes any lane.
create function awa.lock_lanes(
  p_queue text,
  p_layout awa.queue_layout,
  p_limit integer,
  p_nonce bigint,
  p_now timestamptz,
  p_aging_ms bigint,
  out lanes bigint[],
  out expecting boolean
)
language plpgsql
as $$
declare
  -- A lane with so many jobs is enough for one claim: the others are left to other claims.
  v_deep constant integer := least(p_limit, 32);
  v_lanes constant bigint[] := p_layout.lanes;
  v_head record;
  v_n bigint := 0;
  v_taken bigint[];
begin
  if p_limit <= 4
    and current_setting('awa.look', true) is distinct from 'on'
    and p_layout.priorities[1] = all (p_layout.priorities)
  then
    for i in 1..cardinality(v_lanes) loop
      lock_lanes.lanes := array[v_lanes[1 + (abs(p_nonce % 64) + i) % cardinality(v_lanes)]];
      if pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(lock_lanes.lanes[1])) then
        lock_lanes.expecting := true;
        return;
      end if;
    end loop;
    lock_lanes.lanes := null;
  end if;
  lock_lanes.expecting := false;
  for v_head in
    select h.lane_id, h.n
    from awa.lane_heads(p_queue, v_deep, coalesce(p_now, statement_timestamp()), p_aging_ms) h
  loop
    if pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_head.lane_id)) then
      lock_lanes.lanes := lock_lanes.lanes || v_head.lane_id;
      lock_lanes.expecting := lock_lanes.expecting or v_head.n > 0;
      v_n := v_n + v_head.n;
      exit when v_n >= p_limit or v_head.n >= v_deep;
    elsif v_head.n > 0 then
      v_taken := v_taken || v_head.lane_id;
    end if;
  end loop;
  if lock_lanes.lanes is null and v_taken is not null then
    -- Any: whoever claims at the same moment should wait for another one.
    lock_lanes.lanes := array[v_taken[1 + abs(p_nonce % cardinality(v_taken))]];
    lock_lanes.expecting := true;
    perform pg_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(lock_lanes.lanes[1]));
  end if;
end
$$;
