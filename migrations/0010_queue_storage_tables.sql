-- schema: engine
-- Queue storage: an append-mostly log. Rows of the log (ready_entries, claim_batches, closures) are inserted and
-- truncated, never updated or deleted; what must change lives in small row tables beside it.

create schema if not exists awa;

-- Positions and job ids: a job's id is the position of its first appearance. Cached ranges would break "a position that
-- can be seen is not above last_value", hence CACHE 1. Only the functions of this schema may draw from it, and only
-- after their transaction has an id.
create sequence awa.pos_seq cache 1;
create sequence awa.batch_seq cache 1;

-- The clusters this data has lived in. Transaction ids mean something only in the cluster that gave them out.
create table awa.epochs (
  epoch integer primary key,
  system_identifier bigint not null,
  floor_pos bigint not null,
  started_at timestamptz not null default clock_timestamp()
);

insert into awa.epochs (epoch, system_identifier, floor_pos)
select 1, system_identifier, 0 from pg_control_system();

-- How the storage is laid out, chosen when it is installed.
create table awa.storage_config (
  name text primary key,
  value integer not null
);

insert into awa.storage_config (name, value)
values
  ('queue_slots', /*queueSlotCount*/16),
  ('lease_slots', /*leaseSlotCount*/8),
  ('lease_claim_receipts', (/*leaseClaimReceipts*/true)::integer);

-- Whether a claim's batch is all that tells of its attempts until their first sign of life, or each gets a lease at once.
-- A constant, so that it costs claims nothing.
create function awa.claims_by_receipt() returns boolean
language sql immutable parallel safe
as $$
  select /*leaseClaimReceipts*/true
$$;

create function awa.storage_setting(p_name text) returns integer
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select c.value from awa.storage_config c where c.name = p_name
$$;

revoke execute on function awa.storage_setting(text) from public;

-- The life of the slots: one row from a slot's opening until it is freed. `ready` is the ring that the tables of the log
-- share, `park` holds what waited longer than a lap of it, `lease` belongs to the leases. A slot of the log is
--   open: new rows go there;
--   sealed: no more rows, but for strays;
--   counted: nobody writes to it any more, so counted_rows is what there is to close;
--   drained: no row of it waits and no lane's newest cursor is in it: claims do not look at it.
create table awa.slots (
  ring text not null check (ring in ('ready', 'park', 'lease')),
  generation bigint not null,
  slot smallint not null,
  -- By the clock of the workers; null until the first of them has looked.
  opened_at timestamptz,
  sealed_at timestamptz,
  counted_rows bigint,
  drained_at timestamptz,
  -- How many successes of each lane it holds, once all its rows are closed: who counts need not read it any more.
  completed jsonb,
  primary key (ring, generation)
);

create unique index slots_open on awa.slots (ring) where sealed_at is null;
create unique index slots_used on awa.slots ((ring = 'lease'), slot);

insert into awa.slots (ring, generation, slot)
select 'ready', 1, 0
union all
select 'lease', 1, 0;

-- A producer that read the open slot just before it was sealed, and wrote just after, says so here, in the transaction of
-- its rows: the slot is to be looked at and counted again.
create table awa.slot_strays (
  slot smallint not null,
  written_at timestamptz not null default clock_timestamp()
);

-- The open slot of the log, again, as a producer reads it: the value of a sequence costs no query. Set after the ledger's
-- transaction has committed, so that whoever sees a row of a slot sees the slot in the ledger.
create sequence awa.ready_slot minvalue 0 start 0;
select setval('awa.ready_slot', 0);

-- (queue, priority, shard) triples seen. The id is computed, so nobody waits for a lane to be created; duplicates are
-- harmless and there is no unique constraint that concurrent first producers would block on.
create table awa.lanes (
  lane_id bigint not null,
  queue text not null,
  priority smallint not null,
  shard smallint not null
);

create index lanes_lane_id on awa.lanes (lane_id);
create index lanes_queue on awa.lanes (queue);

