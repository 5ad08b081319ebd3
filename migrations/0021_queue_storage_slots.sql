-- schema: engine
-- The life of a slot: rotate, count, evict, drain, free. Each step is a short transaction of its own and may be taken by
-- anybody at any time: what it finds decides. The order of locks is slots, lanes ascending, owners ascending, relations.
-- docs/storage.md, "Slots", says why a slot that is freed holds nothing that is still to be done.

-- One step at a time, whoever leads.
create function awa.lock_slots() returns void
language plpgsql
as $$
begin
  perform awa.assert_read_committed();
  perform pg_advisory_xact_lock(awa.lock_class('slots'), 0);
end
$$;

-- Whether a slot of the log has been written to since it was truncated, by its files: also what no snapshot shows.
create function awa.slot_is_used(p_slot integer) returns boolean
language sql volatile
as $$
  select exists (
    select
    from unnest(array['ready_entries', 'claim_batches', 'closures', 'tombstones']) t(name)
    where pg_relation_size(format('awa.%s_%s', t.name, p_slot)::regclass) > 0
  )
$$;

-- Slots with strays are slots to be looked at again.
create function awa.absorb_strays(p_now timestamptz) returns void
language plpgsql
as $$
declare
  v_slot smallint;
begin
  for v_slot in select distinct s.slot from awa.slot_strays s loop
    update awa.slots s set counted_rows = null, drained_at = null, completed = null
    where s.ring <> 'lease' and s.slot = v_slot;
    if not found then
      insert into awa.slots (ring, generation, slot, opened_at, sealed_at)
      select
        case when v_slot < c.value then 'ready' else 'park' end,
        coalesce((select max(g.generation) from awa.slots g), 0) + 1, v_slot, p_now, p_now
      from awa.storage_config c where c.name = 'queue_slots';
    end if;
    delete from awa.slot_strays s where s.slot = v_slot;
  end loop;
end
$$;

-- Seals the open slot when it has been open for p_interval_ms and holds jobs, and opens an empty one; if there is none, it
-- stays open and grows. What was parked is sealed after a whole lap. Answers whether a slot was sealed.
create function awa.rotate(p_interval_ms bigint, p_now timestamptz) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_slots constant integer := (select c.value from awa.storage_config c where c.name = 'queue_slots');
  v_open awa.slots;
  v_next smallint;
begin
  perform awa.lock_slots();
  perform awa.absorb_strays(v_now);
  update awa.slots s set opened_at = v_now where s.opened_at is null;

  update awa.slots s set sealed_at = v_now
  where s.ring = 'park' and s.sealed_at is null
    and s.opened_at <= v_now - v_slots * p_interval_ms * interval '1 millisecond'
    and not exists (select from awa.slots o where o.ring = 'park' and o.slot <> s.slot);

  select * into v_open from awa.slots s where s.ring = 'ready' and s.sealed_at is null;
  -- Cursors alone, carried here from other slots, would be carried on for ever.
  if v_open.opened_at > v_now - p_interval_ms * interval '1 millisecond'
    or pg_relation_size(format('awa.ready_entries_%s', v_open.slot)::regclass) = 0
  then
    return false;
  end if;
  -- A slot that a stray has written to since it was freed is not empty.
  select c.slot into v_next
  from (select ((v_open.slot + i) % v_slots)::smallint as slot, i from generate_series(1, v_slots - 1) i) c
  where not exists (select from awa.slots s where s.ring <> 'lease' and s.slot = c.slot)
    and not awa.slot_is_used(c.slot)
  order by c.i limit 1;
  if v_next is null then
    return false;
  end if;
  update awa.slots s set sealed_at = v_now where s.ring = 'ready' and s.generation = v_open.generation;
  insert into awa.slots (ring, generation, slot, opened_at)
  select 'ready', max(s.generation) + 1, v_next, v_now from awa.slots s;
  return true;
end
$$;

revoke execute on function awa.rotate(bigint, timestamptz) from public;

