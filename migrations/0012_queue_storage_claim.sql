-- schema: engine
-- Claim: a position cursor per lane plus the transactions that were pending when it moved. docs/storage.md argues why no
-- job is lost or doubled; test/mutation breaks each rule below and shows what happens.

-- Transactions that may own positions at or below a cursor taken at p_snapshot and that were not finished then: those in
-- progress, and every id from the snapshot's xmax up to our own. xmax is "latest completed + 1", not "next to be handed
-- out": a transaction at or above it may already run and already own positions.
create function awa.pending_xids(p_snapshot pg_snapshot, p_own xid8) returns xid8[]
language plpgsql
as $$
declare
  v_xmax constant bigint := pg_snapshot_xmax(p_snapshot)::text::bigint;
  v_own constant bigint := p_own::text::bigint;
begin
  if pg_snapshot_xmin(p_snapshot) = p_own then
    return '{}'; -- nobody else runs
  end if;
  -- One import with thousands of subtransactions would put them all into the cursor. Its xids move xmax when they end.
  if v_own - v_xmax > 256 then
    raise exception using
      errcode = 'AW001',
      message = format('%s transaction ids between snapshot and claim', v_own - v_xmax),
      hint = 'Claim again.';
  end if;
  return array(
    select x from pg_snapshot_xip(p_snapshot) x
    union all
    select i::text::xid8 from generate_series(v_xmax, v_own - 1) i
  );
end
$$;

-- A bound of the bytes a value has as text, from what is stored of it, without reading it.
create function awa.size_bound(p_value jsonb) returns bigint
language sql stable
as $$
  select case
    when p_value is null then 0
    when pg_column_compression(p_value) is null then 3 * pg_column_size(p_value)::bigint
    else least(250 * pg_column_size(p_value)::bigint, 16777216)
  end
$$;

-- Exact for a text that is not compressed. pglz makes 88 bytes of one at most, LZ4 255.
create function awa.size_bound(p_value json) returns bigint
language sql stable
as $$
  select case
    when p_value is null then 0
    else pg_column_size(p_value)::bigint * case pg_column_compression(p_value) when 'pglz' then 88 when 'lz4' then 255 else 1 end
  end
$$;

-- What a claim tells of a job. Formatted as a whole: joined part by part, it took a sixth longer.
create function awa.claimed_body(
  p_job_id bigint,
  p_run_lease bigint,
  p_kind text,
  p_attempt smallint,
  p_max_attempts smallint,
  p_run_at timestamptz,
  p_created_at timestamptz,
  p_args json,
  p_envelope jsonb
) returns text
language sql stable
as $$
  select format(
    '["%s","%s",%s,%s,%s,%s,%s,%s,%s]',
    p_job_id, p_run_lease + 1, to_json(p_kind), p_attempt + 1, p_max_attempts,
    (date_part('epoch', p_run_at) * 1000)::bigint, (date_part('epoch', p_created_at) * 1000)::bigint,
    p_args, coalesce(p_envelope::text, 'null')
  )
$$;

-- Whether a lane's cursor has consumed a row. Decides whether a row still waits, wherever that is asked: for an answer
-- that is to be acted upon, of the newest cursor row and under the lane's lock.
create function awa.is_consumed(
  p_pos bigint,
  p_xid xid8,
  p_cursor_pos bigint,
  p_pending_xids xid8[],
  p_pending_after bigint[]
) returns boolean
language sql immutable parallel safe
as $$
  select coalesce(p_pos <= p_cursor_pos, false) and (
    p_pending_xids is null or not exists (
      select from unnest(p_pending_xids, p_pending_after) p(xid, after) where p.xid = p_xid and p_pos > p.after
    )
  )
$$;

-- The functions below keep scans that a claim seldom needs out of its statement, where their sixteen partitions would be
-- set up each time. They are stable, so that they read the snapshot of the statement that calls them.

create function awa.is_tombstoned(p_slot smallint, p_lane_id bigint, p_pos bigint) returns boolean
language plpgsql stable
as $$
begin
  return exists (select from awa.tombstones t where t.slot = p_slot and t.lane_id = p_lane_id and t.pos = p_pos);
end
$$;

-- The first rows of a lane with tombstones, by position, beyond its cursor.
create function awa.live_entries(p_ranges smallint[], p_lane_id bigint, p_cursor_pos bigint, p_limit integer)
returns setof awa.ready_entries
language plpgsql stable
as $$
begin
  return query
  select r.*
  from awa.ready_entries r
  -- Row by row, and only as far as the limit needs: the log has no statistics to plan a join by.
  left join lateral (
    select true as is_dead from awa.tombstones t
    where t.slot = r.slot and t.lane_id = p_lane_id and t.pos = r.pos
    limit 1
  ) t on true
  where awa.is_within(r.slot, p_ranges) and r.lane_id = p_lane_id and r.pos > p_cursor_pos and t.is_dead is null
  order by r.pos limit p_limit;
end
$$;

-- How many tombstones a claim finds before the first row it could take, and the last of them beyond the cursor.
create function awa.tombstoned_head(
  p_ranges smallint[],
  p_lane_id bigint,
  p_cursor_pos bigint,
  p_xids xid8[],
  p_afters bigint[],
  out n bigint,
  out last_pos bigint
)
language plpgsql stable
as $$
declare
  v_first constant bigint := (select r.pos from awa.live_entries(p_ranges, p_lane_id, p_cursor_pos, 1) r);