-- One row per waiting appearance of a job. `attempt` and `run_lease` are those before the claim. `envelope` holds
-- metadata, tags, errors and progress and is null when all are empty. `args` is kept as the text it came as: workers want
-- text, and to make jsonb of it and text again took a tenth of an enqueue in bulk and a third of a claim. No check
-- constraints: PostgreSQL parses and plans each anew in every statement, a tenth of an enqueue. The functions that write
-- here check, nobody else may.
create table awa.ready_entries (
  lane_id bigint not null,
  pos bigint not null,
  xid xid8 not null,
  job_id bigint not null,
  run_lease bigint not null,
  run_at timestamptz not null,
  created_at timestamptz not null,
  slot smallint not null,
  attempt smallint not null,
  max_attempts smallint not null,
  kind text not null,
  args json not null,
  envelope jsonb
) partition by list (slot);

-- One row per (claim, lane, slot of the rows it took). Member i of a batch is late[i] for the first cardinality(late)
-- members, lo + offsets[i - cardinality(late)] for the rest. The lane's cursor after the claim is on the claim's last
-- row of the lane: `cursor_pos`, and the transactions that may own positions up to it and were not finished, each with
-- the last position already taken from it.
create table awa.claim_batches (
  batch_id bigint not null,
  nonce bigint not null,
  lane_id bigint not null,
  owner uuid not null,
  claimed_at timestamptz not null,
  deadline_at timestamptz,
  lo bigint,
  hi bigint,
  cursor_pos bigint,
  slot smallint not null,
  n smallint not null,
  offsets integer[],
  late bigint[],
  pending_xids xid8[],
  pending_after bigint[]
) partition by list (slot);

-- Which act ended an attempt. All but `rescue`, `evict` and `abort`, an operator's cancel, are written by the attempt's
-- owner only; `evict` does not end it, from then on its lease decides.
create type awa.closing as enum ('complete', 'retry', 'snooze', 'return', 'cancel', 'fail', 'rescue', 'evict', 'abort');

-- One row per (flush, batch, act): the members closed by it.
create table awa.closures (
  batch_id bigint not null,
  finished_at timestamptz not null,
  act awa.closing not null,
  slot smallint not null,
  n smallint not null,
  members smallint[] not null
) partition by list (slot);

-- Waiting rows that will not be claimed: what they were is decided, and written, elsewhere. Written only under the lane's
-- lock, for a row that its cursor has not consumed; counts like a member of a closure when a slot is freed.
create table awa.tombstones (
  lane_id bigint not null,
  pos bigint not null,
  written_at timestamptz not null,
  slot smallint not null
) partition by list (slot);

-- The lanes that may have tombstones, and the position above which they have none: a claim looks for tombstones only where
-- its cursor is below. Written under the lane's lock, too.
create table awa.tombstoned_lanes (
  lane_id bigint primary key,
  last_pos bigint not null
) with (fillfactor = 50);

-- Wishes to cancel a job, written in their callers' transactions without a lock: honoured by the claim that takes the job
-- or by the leader, whichever sees them first. No unique key, which callers would wait for each other at.
create table awa.cancel_requests (
  job_id bigint not null,
  requested_at timestamptz not null,
  reason text
);

create index cancel_requests_job on awa.cancel_requests (job_id);

-- Attempts that need mutable state: a sign of life, progress, a callback. Its own ring, because rows here are updated.
create table awa.leases (
  batch_id bigint not null,
  nonce bigint not null,
  job_id bigint not null,
  run_lease bigint not null,
  owner uuid not null,
  heartbeat_at timestamptz not null,
  deadline_at timestamptz,
  slot smallint not null,
  member smallint not null,
  lease_slot smallint not null,
  claimed_at timestamptz not null,
  progress jsonb,
  -- The job as it waited, when the slot of the claim has let go of the attempt; null while the log has it.
  entry json
) partition by list (lease_slot);

-- Counts the times when leases may have been added, under the locks of their owners: see awa.may_have_leases.
create sequence awa.lease_marks;
select nextval('awa.lease_marks');

do $$
declare
  v_queue_slots constant integer := (select value from awa.storage_config where name = 'queue_slots');
  v_lease_slots constant integer := (select value from awa.storage_config where name = 'lease_slots');