-- Tells producers which slot is open. In a transaction after the one that opened it: see awa.ready_slot.
create function awa.publish_slot() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_slot smallint;
begin
  perform awa.lock_slots();
  select s.slot into v_slot from awa.slots s where s.ring = 'ready' and s.sealed_at is null;
  if v_slot <> awa.ready_slot() then
    perform setval('awa.ready_slot', v_slot);
  end if;
end
$$;

revoke execute on function awa.publish_slot() from public;

-- The sealed slots, the oldest first.
create function awa.sealed_slots() returns table (slot smallint)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select s.slot from awa.slots s
  where s.ring <> 'lease' and s.sealed_at is not null
  order by s.generation
$$;

revoke execute on function awa.sealed_slots() from public;

-- Counts the rows of a sealed slot, once nobody writes to it any more. Answers whether they are counted.
create function awa.count_slot(p_slot smallint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_slot awa.slots;
  v_rows bigint;
begin
  perform awa.lock_slots();
  select * into v_slot from awa.slots s where s.ring <> 'lease' and s.slot = p_slot and s.sealed_at is not null;
  if v_slot.slot is null or v_slot.counted_rows is not null or awa.ready_slot() = p_slot then
    return v_slot.counted_rows is not null;
  end if;
  begin
    -- Writers keep their lock until they end; whoever gets one after ours finds the register moved, and leaves a note.
    execute format('lock table awa.ready_entries_%s in share mode nowait', p_slot);
  exception when lock_not_available then
    return false;
  end;
  -- A statement after the lock: its snapshot shows what they committed.
  select count(*) into v_rows from awa.ready_entries r where r.slot = p_slot;
  update awa.slots s set counted_rows = v_rows where s.ring = v_slot.ring and s.generation = v_slot.generation;
  return true;
end
$$;

revoke execute on function awa.count_slot(smallint) from public;

-- Lets go of up to p_limit attempts of a slot that were claimed more than p_age_ms ago: their leases take the job over, and
-- the slot need not wait for them. Answers how many.
create function awa.evict(p_slot smallint, p_age_ms bigint, p_limit integer, p_now timestamptz) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_before constant timestamptz := v_now - p_age_ms * interval '1 millisecond';
  v_owners uuid[];
  v_evicted integer;
begin
  perform awa.lock_slots();
  select array_agg(distinct a.owner) into v_owners
  from (
    select a.owner from awa.open_attempts a
    where a.slot = p_slot and a.claimed_at < v_before
    order by a.batch_id, a.member limit p_limit
  ) a;
  if v_owners is null then
    return 0;
  end if;
  v_owners := awa.hold_free_owners(v_owners);
  perform nextval('awa.lease_marks');

  -- Again, under the locks: some may have ended in between.
  with open as materialized (
    select a.*, r.job_id, r.run_lease, row_to_json(r) as entry
    from (
      select a.* from awa.open_attempts a
      where a.slot = p_slot and a.claimed_at < v_before and a.owner = any (v_owners)
      order by a.batch_id, a.member limit p_limit
    ) a
    join awa.claim_batches b on b.slot = p_slot and b.batch_id = a.batch_id
    cross join lateral (
      select * from awa.ready_entries r
      where r.slot = p_slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, a.member) limit 1
    ) r
  ),
  kept as (
    update awa.leases x set entry = o.entry
    from open o
    where x.batch_id = o.batch_id and x.member = o.member and x.nonce = o.nonce
    returning x.batch_id, x.member
  ),
  made as (
    -- Without a sign of life its age counts from the claim.
    insert into awa.leases (
      lease_slot, slot, batch_id, nonce, member, job_id, run_lease, owner, heartbeat_at, deadline_at, claimed_at, entry
    )
    select
      s.slot, p_slot, o.batch_id, o.nonce, o.member, o.job_id, o.run_lease + 1, o.owner, o.claimed_at, o.deadline_at,
      o.claimed_at, o.entry
    from open o
    cross join (select l.slot from awa.slots l where l.ring = 'lease' and l.sealed_at is null) s
    where not exists (select from kept k where k.batch_id = o.batch_id and k.member = o.member)
  ),
  closed as (
    insert into awa.closures (slot, batch_id, act, n, members, finished_at)
    select p_slot, o.batch_id, 'evict', count(*), array_agg(o.member order by o.member), v_now
    from open o group by o.batch_id
  )
  select count(*) into v_evicted from open;
  return v_evicted;