begin
  select count(*), max(t.pos) into tombstoned_head.n, tombstoned_head.last_pos
  from awa.tombstones t
  where awa.is_within(t.slot, p_ranges) and t.lane_id = p_lane_id and t.pos > p_cursor_pos
    and (v_first is null or t.pos < v_first);
  tombstoned_head.n := tombstoned_head.n + (
    select count(*)
    from unnest(p_xids, p_afters) f(xid, after)
    cross join lateral (
      select r.slot, r.pos from awa.ready_entries r
      where awa.is_within(r.slot, p_ranges)
        and r.lane_id = p_lane_id and r.xid = f.xid and r.pos > f.after and r.pos <= p_cursor_pos
      offset 0 -- or all that the cursor has passed may be read, here as below
    ) r
    where awa.is_tombstoned(r.slot, p_lane_id, r.pos)
  );
end
$$;

-- `late_entries` of a lane with tombstones.
create function awa.live_late_entries(
  p_ranges smallint[],
  p_lane_id bigint,
  p_cursor_pos bigint,
  p_xids xid8[],
  p_afters bigint[],
  p_limit integer
) returns setof awa.ready_entries
language plpgsql stable
as $$
begin
  return query
  select r.*
  from unnest(p_xids, p_afters) f(xid, after)
  cross join lateral (
    select r.*
    from awa.ready_entries r
    where awa.is_within(r.slot, p_ranges)
      and r.lane_id = p_lane_id and r.xid = f.xid and r.pos > f.after and r.pos <= p_cursor_pos
      and not awa.is_tombstoned(r.slot, p_lane_id, r.pos)
    order by r.pos limit p_limit
  ) r
  order by r.pos limit p_limit;
end
$$;

-- The first rows of a lane, by position, that ended transactions own at positions its cursor has passed.
create function awa.late_entries(
  p_ranges smallint[], p_lane_id bigint, p_cursor_pos bigint, p_xids xid8[], p_afters bigint[], p_limit integer
) returns setof awa.ready_entries
language plpgsql stable
as $$
begin
  if exists (select from awa.tombstoned_lanes k where k.lane_id = p_lane_id) then
    return query select * from awa.live_late_entries(p_ranges, p_lane_id, p_cursor_pos, p_xids, p_afters, p_limit);
    return;
  end if;
  return query
  select r.*
  from unnest(p_xids, p_afters) f(xid, after)
  cross join lateral (
    select r.*
    from awa.ready_entries r
    where awa.is_within(r.slot, p_ranges)
      and r.lane_id = p_lane_id and r.xid = f.xid and r.pos > f.after and r.pos <= p_cursor_pos
    order by r.pos limit p_limit
  ) r
  order by r.pos limit p_limit;
end
$$;

create function awa.body_at(p_slot smallint, p_lane_id bigint, p_pos bigint) returns text
language plpgsql stable
as $$
begin
  return (
    select awa.claimed_body(
      r.job_id, r.run_lease, r.kind, r.attempt, r.max_attempts, r.run_at, r.created_at, r.args, r.envelope
    )
    from awa.ready_entries r
    where r.slot = p_slot and r.lane_id = p_lane_id and r.pos = p_pos
  );
end
$$;

-- Stable, too: a claim must not decide this before it holds the lane's lock, or a pause that waited for it is not seen.
create function awa.is_paused(p_queue text) returns boolean
language plpgsql stable
as $$
begin
  return exists (select from awa/*control*/.queues q where q.name = p_queue and q.paused_at is not null);
end
$$;

-- What a claim needs to know of the layout: see awa.layout_changes. A session remembers it as text in the setting
-- `awa.queue_<key>`, where keys may collide. Who changes this type must change the names of the settings, too: a session
-- may live on.
create type awa.queue_layout as (
  -- The schemas of one database, also one created anew, differ in the table of lanes.
  lanes_table oid,
  -- The count of changes by then; null when it is not to be trusted any more.
  version bigint,
  queue text,
  -- Of the active slots, see awa.ranges_of.
  ranges smallint[],
  -- By shard and priority; null when there are none.
  lanes bigint[],
  -- Of each lane.
  priorities smallint[],
  is_sharded boolean,
  has_tombstones boolean,
  has_cancel_requests boolean
);

create function awa.layout_key(p_queue text) returns integer
language sql stable
as $$
  select hashtext(p_queue) & 2147483647
$$;

-- Looks up the layout of a queue, statement by statement, and remembers it unless it is just being changed. A queue that
-- is paused has no lanes for a claim; one without lanes is looked up each time.
create function awa.look_up_layout(p_queue text) returns awa.queue_layout
language plpgsql
as $$
declare
  v_layout awa.queue_layout;
  v_settled boolean;
begin
  v_layout.lanes_table := 'awa.lanes'::regclass;
  v_layout.queue := p_queue;
  v_layout.version := awa.layout_version();
  v_settled := awa.layout_settled();
  v_layout.ranges := awa.slot_ranges();
  select
    array_agg(l.lane_id order by l.shard, l.priority), array_agg(l.priority order by l.shard, l.priority),
    max(l.shard) > 0
  into v_layout.lanes, v_layout.priorities, v_layout.is_sharded
  from (select distinct a.lane_id, a.priority, a.shard from awa.lanes a where a.queue = p_queue) l;
  v_layout.has_tombstones := exists (select from awa.tombstoned_lanes k where k.lane_id = any (v_layout.lanes));
  v_layout.has_cancel_requests := exists (select from awa.cancel_requests);
  if awa.is_paused(p_queue) then
    v_layout.lanes := null;
  end if;
  if v_layout.lanes is null or not v_settled then
    v_layout.version := null;
  else
    perform set_config('awa.queue_' || awa.layout_key(p_queue), v_layout::text, false);
  end if;
  return v_layout;