begin
  -- The ring, and two slots to park what waits long.
  for i in 0..v_queue_slots + 1 loop
    execute format('create table awa.ready_entries_%s partition of awa.ready_entries for values in (%s)', i, i);
    -- The second index finds the rows of one transaction that became visible late.
    execute format('create unique index on awa.ready_entries_%s (lane_id, pos)', i);
    execute format('create index on awa.ready_entries_%s (lane_id, xid, pos)', i);
    -- A first appearance is found by its position, which is the job's id.
    execute format('create index on awa.ready_entries_%s (job_id) where job_id <> pos', i);
    -- The waiting ones of the others.
    execute format('create index on awa.ready_entries_%s (lane_id, pos) where job_id <> pos', i);

    execute format('create table awa.claim_batches_%s partition of awa.claim_batches for values in (%s)', i, i);
    execute format('create unique index on awa.claim_batches_%s (batch_id)', i);
    -- The newest cursor of a lane. By the negative: else the index above has the order, too, and may be planned to be read
    -- until a batch of the lane comes, past those of all busier lanes.
    execute format(
      'create index on awa.claim_batches_%s (lane_id, (-batch_id)) where cursor_pos is not null', i);
    -- The batch of a position: the first of its lane that ends at or above it, or one that took it late.
    execute format('create index on awa.claim_batches_%s (lane_id, hi, batch_id)', i);
    execute format('create index on awa.claim_batches_%s using gin (late) where late is not null', i);

    execute format('create table awa.closures_%s partition of awa.closures for values in (%s)', i, i);
    execute format('create index on awa.closures_%s (batch_id)', i);

    execute format('create table awa.tombstones_%s partition of awa.tombstones for values in (%s)', i, i);
    execute format('create unique index on awa.tombstones_%s (lane_id, pos)', i);
  end loop;

  -- Log tables are reclaimed by truncation: vacuum has nothing to do there.
  for i in 0..v_queue_slots + 1 loop
    execute format('alter table awa.ready_entries_%s set (autovacuum_enabled = false)', i);
    execute format(
      'alter table awa.claim_batches_%s set (autovacuum_enabled = false, toast_tuple_target = 8160)', i);
    execute format('alter table awa.closures_%s set (autovacuum_enabled = false)', i);
    execute format('alter table awa.tombstones_%s set (autovacuum_enabled = false)', i);
  end loop;

  for i in 0..v_lease_slots - 1 loop
    execute format(
      'create table awa.leases_%s partition of awa.leases for values in (%s) with (fillfactor = 70)', i, i);
    execute format('create unique index on awa.leases_%s (batch_id, member)', i);
    execute format('create index on awa.leases_%s (owner)', i);
    execute format('create index on awa.leases_%s (heartbeat_at)', i);
    execute format('create index on awa.leases_%s (deadline_at) where deadline_at is not null', i);
  end loop;
end
$$;

-- Attempts of lower batches are over or have a lease, as the rescue of stale attempts has found out: who looks for running
-- jobs need not read the whole history.
create table awa.rescue_frontier (
  batch_id bigint not null
);

insert into awa.rescue_frontier (batch_id) values (0);

-- Jobs that are not to run yet.
create table awa.deferred_jobs (
  job_id bigint primary key,
  state awa/*control*/.job_state not null check (state in ('scheduled', 'retryable')),
  run_at timestamptz not null check (isfinite(run_at)),
  created_at timestamptz not null check (isfinite(created_at)),
  attempted_at timestamptz,
  run_lease bigint not null,
  priority smallint not null,
  shard smallint not null,
  attempt smallint not null,
  max_attempts smallint not null,
  queue text not null,
  kind text not null,
  args json not null,
  envelope jsonb
);

create index deferred_jobs_due on awa.deferred_jobs (run_at, job_id);
create index deferred_jobs_by_state on awa.deferred_jobs (state, job_id);

-- Jobs that ended otherwise than by success. A success is its closure; its body stays in the log.
create table awa.finished_jobs (
  job_id bigint primary key,
  state awa/*control*/.job_state not null check (state in ('completed', 'failed', 'cancelled')),
  finished_at timestamptz not null,
  run_at timestamptz not null,
  created_at timestamptz not null,
  attempted_at timestamptz,
  run_lease bigint not null,
  priority smallint not null,
  shard smallint not null,
  attempt smallint not null,
  max_attempts smallint not null,
  queue text not null,
  kind text not null,
  args json not null,
  envelope jsonb
);

create index finished_jobs_by_state on awa.finished_jobs (state, finished_at, job_id);
create index finished_jobs_by_id on awa.finished_jobs (state, job_id);
create index finished_jobs_by_queue on awa.finished_jobs (queue, state, finished_at);