end
$$;

revoke execute on function awa.evict(smallint, bigint, integer, timestamptz) from public;

-- The newest cursor of a lane; no row for a lane that was never claimed from.
create function awa.lane_cursor(p_lane_id bigint) returns setof awa.claim_batches
language sql stable
as $$
  select b.* from awa.claim_batches b
  where b.lane_id = p_lane_id and b.cursor_pos is not null
  order by -b.batch_id limit 1
$$;

-- The first rows of a lane in a slot that wait: beyond the cursor, or at or below it but of a transaction that was pending
-- when the cursor moved. Meant for a slot that nobody writes to.
create function awa.waiting_in(p_slot smallint, p_lane_id bigint, p_limit integer) returns setof awa.ready_entries
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off -- an index has the order: who plans late must not read all to sort it
as $$
declare
  v_cursor awa.claim_batches;
begin
  select * into v_cursor from awa.lane_cursor(p_lane_id);
  return query
  select r.* from (
    (
      select r.* from awa.ready_entries r
      where r.slot = p_slot and r.lane_id = p_lane_id and r.pos > coalesce(v_cursor.cursor_pos, 0)
        and (
          select true from awa.tombstones t where t.slot = p_slot and t.lane_id = p_lane_id and t.pos = r.pos limit 1
        ) is null
      order by r.pos limit p_limit
    )
    union all
    (
      select r.*
      from unnest(v_cursor.pending_xids, v_cursor.pending_after) p(xid, after)
      cross join lateral (
        select r.* from awa.ready_entries r
        where r.slot = p_slot and r.lane_id = p_lane_id and r.xid = p.xid
          and r.pos > p.after and r.pos <= v_cursor.cursor_pos
          and (
            select true from awa.tombstones t where t.slot = p_slot and t.lane_id = p_lane_id and t.pos = r.pos limit 1
          ) is null
        order by r.pos limit p_limit
      ) r
    )
  ) r
  order by r.pos limit p_limit;
end
$$;

-- The lanes for which claims still have to look at a slot: those with waiting rows in it, and those whose newest cursor
-- is in it. A lane that is not among them never is again, but for strays.
create function awa.undrained_lanes(p_slot smallint) returns table (lane_id bigint, waits boolean)
language sql stable
set enable_seqscan = off
as $$
  with recursive written as (
    (select r.lane_id from awa.ready_entries r where r.slot = p_slot order by r.lane_id limit 1)
    union all
    select (
      select r.lane_id from awa.ready_entries r where r.slot = p_slot and r.lane_id > w.lane_id order by r.lane_id limit 1
    )
    from written w where w.lane_id is not null
  ),
  claimed as (
    (
      select b.lane_id from awa.claim_batches b
      where b.slot = p_slot and b.cursor_pos is not null order by b.lane_id limit 1
    )
    union all
    select (
      select b.lane_id from awa.claim_batches b
      where b.slot = p_slot and b.cursor_pos is not null and b.lane_id > c.lane_id order by b.lane_id limit 1
    )
    from claimed c where c.lane_id is not null
  )
  select l.lane_id, w.waits
  from (
    select w.lane_id from written w where w.lane_id is not null
    union
    select c.lane_id from claimed c where c.lane_id is not null
  ) l
  cross join lateral (select exists (select from awa.waiting_in(p_slot, l.lane_id, 1)) as waits) w
  where w.waits or exists (select from awa.lane_cursor(l.lane_id) c where c.slot = p_slot)
$$;