end
$$;

-- A sequence behind the data (data-only restore, setval): new jobs would hide below the cursor, a new batch below the
-- newest would leave the old cursor in force. Inlined.
create function awa.sequences_behind(p_cursor bigint, p_newest bigint, p_batch bigint) returns boolean
language sql volatile
as $$
  select coalesce(coalesce(pg_sequence_last_value('awa.pos_seq'), 0) < p_cursor, false) or p_batch <= p_newest
$$;

create function awa.assert_sequences(p_cursor bigint, p_newest bigint, p_batch bigint) returns void
language plpgsql
as $$
declare
  v_last_pos constant bigint := coalesce(pg_sequence_last_value('awa.pos_seq'), 0);
begin
  if awa.sequences_behind(p_cursor, p_newest, p_batch) then
    raise exception using
      errcode = 'AW005',
      message = format('sequences are behind the data: position %s, cursor %s; batch %s, newest %s',
        v_last_pos, p_cursor, p_batch, p_newest),
      hint = 'The data was restored without its sequences. Adopt it before working on it.';
  end if;
end
$$;

-- Positions as a batch stores them, relative to the first.
create function awa.offsets_of(p_positions bigint[]) returns integer[]
language plpgsql immutable
as $$
begin
  if cardinality(p_positions) = 1 then
    return '{0}';
  end if;
  return array(select (p - p_positions[1])::integer from unnest(p_positions) p);
end
$$;

-- The rows beyond a lane's cursor in the order of positions, which aggregates keep; the body of one that may be larger than
-- p_most bytes is null. Inlined.
create function awa.entries_ahead(
  p_ranges smallint[],
  p_lane_id bigint,
  p_cursor_pos bigint,
  p_limit integer,
  p_most integer
) returns table (pos bigint, slot smallint, body text)
language sql stable
as $$
  select r.pos, r.slot,
    case when awa.size_bound(r.args) + awa.size_bound(r.envelope) <= p_most then
      awa.claimed_body(
        r.job_id, r.run_lease, r.kind, r.attempt, r.max_attempts, r.run_at, r.created_at, r.args, r.envelope
      )
    end
  from (
    select r.*
    from awa.ready_entries r
    where awa.is_within(r.slot, p_ranges) and r.lane_id = p_lane_id and r.pos > p_cursor_pos
    order by r.pos limit p_limit
  ) r
  offset 0 -- or each body is built for each aggregate
$$;

-- The cursor of a lane. Inlined.
create function awa.newest_cursor(p_ranges smallint[], p_lane_id bigint)
returns table (batch_id bigint, cursor_pos bigint, pending_xids xid8[], pending_after bigint[])
language sql stable
as $$
  select b.batch_id, b.cursor_pos, b.pending_xids, b.pending_after
  from awa.claim_batches b
  where awa.is_within(b.slot, p_ranges) and b.lane_id = p_lane_id and b.cursor_pos is not null
  order by -b.batch_id limit 1
$$;

-- What lies ahead of a lane's cursor. Stable, so that all its statements read one snapshot, that of the statement which
-- calls it: `seen`. is_current: whether the ranges hold all slots of that snapshot, or else nothing was looked at.
-- is_plain: whether that is all there is to know, as nearly always: the next rows are in one slot, and none of them is
-- late, dead or large.
create function awa.lane_ahead(
  p_queue text,
  p_lane_id bigint,
  p_layout awa.queue_layout,
  p_limit integer,
  out seen pg_snapshot,
  out is_current boolean,
  out is_plain boolean,
  out cursor_pos bigint,
  out newest_batch bigint,
  out slot smallint,
  out positions bigint[],
  out bodies text
)
language plpgsql stable
as $$
declare
  v_ranges constant smallint[] := p_layout.ranges;
  v_is_known constant boolean := coalesce(p_layout.version = awa.layout_version(), false);
  v_last_tombstone bigint;
  v_pending_xids xid8[];
  v_pending_after bigint[];
  -- Of them, those that have ended since.
  v_xids xid8[];
  v_afters bigint[];
  v_is_plain boolean;
  -- Bytes of a job, so that all of them together keep within what claim_lanes allows.
  v_most constant integer := least(33554432 / greatest(p_limit, 1), 65536);