-- Jobs that failed and were set aside for somebody to look at. `dlq_at` is cut to milliseconds, so that whoever read it
-- can go on from there.
create table awa.dlq_entries (
  job_id bigint primary key,
  dlq_at timestamptz not null check (dlq_at = date_trunc('milliseconds', dlq_at)),
  reason text not null check (char_length(reason) between 1 and 200),
  finished_at timestamptz not null,
  run_at timestamptz not null,
  created_at timestamptz not null,
  attempted_at timestamptz,
  run_lease bigint not null,
  priority smallint not null,
  shard smallint not null,
  attempt smallint not null,
  max_attempts smallint not null,
  queue text not null,
  kind text not null,
  args json not null,
  envelope jsonb
);

create index dlq_entries_by_age on awa.dlq_entries (dlq_at, job_id);
create index dlq_entries_by_queue on awa.dlq_entries (queue, dlq_at, job_id);
create index dlq_entries_by_kind on awa.dlq_entries (kind, dlq_at, job_id);

-- Lanes are named by a 63-bit hash that is the same on every platform and version.
create function awa.lane_id(p_queue text, p_priority integer, p_shard integer) returns bigint
language sql immutable strict parallel safe
as $$
  select ('x' || substr(md5(p_priority::text || ':' || p_shard::text || ':' || p_queue), 1, 16))::bit(64)::bigint
    & 9223372036854775807
$$;

-- Where claims look. What changes this list commits before any row that it is about.
create view awa.active_slots as
select s.slot from awa.slots s where s.ring <> 'lease' and s.drained_at is null
union all
select s.slot from awa.slot_strays s;

create index slots_active on awa.slots (slot) where ring <> 'lease' and drained_at is null;

-- Ascending slots as two ranges, {first, last, first, last}: what PostgreSQL prunes partitions by at the least cost. They
-- part at the widest gap, for the ring goes round. A slot too many does no harm.
create function awa.ranges_of(p_slots smallint[]) returns smallint[]
language sql immutable parallel safe
as $$
  select array[p_slots[1], p_slots[g.i], p_slots[least(g.i + 1, cardinality(p_slots))], p_slots[cardinality(p_slots)]]
  from generate_series(1, cardinality(p_slots)) g(i)
  order by p_slots[g.i + 1] - p_slots[g.i] desc nulls last, g.i limit 1
$$;

create function awa.slot_ranges() returns smallint[]
language sql stable
as $$
  select awa.ranges_of(array(select distinct a.slot from awa.active_slots a order by a.slot))
$$;

-- Inlined, so that it prunes.
create function awa.is_within(p_slot smallint, p_ranges smallint[]) returns boolean
language sql immutable parallel safe
as $$
  select p_slot between p_ranges[1] and p_ranges[2] or p_slot between p_ranges[3] and p_ranges[4]
$$;

-- Whether ranges that were read earlier still hold all active slots. Null ones hold none, which do where there is none.
create function awa.covers_slots(p_ranges smallint[]) returns boolean
language plpgsql stable
as $$
begin
  return not exists (
    select from awa.active_slots a where awa.is_within(a.slot, p_ranges) is not true
  );
end
$$;

create function awa.ready_slot() returns smallint
language sql volatile
as $$
  select coalesce(pg_sequence_last_value('awa.ready_slot'), 0)::smallint
$$;

-- What every writer of the log does after it has written its rows to p_slot. Whoever counts a slot has moved the register
-- before, and waits for the writers that already hold a lock on the slot: so a writer that finds the register unmoved was
-- counted, any other leaves a note.
create function awa.settle(p_slot smallint) returns void
language plpgsql
as $$
begin
  if awa.ready_slot() <> p_slot then
    insert into awa.slot_strays (slot) values (p_slot);
  end if;
end
$$;

-- Advisory locks are pairs (class, key). The class tells schema and purpose, so that they meet neither the locks of
-- another schema nor the application's. Purposes: lane, owner, idle, maintenance.
create function awa.lock_class(p_purpose text) returns integer
language sql immutable strict parallel safe
as $$
  select ('x' || substr(md5('awa:' || /*schema*/'awa' || ':' || p_purpose), 1, 8))::bit(32)::integer