-- The slot where rows that waited long are parked, opened when there is none; null when both are in use.
create function awa.parking_slot(p_now timestamptz) returns smallint
language plpgsql
as $$
declare
  v_first constant integer := (select c.value from awa.storage_config c where c.name = 'queue_slots');
  v_slot smallint := (select s.slot from awa.slots s where s.ring = 'park' and s.sealed_at is null);
begin
  if v_slot is null then
    select p.slot into v_slot
    from unnest(array[v_first, v_first + 1]) p(slot)
    where not exists (select from awa.slots s where s.ring = 'park' and s.slot = p.slot) and not awa.slot_is_used(p.slot)
    order by 1 limit 1;
    if v_slot is not null then
      insert into awa.slots (ring, generation, slot, opened_at)
      select 'park', max(s.generation) + 1, v_slot, p_now from awa.slots s;
    end if;
  end if;
  return v_slot;
end
$$;

-- Moves up to p_limit waiting rows of a lane, whose lock the caller holds, out of a slot. Whether a row is consumed
-- depends on its position and transaction only, and those it keeps: nothing changes for claims, not even the order.
create function awa.relocate(p_slot smallint, p_lane_id bigint, p_limit integer, p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_park constant smallint := awa.parking_slot(p_now);
  v_moved integer;
  v_last bigint;
begin
  if v_park is null or v_park = p_slot then
    return 0;
  end if;
  with moved as materialized (
    select r.* from awa.waiting_in(p_slot, p_lane_id, p_limit) r
  ),
  copied as (
    insert into awa.ready_entries (
      slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args, envelope
    )
    select
      v_park, m.lane_id, m.pos, m.xid, m.job_id, m.attempt, m.run_lease, m.max_attempts, m.run_at, m.created_at, m.kind,
      m.args, m.envelope
    from moved m
  ),
  given_up as (
    insert into awa.tombstones (slot, lane_id, pos, written_at)
    select p_slot, m.lane_id, m.pos, p_now from moved m
  )
  select count(*), max(m.pos) into v_moved, v_last from moved m;
  -- Until the slot is drained claims see the rows that were left, too.
  perform awa.mark_tombstones(p_lane_id, v_last, v_last);
  return v_moved;
end
$$;

-- Makes claims independent of a counted slot: carries the cursors of its lanes on into the open slot and, when it was
-- sealed more than p_park_ms ago, parks its waiting rows. Up to p_limit lanes a call, and 10,000 rows of each. Answers how
-- many lanes it went on with and whether the slot is drained.
create function awa.drain_slot(
  p_slot smallint,
  p_park_ms bigint,
  p_limit integer,
  p_now timestamptz,
  out lanes integer,
  out drained boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_slot awa.slots;
  v_park boolean;
  v_lane bigint;
begin
  perform awa.lock_slots();
  select * into v_slot from awa.slots s where s.ring <> 'lease' and s.slot = p_slot and s.sealed_at is not null;
  lanes := 0;
  drained := v_slot.drained_at is not null;
  if v_slot.counted_rows is null or drained then
    return;
  end if;
  v_park := v_slot.sealed_at <= v_now - p_park_ms * interval '1 millisecond';
  for v_lane in
    select u.lane_id from awa.undrained_lanes(p_slot) u
    where v_park or not u.waits
    order by awa.lane_lock_key(u.lane_id) limit p_limit
  loop
    -- A claim under way keeps its lane: the next call will find it.
    continue when not pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_lane));
    lanes := lanes + 1;
    if v_park then
      perform awa.relocate(p_slot, v_lane, 10000, v_now);
    end if;
    insert into awa.claim_batches (
      slot, batch_id, nonce, lane_id, owner, claimed_at, n, cursor_pos, pending_xids, pending_after
    )
    select
      o.slot, nextval('awa.batch_seq'), 0, c.lane_id, '00000000-0000-0000-0000-000000000000', v_now, 0, c.cursor_pos,
      c.pending_xids, c.pending_after
    from awa.lane_cursor(v_lane) c
    cross join (select s.slot from awa.slots s where s.ring = 'ready' and s.sealed_at is null) o
    where c.slot = p_slot and not exists (select from awa.waiting_in(p_slot, v_lane, 1));
  end loop;
  drained := not exists (select from awa.undrained_lanes(p_slot));
  if drained then
    update awa.slots s set drained_at = v_now where s.ring = v_slot.ring and s.generation = v_slot.generation;
  end if;