begin
  seen := pg_current_snapshot();
  is_plain := true;
  is_current := v_is_known or awa.covers_slots(v_ranges);
  if not is_current or not v_is_known and awa.is_paused(p_queue) then
    return;
  end if;

  if p_limit = 1 then
    -- Cursor and row at once and without aggregates, which saves a third. That finds nothing in a lane without a cursor.
    select
      c.batch_id, c.cursor_pos, c.pending_xids, c.pending_after,
      case when r.pos is not null then array[r.pos] end, r.slot, r.body, octet_length(r.body) <= v_most
    into
      lane_ahead.newest_batch, lane_ahead.cursor_pos, v_pending_xids, v_pending_after,
      lane_ahead.positions, lane_ahead.slot, lane_ahead.bodies, v_is_plain
    from awa.newest_cursor(v_ranges, p_lane_id) c
    left join lateral awa.entries_ahead(v_ranges, p_lane_id, c.cursor_pos, 1, v_most) r on true;
  else
    select c.batch_id, c.cursor_pos, c.pending_xids, c.pending_after
    into lane_ahead.newest_batch, lane_ahead.cursor_pos, v_pending_xids, v_pending_after
    from awa.newest_cursor(v_ranges, p_lane_id) c;
  end if;
  lane_ahead.cursor_pos := coalesce(lane_ahead.cursor_pos, 0);
  if not v_is_known or p_layout.has_tombstones then
    select k.last_pos into v_last_tombstone from awa.tombstoned_lanes k where k.lane_id = p_lane_id;
  end if;
  if v_pending_xids is not null then
    select array_agg(p.xid), array_agg(p.after) into v_xids, v_afters
    from unnest(v_pending_xids, v_pending_after) p(xid, after)
    where pg_visible_in_snapshot(p.xid, seen);
  end if;
  if v_last_tombstone > lane_ahead.cursor_pos
    or v_xids is not null and exists (
      select from awa.late_entries(v_ranges, p_lane_id, lane_ahead.cursor_pos, v_xids, v_afters, 1)
    )
  then
    is_plain := false;
    return;
  end if;

  if p_limit > 1 or newest_batch is null then
    select
      array_agg(r.pos),
      -- What numbers with large exponents are as text, the bound above cannot know.
      string_agg(r.body, ',') filter (where octet_length(r.body) <= v_most), min(r.slot),
      min(r.slot) = max(r.slot) and count(*) = count(*) filter (where octet_length(r.body) <= v_most)
        and max(r.pos) - min(r.pos) < 2147483647
    into lane_ahead.positions, lane_ahead.bodies, lane_ahead.slot, v_is_plain
    from awa.entries_ahead(v_ranges, p_lane_id, lane_ahead.cursor_pos, p_limit, v_most) r;
  end if;
  is_plain := coalesce(v_is_plain, false);
  if lane_ahead.positions is null then
    -- What has ended without leaving a row is forgotten with the next row of the cursor. There may not be one soon.
    is_plain := v_xids is null or cardinality(v_xids) < 16 and v_last_tombstone is null;
  end if;
end
$$;

-- Gives each attempt of a claim its lease: see awa.claims_by_receipt.
create function awa.lease_claimed(p_owner uuid, p_jobs text) returns void
language plpgsql
as $$
begin
  perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));
  perform nextval('awa.lease_marks');
  insert into awa.leases (
    lease_slot, slot, batch_id, nonce, member, job_id, run_lease, owner, heartbeat_at, deadline_at, claimed_at
  )
  select
    s.slot, b.slot, b.batch_id, b.nonce, m.member, r.job_id, r.run_lease + 1, b.owner, b.claimed_at, b.deadline_at,
    b.claimed_at
  from json_array_elements(p_jobs::json) j(batch)
  cross join lateral (
    select * from awa.claim_batches b
    where b.slot = (j.batch ->> 0)::smallint and b.batch_id = (j.batch ->> 1)::bigint limit 1
  ) b
  cross join lateral generate_series(1, b.n) m(member)
  cross join lateral (
    select * from awa.ready_entries r
    where r.slot = b.slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, m.member) limit 1
  ) r
  cross join (select l.slot from awa.slots l where l.ring = 'lease' and l.sealed_at is null) s;
end
$$;

-- A claim of whatever there is, for which the caller holds the locks of the lanes: of several lanes, of jobs that are
-- late, dead or large.
create function awa.claim_lanes(
  p_queue text,
  p_lanes bigint[],
  p_limit integer,
  p_owner uuid,
  p_nonce bigint,
  p_deadline_ms bigint,
  p_now timestamptz,
  p_aging_ms bigint,
  out jobs text,
  out claimed_at timestamptz,
  out deadline_at timestamptz
)
language plpgsql
as $$
declare
  v_ranges smallint[] := awa.slot_ranges();
  -- Who waits since then has waited one, two, three intervals.
  v_interval constant interval := case
    when p_aging_ms > 0 then least(p_aging_ms, 3155760000000) * interval '1 millisecond' -- a century will do
  end;
  v_one constant timestamptz := coalesce(coalesce(p_now, statement_timestamp()) - v_interval, '-infinity');
  v_two constant timestamptz := coalesce(v_one - v_interval, '-infinity');
  v_three constant timestamptz := coalesce(v_two - v_interval, '-infinity');
  v_current boolean;
  v_cursor bigint;
  v_newest bigint;
  v_first_batch bigint;