$$;

create function awa.lock_key(p_name text) returns integer
language sql immutable strict parallel safe
as $$
  select ('x' || substr(md5(p_name), 1, 8))::bit(32)::integer
$$;

-- A collision of two lanes only makes their claimers wait for each other.
create function awa.lane_lock_key(p_lane_id bigint) returns integer
language sql immutable strict parallel safe
as $$
  select (p_lane_id & 2147483647)::integer
$$;

-- Who takes several takes them in ascending order.
create function awa.hold_lanes(p_lanes bigint[]) returns void
language plpgsql
as $$
begin
  perform pg_advisory_xact_lock(awa.lock_class('lane'), k.key)
  from (select distinct awa.lane_lock_key(l) as key from unnest(p_lanes) l order by 1) k;
end
$$;

create function awa.hold_owners(p_owners uuid[]) returns void
language plpgsql
as $$
begin
  perform pg_advisory_xact_lock(awa.lock_class('owner'), k.key)
  from (select distinct awa.lock_key(o::text) as key from unnest(p_owners) o order by 1) k;
end
$$;

-- Takes the locks that are free at this moment; answers whose they are.
create function awa.try_owners(p_owners uuid[]) returns uuid[]
language plpgsql
as $$
begin
  return array(
    select o.owner from (select o.owner from unnest(p_owners) o(owner) order by awa.lock_key(o.owner::text)) o
    where pg_try_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(o.owner::text))
  );
end
$$;

-- Of these owners those whose locks can be had within two seconds: one that somebody keeps, an open transaction that has
-- cancelled running jobs, say, is no reason to leave the others waiting.
create function awa.hold_free_owners(p_owners uuid[]) returns uuid[]
language plpgsql
set lock_timeout = '2s'
as $$
begin
  begin
    perform awa.hold_owners(p_owners);
    return p_owners;
  exception when lock_not_available then
    return awa.try_owners(p_owners);
  end;
end
$$;

-- The layout: which slots are active, and of each queue its lanes, its number of shards, whether it is paused, whether
-- there are tombstones or wishes to cancel. Producers and claimers need it in every call and it changes seldom, so each
-- session remembers what it looked up, with the count of the changes by then (settings `awa.lane`, `awa.lanes`,
-- `awa.queue_...`).
--
-- Who changes it holds a lock until the end of his transaction and counts before that. Who looks it up reads the count
-- first, then whether somebody holds the lock, then the layout, and remembers nothing while somebody does: so what is
-- remembered with a count holds all changes up to it. Who trusts what is remembered reads the count after his snapshot:
-- a change that his snapshot shows has counted before.
create sequence awa.layout_changes;
select nextval('awa.layout_changes');

create function awa.layout_version() returns bigint
language sql volatile
as $$
  select pg_sequence_last_value('awa.layout_changes')
$$;

-- Changers do not wait for each other, nor for those who only look. By a trigger: however the change is made.
create function awa.layout_changes() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock_shared(awa.lock_class('layout'), 0);
  perform nextval('awa.layout_changes');
  return null;
end
$$;

revoke execute on function awa.layout_changes() from public;

-- Whether nobody is changing the layout but this session. Try and unlock are one expression, as in awa.sleeps. On a standby
-- neither the lock nor the count can be seen, and a session outlives its promotion.
create function awa.layout_settled() returns boolean
language sql volatile
as $$
  select case
    when pg_is_in_recovery() then false
    when pg_try_advisory_lock(awa.lock_class('layout'), 0) then pg_advisory_unlock(awa.lock_class('layout'), 0)
    else false
  end
$$;

-- Whether this transaction has: then it holds the lock. What was remembered in a prepared one would outlive its rollback.
create function awa.layout_changed() returns boolean
language sql volatile
as $$
  select exists (
    select from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted and l.objid = 0 and l.objsubid = 2
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.classid::bigint = awa.lock_class('layout')::bigint & 4294967295
  )
$$;

create trigger layout_changes after insert or update or delete on awa.lanes
for each row execute function awa.layout_changes();

create trigger layout_truncated after truncate on awa.lanes
for each statement execute function awa.layout_changes();

-- A slot that is no longer active does no harm.
create trigger layout_changes after insert or update of drained_at on awa.slots
for each row when (new.ring <> 'lease' and new.drained_at is null) execute function awa.layout_changes();