end
$$;

revoke execute on function awa.drain_slot(smallint, bigint, integer, timestamptz) from public;

-- How many rows of a slot were closed, or given up.
create function awa.closed_rows(p_slot smallint) returns bigint
language sql stable
as $$
  select coalesce((select sum(k.n) from awa.closures k where k.slot = p_slot), 0)
    + (select count(*) from awa.tombstones t where t.slot = p_slot)
$$;

-- Puts rows of a drained slot that nobody claimed, though their lane's cursor has passed them, into the queue again. There
-- are none unless something went wrong that this design excludes; the count proof shows it, and no job is lost by it.
create function awa.repair_slot(p_slot smallint, p_now timestamptz) returns bigint
language plpgsql
as $$
declare
  v_jobs awa.successor[];
begin
  with claimed as materialized (
    select b.lane_id, awa.member_pos(b, m.member) as pos
    from awa.claim_batches b cross join lateral generate_series(1, b.n) m(member)
    where b.slot = p_slot
  ),
  lost as materialized (
    select r.* from awa.ready_entries r
    where r.slot = p_slot
      and not exists (select from claimed c where c.lane_id = r.lane_id and c.pos = r.pos)
      and not exists (
        select from awa.tombstones t where t.slot = p_slot and t.lane_id = r.lane_id and t.pos = r.pos
      )
  ),
  given_up as (
    insert into awa.tombstones (slot, lane_id, pos, written_at)
    select p_slot, l.lane_id, l.pos, p_now from lost l
  )
  select array_agg(
    (l.job_id, 'available', l.run_at, l.created_at, null, l.run_lease, n.priority, n.shard, l.attempt, l.max_attempts,
      n.queue, l.kind, l.args, l.envelope, null)::awa.successor
    order by l.pos
  )
  into v_jobs
  from lost l
  cross join lateral (select * from awa.lanes a where a.lane_id = l.lane_id limit 1) n;
  if v_jobs is null then
    return 0;
  end if;
  raise warning 'awa: % rows of slot % were passed over and wait again', cardinality(v_jobs), p_slot;
  perform awa.place(v_jobs, p_now);
  return cardinality(v_jobs);
end
$$;

-- The successes of a slot whose queue keeps them for longer than p_retention_ms, and which only the log holds.
create function awa.history_of(p_slot smallint, p_retention_ms bigint, p_now timestamptz) returns setof awa.finished_jobs
language sql stable
as $$
  select
    r.job_id, 'completed'::awa/*control*/.job_state, k.finished_at, r.run_at, r.created_at, b.claimed_at, r.run_lease + 1,
    l.priority, l.shard, (r.attempt + 1)::smallint, r.max_attempts, l.queue, r.kind, r.args,
    nullif(r.envelope - 'progress', '{}')
  from awa/*control*/.queues q
  join (select distinct n.* from awa.lanes n) l on l.queue = q.name
  join awa.claim_batches b on b.slot = p_slot and b.lane_id = l.lane_id
  join awa.closures k on k.slot = p_slot and k.batch_id = b.batch_id and k.act = 'complete'
  cross join lateral unnest(k.members) m(member)
  cross join lateral (
    select * from awa.ready_entries r
    where r.slot = p_slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, m.member) limit 1
  ) r
  where q.completed_retention > p_retention_ms * interval '1 millisecond'
    and k.finished_at > p_now - q.completed_retention
    and not exists (select from awa.finished_jobs f where f.job_id = r.job_id)
$$;