begin
  loop
    -- One statement, one snapshot. The slots are known before it, so that only theirs are set up, and the snapshot must
    -- agree: a row in a slot that is not listed would be passed over.
    with snapshot as materialized (
      select
        pg_current_snapshot() as s,
        (select e.floor_pos from awa.epochs e order by e.epoch desc limit 1) as floor_pos,
        awa.covers_slots(v_ranges) as is_current
    ),
    lane as materialized (
      select
        l.lane_id, l.priority,
        coalesce(c.cursor_pos, 0) as cursor_pos, c.batch_id, c.pending_xids, c.pending_after,
        exists (
          select from awa.tombstoned_lanes k where k.lane_id = l.lane_id and k.last_pos > coalesce(c.cursor_pos, 0)
        ) as is_tombstoned
      from (select distinct on (lane_id) lane_id, priority from awa.lanes where lane_id = any (p_lanes)) l
      left join lateral (
        select b.batch_id, b.cursor_pos, b.pending_xids, b.pending_after
        from awa.claim_batches b
        where awa.is_within(b.slot, v_ranges) and b.lane_id = l.lane_id and b.cursor_pos is not null
        order by -b.batch_id limit 1
      ) c on true
      where not awa.is_paused(p_queue)
    ),
    -- Transactions that were pending and have ended since.
    finished as materialized (
      select l.lane_id, l.cursor_pos, p.xid, p.after
      from lane l cross join lateral unnest(l.pending_xids, l.pending_after) p(xid, after), snapshot
      where pg_visible_in_snapshot(p.xid, snapshot.s)
    ),
    -- Their rows, at positions the cursor has passed.
    late as materialized (
      select r.*
      from (
        select f.lane_id, f.cursor_pos, array_agg(f.xid) as xids, array_agg(f.after) as afters
        from finished f group by f.lane_id, f.cursor_pos
      ) f
      cross join lateral awa.late_entries(v_ranges, f.lane_id, f.cursor_pos, f.xids, f.afters, p_limit) r
    ),
    late_found as materialized (
      select l.lane_id, count(l.pos) as n from late l group by l.lane_id
    ),
    -- `body` is a job's part of the answer. Built here, it keeps the rows that travel on narrow; built above the scans, it
    -- is not set up once for every partition. That of a large job is built when it is known to be taken.
    waiting as materialized (
      select
        w.lane_id, w.is_late, w.pos, w.slot, w.bytes, greatest(w.run_at, w.created_at) as since,
        case when w.bytes <= 65536 then awa.claimed_body(
          w.job_id, w.run_lease, w.kind, w.attempt, w.max_attempts, w.run_at, w.created_at, w.args, w.envelope
        ) end as body
      from (
        select true as is_late, l.lane_id, l.pos, l.slot, l.job_id, l.run_lease, l.run_at, l.created_at, l.attempt,
          l.max_attempts, l.kind, l.args, l.envelope, awa.size_bound(l.args) + awa.size_bound(l.envelope) as bytes
        from late l
        union all
        select false, l.lane_id, r.pos, r.slot, r.job_id, r.run_lease, r.run_at, r.created_at, r.attempt,
          r.max_attempts, r.kind, r.args, r.envelope, awa.size_bound(r.args) + awa.size_bound(r.envelope)
        from lane l
        left join late_found f on f.lane_id = l.lane_id
        cross join lateral (
          select r.*
          from awa.ready_entries r
          where not l.is_tombstoned and awa.is_within(r.slot, v_ranges) and r.lane_id = l.lane_id and r.pos > l.cursor_pos
          order by r.pos limit greatest(p_limit - coalesce(f.n, 0), 0)
        ) r
        union all
        select false, l.lane_id, r.pos, r.slot, r.job_id, r.run_lease, r.run_at, r.created_at, r.attempt,
          r.max_attempts, r.kind, r.args, r.envelope, awa.size_bound(r.args) + awa.size_bound(r.envelope)
        from lane l
        left join late_found f on f.lane_id = l.lane_id
        cross join lateral awa.live_entries(
          v_ranges, l.lane_id, l.cursor_pos, greatest(p_limit - coalesce(f.n, 0), 0)::integer
        ) r
        where l.is_tombstoned
      ) w
    ),
    -- Also where each lane comes to a job that has not waited one, two, three intervals.
    first_waiting as materialized (
      select w.lane_id,
        min(w.pos) filter (where not w.is_late) as pos,
        min(w.pos) filter (where w.since > v_one) as one,
        min(w.pos) filter (where w.since > v_two) as two,
        min(w.pos) filter (where w.since > v_three) as three
      from waiting w
      group by w.lane_id
    ),
    -- By effective priority. Every order used here must take a prefix of each lane: the cursor can say nothing else. So a
    -- job counts no more than those before it in its lane, although it may have waited longer: it was retried, say.
    ranked as materialized (
      select w.*, row_number() over o as rank, sum(coalesce(octet_length(w.body), w.bytes)) over o as total_bytes
      from (
        select w.*, l.priority, f.pos as first_pos,
          greatest(
            1,
            l.priority - case when w.pos >= f.one then 0 when w.pos >= f.two then 1 when w.pos >= f.three then 2 else 3 end
          ) as key
        from waiting w
        join lane l on l.lane_id = w.lane_id
        join first_waiting f on f.lane_id = w.lane_id
      ) w
      window o as (order by w.key, w.pos)
    ),
    -- The bound on bytes keeps an answer of large payloads within what a client can hold as one string; the bound on
    -- positions lets a batch store offsets.
    taken as materialized (
      select r.* from ranked r
      where r.rank <= p_limit
        and (r.total_bytes <= 33554432 or r.rank = 1)
        and (r.is_late or r.pos - r.first_pos < 2147483647)
      order by r.rank
    ),
    late_taken as materialized (
      select t.lane_id, count(t.pos) as n, max(t.pos) as last from taken t where t.is_late group by t.lane_id
    ),
    -- Lanes nothing is taken from, whose next claim would have to look at too many tombstones again.
    skipped as materialized (
      select l.lane_id, h.last_pos
      from lane l
      cross join lateral (
        select array_agg(f.xid) as xids, array_agg(f.after) as afters from finished f where f.lane_id = l.lane_id
      ) f
      cross join lateral awa.tombstoned_head(v_ranges, l.lane_id, l.cursor_pos, f.xids, f.afters) h
      where (l.is_tombstoned or f.xids is not null and exists (
          select from awa.tombstoned_lanes k where k.lane_id = l.lane_id
        ))
        and not exists (select from taken t where t.lane_id = l.lane_id)
        and h.n > 256
    ),
    -- A claim that found nothing writes nothing, unless the cursor has learned enough to be worth a row.
    learned as materialized (
      select f.lane_id from finished f
      where not exists (select from taken)
      group by f.lane_id having count(*) >= 16
      union
      select s.lane_id from skipped s
    ),
    own as materialized (
      -- The instant, too, is taken when the rows are known: no attempt starts before its job was there.
      select pg_current_xact_id() as xid, coalesce(p_now, clock_timestamp()) as at
      from (select (select count(*) from taken) + (select count(*) from learned) as n) t, snapshot
      where t.n > 0 and snapshot.is_current
    ),
    pending as materialized (
      select awa.pending_xids(snapshot.s, own.xid) as xids, snapshot.floor_pos from snapshot, own
    ),
    -- Late rows that are left behind: their transactions stay pending, from the last position taken on.
    carried as materialized (
      select f.lane_id, f.xid, greatest(f.after, t.last) as after
      from finished f
      join late_found l on l.lane_id = f.lane_id
      left join late_taken t on t.lane_id = f.lane_id
      where l.n >= p_limit or l.n > coalesce(t.n, 0)
    ),
    -- After our id was taken: the longer it takes from the snapshot to the id, the more ids are pending.
    large as materialized (
      select t.lane_id, t.pos, awa.body_at(t.slot, t.lane_id, t.pos) as body
      from own
      cross join taken t
      where t.body is null
    ),
    -- One batch per lane and slot of the rows. Late members come first.
    batch as materialized (
      select g.*, nextval('awa.batch_seq') as batch_id
      from (
        select
          t.lane_id, t.slot, count(*) as n, min(t.first_pos) as lo,
          max(t.pos) filter (where not t.is_late) as hi,
          array_agg((t.pos - t.first_pos)::integer) filter (where not t.is_late) as offsets,
          array_agg(t.pos) filter (where t.is_late) as late,
          min(t.priority) as priority, array_agg(t.rank) as ranks,
          concat_ws(
            ',',
            string_agg(t.body, ',') filter (where t.is_late),
            string_agg(t.body, ',') filter (where not t.is_late)
          ) as bodies
        from (
          -- The order of the answer: members are numbered as they are to start. It begins with the columns of the grouping,
          -- so that no further sort comes in between.
          select t.lane_id, t.slot, t.pos, t.is_late, t.first_pos, t.priority, t.rank, coalesce(t.body, x.body) as body
          from own
          cross join taken t
          left join large x on x.lane_id = t.lane_id and x.pos = t.pos
          order by t.lane_id, t.slot, t.rank
        ) t
        group by t.lane_id, t.slot
        union all
        select l.lane_id, s.slot, 0, null, null, null, null, null, null, null
        from learned l, awa.slots s, own where s.ring = 'ready' and s.sealed_at is null
      ) g
    ),
    inserted as (
      insert into awa.claim_batches (
        slot, batch_id, nonce, lane_id, owner, claimed_at, deadline_at, n, lo, hi, offsets, late,
        cursor_pos, pending_xids, pending_after
      )
      select
        b.slot, b.batch_id, p_nonce, b.lane_id, p_owner, o.at, o.at + p_deadline_ms * interval '1 millisecond', b.n,
        b.lo, b.hi, b.offsets, b.late, c.cursor_pos, c.pending_xids, c.pending_after
      from batch b
      cross join own o
      left join lateral (
        -- The cursor is on the lane's last row.
        select
          greatest(
            l.cursor_pos,
            (select max(o.hi) from batch o where o.lane_id = b.lane_id),
            (select s.last_pos from skipped s where s.lane_id = b.lane_id)
          ) as cursor_pos,
          nullif(p.xids || coalesce(k.xids, '{}'), '{}') as pending_xids,
          nullif(array_fill(p.floor_pos, array[cardinality(p.xids)]) || coalesce(k.afters, '{}'), '{}') as pending_after
        from lane l
        cross join pending p
        cross join lateral (
          select array_agg(c.xid) as xids, array_agg(c.after) as afters from carried c where c.lane_id = b.lane_id
        ) k
        where l.lane_id = b.lane_id
          and b.batch_id = (select max(o.batch_id) from batch o where o.lane_id = b.lane_id)
      ) c on true
    )
    select
      (
        select '[' || string_agg(
          concat(
            '[', b.slot, ',"', b.batch_id, '",', b.priority, ',[', b.bodies, '],',
            coalesce(case when (select count(*) from batch) > 1 then to_json(b.ranks)::text end, 'null'), ']'
          ), ','
        ) || ']'
        from batch b where b.n > 0
      ),
      (select o.at from own o),
      (select o.at + p_deadline_ms * interval '1 millisecond' from own o),
      (select max(l.cursor_pos) from lane l),
      (select max(l.batch_id) from lane l),
      (select min(b.batch_id) from batch b),
      (select s.is_current from snapshot s)
    into claim_lanes.jobs, claim_lanes.claimed_at, claim_lanes.deadline_at, v_cursor, v_newest, v_first_batch, v_current;
    exit when v_current;
    v_ranges := awa.slot_ranges();
  end loop;
  perform awa.assert_sequences(v_cursor, v_newest, v_first_batch);