create trigger layout_truncated after truncate on awa.slots
for each statement execute function awa.layout_changes();

create trigger layout_changes after insert on awa.slot_strays
for each row execute function awa.layout_changes();

create trigger layout_changes after insert on awa.tombstoned_lanes
for each row execute function awa.layout_changes();

create trigger layout_changes after insert on awa.cancel_requests
for each row execute function awa.layout_changes();

-- On the control plane's table they are named after this schema. `always`: also what is replicated or restored counts.
do $$
declare
  v_name constant text := 'layout_changes_' || md5(/*schema*/'awa');
  v_table text;
begin
  execute format(
    'create trigger %I after insert or delete on awa/*control*/.queues
      for each row execute function awa.layout_changes()',
    v_name
  );
  execute format(
    'create trigger %I after update on awa/*control*/.queues
      for each row when (
        (new.name, new.shards, new.paused_at) is distinct from (old.name, old.shards, old.paused_at)
      )
      execute function awa.layout_changes()',
    v_name || '_update'
  );
  execute format(
    'create trigger %I after truncate on awa/*control*/.queues
      for each statement execute function awa.layout_changes()',
    v_name || '_truncate'
  );
  foreach v_table in array array['lanes', 'slots', 'slot_strays', 'tombstoned_lanes', 'cancel_requests'] loop
    execute format('alter table awa.%I enable always trigger layout_changes', v_table);
  end loop;
  execute format('alter table awa/*control*/.queues enable always trigger %I', v_name);
  execute format('alter table awa/*control*/.queues enable always trigger %I', v_name || '_update');
end
$$;

-- What locks first and reads then must see what the previous holder committed.
create function awa.is_read_committed() returns boolean
language sql stable
as $$
  select current_setting('transaction_isolation') = 'read committed'
$$;

create function awa.assert_read_committed() returns void
language plpgsql
as $$
begin
  if not awa.is_read_committed() then
    raise exception using
      errcode = 'AW002',
      message = format('this function needs READ COMMITTED, the transaction is %s',
        upper(current_setting('transaction_isolation'))),
      hint = 'Call it outside your transaction (Database.outsideTransaction), or in one that is READ COMMITTED';
  end if;
end
$$;

-- What a worker compares before it claims: see docs/storage.md, "Epochs".
create function awa.storage_status(
  out system_identifier bigint,
  out epoch_identifier bigint,
  out cached_sequence text
)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select
    c.system_identifier,
    e.system_identifier,
    (
      -- Any of them: what one has handed out, or how far it counted, is read by other sessions.
      select min(s.seqrelid::regclass::text)
      from pg_sequence s
      join pg_class c on c.oid = s.seqrelid
      join pg_class l on l.relnamespace = c.relnamespace
      where l.oid = 'awa.lanes'::regclass and s.seqcache <> 1
    )
  from pg_control_system() c, (select * from awa.epochs order by epoch desc limit 1) e
$$;

revoke execute on function awa.storage_status() from public;

-- Which sequence is behind the data it numbers, as after a data-only restore; null when none is. New jobs would hide
-- below the cursors, new batches would not count as the newest.
create function awa.sequence_behind() returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  with lane as (select distinct l.lane_id from awa.lanes l)
  select case
    when greatest(
      (select max(p.pos) from lane l cross join lateral (
        select r.pos from awa.ready_entries r where r.lane_id = l.lane_id order by r.pos desc limit 1
      ) p),
      (select max(c.cursor_pos) from lane l cross join lateral (
        select b.cursor_pos from awa.claim_batches b
        where b.lane_id = l.lane_id and b.cursor_pos is not null order by -b.batch_id limit 1
      ) c),
      (select max(d.job_id) from awa.deferred_jobs d),
      (select max(f.job_id) from awa.finished_jobs f),
      (select max(q.job_id) from awa.dlq_entries q)
    ) > (select s.last_value - (not s.is_called)::integer from awa.pos_seq s) then 'pos_seq'
    when (select b.batch_id from awa.claim_batches b order by b.batch_id desc limit 1)
      > (select s.last_value - (not s.is_called)::integer from awa.batch_seq s) then 'batch_seq'
  end
$$;

revoke execute on function awa.sequence_behind() from public;