-- Copies up to p_limit of them to finished_jobs. Answers how many.
create function awa.keep_history(p_slot smallint, p_retention_ms bigint, p_limit integer, p_now timestamptz)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_kept integer;
begin
  with kept as (
    insert into awa.finished_jobs (
      job_id, state, finished_at, run_at, created_at, attempted_at, run_lease, priority, shard, attempt, max_attempts,
      queue, kind, args, envelope
    )
    select
      h.job_id, h.state, h.finished_at, h.run_at, h.created_at, h.attempted_at, h.run_lease, h.priority, h.shard, h.attempt,
      h.max_attempts, h.queue, h.kind, h.args, h.envelope
    from awa.history_of(p_slot, p_retention_ms, coalesce(p_now, clock_timestamp())) h
    limit p_limit
    on conflict (job_id) do nothing
    returning queue, priority, shard
  ),
  -- The slot may stay for as long as somebody reads it.
  counted as (
    update awa.slots s
    set completed = (
      select jsonb_object_agg(c.key, c.value::bigint - coalesce(k.n, 0))
      from jsonb_each_text(s.completed) c
      left join (
        select awa.lane_id(k.queue, k.priority, k.shard)::text as lane, count(*) as n from kept k group by 1
      ) k on k.lane = c.key
    )
    where s.ring <> 'lease' and s.slot = p_slot and s.completed <> '{}' and exists (select from kept)
  )
  select count(*) into v_kept from kept;
  return v_kept;
end
$$;

revoke execute on function awa.keep_history(smallint, bigint, integer, timestamptz) from public;

-- Truncates a slot whose rows are all closed, the newest of them p_retention_ms ago. Answers what became of it:
--   freed
--   undrained: claims still look at it, or did until less than p_settle_ms ago. Truncation shows in snapshots older than
--     itself: a dump that began before the cursors were carried on must not miss them.
--   open: attempts of it run
--   kept: its history is not old enough
--   history: some of it is to be kept elsewhere first, see keep_history
--   busy: somebody reads it; try again later
create function awa.free_slot(p_slot smallint, p_retention_ms bigint, p_settle_ms bigint, p_now timestamptz) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_slot awa.slots;
  v_closed bigint;
  v_newest timestamptz;
  v_locked boolean := false;
begin
  perform awa.lock_slots();
  select * into v_slot from awa.slots s where s.ring <> 'lease' and s.slot = p_slot and s.sealed_at is not null;
  if v_slot.drained_at is null or v_slot.drained_at > v_now - p_settle_ms * interval '1 millisecond' then
    return 'undrained';
  end if;
  -- All the work comes before the lock: once all rows are closed, nothing but a stray changes that.
  v_closed := awa.closed_rows(p_slot);
  if v_closed <> v_slot.counted_rows then
    -- Those of a stray were not counted. Its note commits with them, so it is seen by whoever sees one of them closed.
    if not exists (select from awa.slot_strays s where s.slot = p_slot)
      and not exists (select from awa.open_attempts a where a.slot = p_slot)
    then
      perform awa.repair_slot(p_slot, v_now);
    end if;
    return 'open';
  end if;
  if v_slot.completed is null then
    update awa.slots s
    set completed = coalesce((select jsonb_object_agg(a.lane_id, a.completed) from awa.slot_attempts(p_slot) a), '{}')
    where s.ring = v_slot.ring and s.generation = v_slot.generation;
  end if;
  select max(k.finished_at) into v_newest from awa.closures k where k.slot = p_slot;
  if v_newest > v_now - p_retention_ms * interval '1 millisecond' then
    return 'kept';
  end if;
  if exists (select from awa.history_of(p_slot, p_retention_ms, v_now)) then
    return 'history';
  end if;
  perform awa.release_slot(p_slot);
  for i in 1..20 loop
    begin
      execute format(
        'lock table awa.claim_batches_%1$s, awa.closures_%1$s, awa.ready_entries_%1$s, awa.tombstones_%1$s '
          'in access exclusive mode nowait',
        p_slot
      );
      v_locked := true;
      exit;
    exception when lock_not_available then
      perform pg_sleep(0.002);
    end;
  end loop;
  if not v_locked then
    return 'busy';
  end if;
  -- Whoever wrote to it after it was counted has committed, or would hold a lock.
  if exists (select from awa.slot_strays s where s.slot = p_slot) then
    return 'open';
  end if;
  execute format(
    'truncate awa.claim_batches_%1$s, awa.closures_%1$s, awa.ready_entries_%1$s, awa.tombstones_%1$s', p_slot
  );
  delete from awa.slots s where s.ring = v_slot.ring and s.generation = v_slot.generation;
  return 'freed';