end
$$;

-- Takes up to p_limit waiting jobs of a queue, the lowest priority number first, each lane in position order. For every
-- p_aging_ms that a job has waited its number counts one less, down to 1; null or 0: it does not. Of a queue with several
-- shards it takes only the lanes it gets without waiting for another claim; a row without jobs says that others were
-- quicker: claim again.
-- Answers one row, or none when nothing was taken. jobs: a JSON array with one array per batch, [slot, batch id,
-- priority, members, ranks], where ranks tells the places of the members in the whole claim and is null when there is
-- just one batch; and one array per member, in the order of their numbers:
--   [job id, run lease, kind, attempt, max attempts, run_at, created_at, payload, envelope]
-- where ids are strings, instants are milliseconds since 1970, and the attempt is the one that starts. A member whose job
-- was to be cancelled, and now is, is null.
create function awa.claim(
  p_queue text,
  p_limit integer,
  p_owner uuid,
  p_nonce bigint,
  p_deadline_ms bigint,
  p_async boolean,
  p_now timestamptz,
  p_aging_ms bigint default null,
  out jobs text,
  out claimed_at timestamptz,
  out deadline_at timestamptz
) returns setof record
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
  v_layout awa.queue_layout :=
    nullif(current_setting('awa.queue_' || awa.layout_key(p_queue), true), '')::awa.queue_layout;
  v_lanes bigint[];
  v_expecting boolean := false;
  v_ahead record;
  v_plain boolean := false;
  v_priority smallint;
  v_members integer;
  v_batch bigint;
  v_pending_xids xid8[];
  v_pending_after bigint[];
