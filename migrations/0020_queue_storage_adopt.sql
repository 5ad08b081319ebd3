-- schema: engine
-- Adoption: how data that was restored, or that lives on in another cluster, becomes this cluster's. Until then workers
-- refuse it, by the epoch or by the sequences. docs/storage.md, "Epochs", says what goes wrong without.

-- Runs with the rights of the caller, who must own the tables: neither producers nor workers may adopt.
--
-- requeued: how many jobs waited behind a cursor and were put where claims find them. floor_pos: see awa.epochs.
create function awa.adopt(p_now timestamptz default null, out epoch integer, out floor_pos bigint, out requeued bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_identifier constant bigint := (select c.system_identifier from pg_control_system() c);
  v_epoch awa.epochs;
  v_table text;
  v_found bigint;
  v_last_pos bigint;
  v_last_batch bigint;
  v_snapshot pg_snapshot;
  v_pending xid8[];
  v_open smallint;
  v_slots smallint[];
begin
  perform awa.lock_slots();
  perform pg_advisory_xact_lock(awa.lock_class('lane'), l.key)
  from (select distinct awa.lane_lock_key(n.lane_id) as key from awa.lanes n order by 1) l;
  -- Waits for everybody who has written, prepared transactions included, and keeps others from it.
  lock table
    awa.ready_entries, awa.claim_batches, awa.closures, awa.tombstones, awa.leases, awa.deferred_jobs, awa.finished_jobs
  in share row exclusive mode;

  -- Before our id. Whoever has drawn a position but written nothing yet is pending, as for a claim.
  v_snapshot := pg_current_snapshot();
  v_pending := awa.pending_xids(v_snapshot, pg_current_xact_id());

  -- 1. The sequences are not behind anything they number.
  select greatest(
    max(r.pos), max(r.job_id),
    (select greatest(max(b.hi), max(b.cursor_pos), max((select max(p) from unnest(b.late) p))) from awa.claim_batches b)
  )
  into v_last_pos
  from awa.ready_entries r;
  foreach v_table in array array['deferred_jobs', 'finished_jobs', 'leases', 'dlq_entries'] loop
    if to_regclass(format('awa.%s', v_table)) is not null then
      execute format('select max(job_id) from awa.%s', v_table) into v_found;
      v_last_pos := greatest(v_last_pos, v_found);
    end if;
  end loop;
  v_last_batch := greatest(
    (select max(b.batch_id) from awa.claim_batches b),
    (select max(k.batch_id) from awa.closures k),
    (select max(x.batch_id) from awa.leases x)
  );
  if v_last_pos > (select s.last_value - (not s.is_called)::integer from awa.pos_seq s) then
    perform setval('awa.pos_seq', v_last_pos);
  end if;
  if v_last_batch > (select s.last_value - (not s.is_called)::integer from awa.batch_seq s) then
    perform setval('awa.batch_seq', v_last_batch);
  end if;
  -- The register of the open slot is a sequence, too. The ledger's row is committed: see awa.ready_slot.
  select s.slot into v_open from awa.slots s where s.ring = 'ready' and s.sealed_at is null;
  if awa.ready_slot() <> v_open then
    perform setval('awa.ready_slot', v_open);
  end if;

  -- 2. A new epoch: ids that this cluster gives out may stand on rows up to here already, for other transactions.
  select * into v_epoch from awa.epochs e order by e.epoch desc limit 1;
  adopt.epoch := v_epoch.epoch + 1;
  adopt.floor_pos := case
    when v_epoch.system_identifier = v_identifier then v_epoch.floor_pos
    else (select s.last_value - (not s.is_called)::integer from awa.pos_seq s)
  end;
  insert into awa.epochs (epoch, system_identifier, floor_pos, started_at)
  values (adopt.epoch, v_identifier, adopt.floor_pos, v_now);

  -- 3. A lane's cursor is the highest position that was passed or claimed, whatever its newest row says: a dump that was
  -- taken across a truncation may have lost that. What it has passed and nobody took waits behind it.
  create temporary table awa_adopted_lanes on commit drop as
  select
    b.lane_id,
    greatest(max(b.cursor_pos), max(b.hi), max((select max(p) from unnest(b.late) p))) as cursor_pos
  from awa.claim_batches b
  group by b.lane_id;

  v_slots := v_open || array(
    select i::smallint
    from generate_series(0, (select c.value from awa.storage_config c where c.name = 'queue_slots') + 1) i
    left join awa.slots s on s.ring <> 'lease' and s.slot = i
    where i <> v_open
    order by s.generation desc nulls last
  );
  create temporary table awa_adopted_rows on commit drop as
  select a.*, (
    select t.slot
    from unnest(v_slots) with ordinality t(slot, place)
    where not exists (
      select from awa.ready_entries e where e.slot = t.slot and e.lane_id = a.lane_id and e.pos = a.pos
    )
    order by t.place limit 1
  ) as to_slot
  from (
    select r.slot, r.lane_id, r.pos
    from awa.ready_entries r
    join awa_adopted_lanes l on l.lane_id = r.lane_id and r.pos <= l.cursor_pos
    where not exists (
      select
      from (
        select b.slot, b.lane_id, awa.member_pos(b, m.member) as pos
        from awa.claim_batches b cross join lateral generate_series(1, b.n) m(member)
      ) c
      where c.slot = r.slot and c.lane_id = r.lane_id and c.pos = r.pos
    ) and not exists (
      select from awa.tombstones t where t.slot = r.slot and t.lane_id = r.lane_id and t.pos = r.pos
    )
  ) a;
  get diagnostics requeued = row_count;
  if exists (select from awa_adopted_rows a where a.to_slot is null) then
    raise exception using errcode = 'AW005', message = 'every slot has rows of the positions that are to be moved';
  end if;

  -- They go to another slot and keep their positions, so that their order is kept. Their transaction becomes one that has
  -- ended for certain and that no row has: the number of the epoch. Ids this low are given out while a cluster is made.
  insert into awa.ready_entries (
    slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args, envelope
  )
  select
    a.to_slot, r.lane_id, r.pos, adopt.epoch::text::xid8, r.job_id, r.attempt, r.run_lease, r.max_attempts, r.run_at,
    r.created_at, r.kind, r.args, r.envelope
  from awa_adopted_rows a
  join awa.ready_entries r on r.slot = a.slot and r.lane_id = a.lane_id and r.pos = a.pos;
  insert into awa.tombstones (slot, lane_id, pos, written_at)
  select a.slot, a.lane_id, a.pos, v_now from awa_adopted_rows a;

  -- Sessions that have lived through the restore must not take its count for theirs.
  perform setval('awa.layout_changes', awa.layout_version() + 1000000);

  -- 4. Claims look at every slot that was written to, and all are counted anew.
  insert into awa.slot_strays (slot, written_at)
  select s.slot, v_now from unnest(v_slots) s(slot) where awa.slot_is_used(s.slot);
  perform awa.absorb_strays(v_now);

  insert into awa.claim_batches (
    slot, batch_id, nonce, lane_id, owner, claimed_at, n, cursor_pos, pending_xids, pending_after
  )
  select
    v_open, nextval('awa.batch_seq'), 0, l.lane_id, '00000000-0000-0000-0000-000000000000', v_now, 0, l.cursor_pos,
    nullif(v_pending || m.xids, '{}'),
    nullif(array_fill(adopt.floor_pos, array[cardinality(v_pending)]) || m.afters, '{}')
  from awa_adopted_lanes l
  cross join lateral (
    select
      case when a.moved then array[adopt.epoch::text::xid8] else '{}' end as xids,
      case when a.moved then array[0::bigint] else '{}' end as afters
    from (select exists (select from awa_adopted_rows r where r.lane_id = l.lane_id) as moved) a
  ) m
  where l.cursor_pos is not null;
end
$$;

revoke execute on function awa.adopt(timestamptz) from public;