end
$$;

revoke execute on function awa.free_slot(smallint, bigint, bigint, timestamptz) from public;

-- Opens the next slot of the leases, if it is empty; its dead rows go with its file. Signs of life move leases along.
create function awa.rotate_leases(p_interval_ms bigint, p_now timestamptz) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_slots constant integer := (select c.value from awa.storage_config c where c.name = 'lease_slots');
  v_open awa.slots;
  v_next integer;
begin
  perform awa.lock_slots();
  select * into v_open from awa.slots s where s.ring = 'lease';
  v_next := (v_open.slot + 1) % v_slots;
  if v_open.opened_at > v_now - p_interval_ms * interval '1 millisecond'
    or pg_relation_size(format('awa.leases_%s', v_open.slot)::regclass) = 0
    or exists (select from awa.leases x where x.lease_slot = v_next)
  then
    return false;
  end if;
  begin
    execute format('lock table awa.leases_%s in access exclusive mode nowait', v_next);
  exception when lock_not_available then
    return false;
  end;
  if exists (select from awa.leases x where x.lease_slot = v_next) then
    return false;
  end if;
  execute format('truncate awa.leases_%s', v_next);
  delete from awa.slots s where s.ring = 'lease';
  insert into awa.slots (ring, generation, slot, opened_at) values ('lease', v_open.generation + 1, v_next, v_now);
  return true;
end
$$;

revoke execute on function awa.rotate_leases(bigint, timestamptz) from public;

-- Forgets up to p_limit ended jobs that are kept no longer, by the retention of their queue or else by these. Answers how
-- many.
create function awa.expire(
  p_completed_ms bigint,
  p_failed_ms bigint,
  p_cancelled_ms bigint,
  p_limit integer,
  p_now timestamptz
) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_expired integer;
  v_holders bigint[];
begin
  with recursive queue as (
    (select f.queue from awa.finished_jobs f order by f.queue limit 1)
    union all
    select (select f.queue from awa.finished_jobs f where f.queue > q.queue order by f.queue limit 1)
    from queue q where q.queue is not null
  ),
  cut as (
    select q.queue, s.state, v_now - coalesce(s.kept, s.usual_ms * interval '1 millisecond') as at
    from queue q
    left join awa/*control*/.queues c on c.name = q.queue
    cross join lateral (
      values
        ('completed'::awa/*control*/.job_state, c.completed_retention, p_completed_ms),
        ('failed', c.failed_retention, p_failed_ms),
        ('cancelled', c.cancelled_retention, p_cancelled_ms)
    ) s(state, kept, usual_ms)
    where q.queue is not null
  ),
  old as materialized (
    select f.job_id
    from cut c
    cross join lateral (
      select f.job_id from awa.finished_jobs f
      where f.queue = c.queue and f.state = c.state and f.finished_at < c.at
      order by f.finished_at limit p_limit
    ) f
    limit p_limit
  ),
  gone as (
    delete from awa.finished_jobs f using old o where f.job_id = o.job_id returning f.job_id, f.envelope
  )
  select count(*), array_agg(g.job_id) filter (where g.envelope ? 'unique') into v_expired, v_holders from gone g;
  if v_holders is not null then
    perform awa.release_unique(v_holders);
  end if;
  return v_expired;
end
$$;

revoke execute on function awa.expire(bigint, bigint, bigint, integer, timestamptz) from public;