begin
  if p_limit is null or p_limit not between 0 and 32767 then
    raise exception using errcode = '22023', message = 'limit: must be 0 to 32767';
  end if;
  -- Our id must be younger than the snapshot below, and the snapshot must show what the last holder of the lane lock
  -- committed.
  if not awa.is_read_committed() then
    perform awa.assert_read_committed();
  end if;
  if pg_current_xact_id_if_assigned() is not null then
    raise exception using errcode = 'AW004', message = 'a claim must be the first statement of its transaction';
  end if;
  if p_async then
    -- A claim lost in a crash is only a redelivery, and the flush of a completion carries the claim's WAL with it. Local
    -- to the transaction: a session setting would leak, a SET clause would end before the commit.
    perform set_config('synchronous_commit', 'off', true);
  end if;

  if p_limit = 0 then
    return; -- it could learn which transactions have ended, and not that they left rows
  end if;

  if (
    v_layout.version = awa.layout_version() and v_layout.queue = p_queue
      and v_layout.lanes_table = 'awa.lanes'::regclass
  ) is not true then
    v_layout := awa.look_up_layout(p_queue);
  end if;

  -- Locks are released after the claim is visible.
  if v_layout.lanes is null then
    return;
  elsif v_layout.is_sharded then
    select k.lanes, k.expecting into v_lanes, v_expecting
    from awa.lock_lanes(p_queue, v_layout, p_limit, p_nonce, p_now, p_aging_ms) k;
    if v_lanes is null then
      return;
    end if;
  else
    v_lanes := v_layout.lanes;
    if cardinality(v_lanes) > 1 then
      perform awa.hold_lanes(v_lanes);
    else
      perform pg_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_lanes[1]));
    end if;
  end if;

  if cardinality(v_lanes) = 1 then
    loop
      v_ahead := awa.lane_ahead(p_queue, v_lanes[1], v_layout, p_limit);
      exit when v_ahead.is_current;
      v_layout.version := null;
      v_layout.ranges := awa.slot_ranges();
    end loop;
    v_plain := v_ahead.is_plain;
  end if;
  if not v_plain then
    select c.jobs, c.claimed_at, c.deadline_at into claim.jobs, claim.claimed_at, claim.deadline_at
    from awa.claim_lanes(p_queue, v_lanes, p_limit, p_owner, p_nonce, p_deadline_ms, p_now, p_aging_ms) c;
  elsif v_ahead.positions is not null then
    -- Soon after the look: the longer it takes from the snapshot to the id, the more ids are pending.
    v_pending_xids := nullif(awa.pending_xids(v_ahead.seen, pg_current_xact_id()), '{}');
    if v_pending_xids is not null then
      v_pending_after := array_fill(
        (select e.floor_pos from awa.epochs e order by e.epoch desc limit 1), array[cardinality(v_pending_xids)]
      );
    end if;
    -- The instant, too, is taken when the rows are known: no attempt starts before its job was there.
    claim.claimed_at := coalesce(p_now, clock_timestamp());
    claim.deadline_at := claim.claimed_at + p_deadline_ms * interval '1 millisecond';
    v_members := cardinality(v_ahead.positions);
    v_batch := nextval('awa.batch_seq');
    insert into awa.claim_batches (
      slot, batch_id, nonce, lane_id, owner, claimed_at, deadline_at, n, lo, hi, offsets,
      cursor_pos, pending_xids, pending_after
    )
    values (
      v_ahead.slot, v_batch, p_nonce, v_lanes[1], p_owner, claim.claimed_at, claim.deadline_at, v_members,
      v_ahead.positions[1], v_ahead.positions[v_members], awa.offsets_of(v_ahead.positions),
      v_ahead.positions[v_members], v_pending_xids, v_pending_after
    );
    v_priority := v_layout.priorities[array_position(v_layout.lanes, v_lanes[1])];
    if v_priority is null then -- of several shards, one that came into being after the look-up
      select l.priority into v_priority from awa.lanes l where l.lane_id = v_lanes[1] limit 1;
    end if;
    claim.jobs := format('[[%s,"%s",%s,[%s],null]]', v_ahead.slot, v_batch, v_priority, v_ahead.bodies);
  end if;
  if v_plain then -- else v_ahead may not be assigned
    if awa.sequences_behind(v_ahead.cursor_pos, v_ahead.newest_batch, v_batch) then
      perform awa.assert_sequences(v_ahead.cursor_pos, v_ahead.newest_batch, v_batch);
    end if;
  end if;

  if v_expecting and (claim.jobs is null) <> (coalesce(current_setting('awa.look', true), '') = 'on') then
    perform set_config('awa.look', case when claim.jobs is null then 'on' else 'off' end, false);
  end if;
  if not awa.claims_by_receipt() and claim.jobs is not null then
    perform awa.lease_claimed(p_owner, claim.jobs);
  end if;
  if claim.jobs is not null
    and (v_layout.has_cancel_requests or v_layout.version is distinct from awa.layout_version())
    and pg_relation_size('awa.cancel_requests') > 0 -- which costs no query
  then
    claim.jobs := awa.without_cancelled(claim.jobs, p_owner, p_nonce, claim.claimed_at);
  end if;
  if claim.jobs is not null or v_expecting then
    return next;
  end if;
end
$$;

revoke execute on function awa.claim(text, integer, uuid, bigint, bigint, boolean, timestamptz, bigint) from public;

-- Whether there is something to claim in a lane with tombstones, or so many of them that a claim should pass them.
create function awa.is_claimable(
  p_ranges smallint[],
  p_lane_id bigint,
  p_cursor_pos bigint,
  p_pending_xids xid8[],
  p_pending_after bigint[]
) returns boolean
language plpgsql stable
as $$
declare
  v_xids xid8[];
  v_afters bigint[];
begin
  if exists (
    select from awa.tombstones t
    where awa.is_within(t.slot, p_ranges) and t.lane_id = p_lane_id and t.pos > p_cursor_pos
    order by t.pos offset 256
  ) or exists (select from awa.live_entries(p_ranges, p_lane_id, p_cursor_pos, 1)) then
    return true;
  end if;
  select array_agg(p.xid), array_agg(p.after) into v_xids, v_afters
  from unnest(p_pending_xids, p_pending_after) p(xid, after)
  where pg_visible_in_snapshot(p.xid, pg_current_snapshot());
  return v_xids is not null and (
    exists (
      select
      from unnest(v_xids, v_afters) f(xid, after)
      cross join lateral (
        select from awa.ready_entries r
        where awa.is_within(r.slot, p_ranges)
          and r.lane_id = p_lane_id and r.xid = f.xid and r.pos > f.after and r.pos <= p_cursor_pos
        offset 0
      ) r
      offset 256
    ) or exists (select from awa.late_entries(p_ranges, p_lane_id, p_cursor_pos, v_xids, v_afters, 1))
  );
end
$$;

-- Which of these queues have something to claim. Reads only, takes no id and no lock.
create function awa.probe(p_queues text[]) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
  v_ranges constant smallint[] := awa.slot_ranges();
begin
  return query
  select q.queue
  from unnest(p_queues) q(queue)
  where not awa.is_paused(q.queue) and exists (
    select
    from (select distinct l.lane_id from awa.lanes l where l.queue = q.queue) l
    left join lateral (
      select b.cursor_pos, b.pending_xids, b.pending_after
      from awa.claim_batches b
      where awa.is_within(b.slot, v_ranges) and b.lane_id = l.lane_id and b.cursor_pos is not null
      order by -b.batch_id limit 1
    ) c on true
    left join awa.tombstoned_lanes k on k.lane_id = l.lane_id
    where case
      when k.lane_id is not null
        then awa.is_claimable(v_ranges, l.lane_id, coalesce(c.cursor_pos, 0), c.pending_xids, c.pending_after)
      else exists (
        select from awa.ready_entries r
        where awa.is_within(r.slot, v_ranges) and r.lane_id = l.lane_id and r.pos > coalesce(c.cursor_pos, 0)
      ) or exists (
        select
        from unnest(c.pending_xids, c.pending_after) p(xid, after)
        where pg_visible_in_snapshot(p.xid, pg_current_snapshot()) and exists (
          select from awa.ready_entries r
          where awa.is_within(r.slot, v_ranges)
            and r.lane_id = l.lane_id and r.xid = p.xid and r.pos > p.after and r.pos <= c.cursor_pos
        )
      )
    end or c.cursor_pos > (select s.last_value from awa.pos_seq s) -- let the claim say what is wrong
  );
end
$$;

revoke execute on function awa.probe(text[]) from public;
