-- schema: engine
-- Liveness: signs of life, what nobody answers for, what has become due.

-- Attempts that no closure has ended.
create view awa.open_attempts as
select b.slot, b.batch_id, b.nonce, m.member::smallint as member, b.owner, b.claimed_at, b.deadline_at
from awa.claim_batches b
cross join lateral generate_series(1, b.n) m(member)
where b.n > coalesce((select sum(k.n) from awa.closures k where k.slot = b.slot and k.batch_id = b.batch_id), 0)
  and not exists (
    select from awa.closures k where k.slot = b.slot and k.batch_id = b.batch_id and m.member = any (k.members)
  );

-- p_beats: [{"slot", "batch", "nonce", "member", "progress"?}]. Writes a lease for every attempt that has none, and
-- answers those that are no longer the owner's: [[slot, "batch", "nonce", member], ..], null when all are.
create function awa.heartbeat(p_owner uuid, p_beats jsonb, p_now timestamptz) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_lost jsonb;
begin
  perform awa.assert_read_committed();
  perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));
  perform nextval('awa.lease_marks');

  with beat as materialized (
    select * from jsonb_to_recordset(p_beats) e(slot smallint, batch bigint, nonce bigint, member smallint, progress jsonb)
  ),
  open_slot as materialized (
    select s.slot from awa.slots s where s.ring = 'lease' and s.sealed_at is null
  ),
  held as materialized (
    select e.*, b.deadline_at, b.claimed_at, b.lane_id, awa.member_pos(b, e.member) as pos
    from beat e
    join awa.claim_batches b on b.slot = e.slot and b.batch_id = e.batch and b.nonce = e.nonce
    where b.owner = p_owner
      and e.member between 1 and b.n
      and not exists (
        select from awa.closures k where k.slot = e.slot and k.batch_id = e.batch and e.member = any (k.members)
      )
  ),
  -- A sign of life takes the lease along into the open slot of its ring.
  renewed as (
    update awa.leases x
    set heartbeat_at = v_now, progress = coalesce(e.progress, x.progress), lease_slot = o.slot
    from beat e, open_slot o
    where x.batch_id = e.batch and x.member = e.member and x.nonce = e.nonce and x.owner = p_owner
      and (
        x.entry is not null
        or exists (select from held h where h.batch = e.batch and h.nonce = e.nonce and h.member = e.member)
      )
    returning x.batch_id, x.nonce, x.member
  ),
  begun as (
    insert into awa.leases (
      lease_slot, slot, batch_id, nonce, member, job_id, run_lease, owner, heartbeat_at, deadline_at, claimed_at, progress
    )
    select
      s.slot, h.slot, h.batch, h.nonce, h.member, r.job_id, r.run_lease + 1, p_owner, v_now, h.deadline_at,
      h.claimed_at, h.progress
    from held h
    join awa.ready_entries r on r.slot = h.slot and r.lane_id = h.lane_id and r.pos = h.pos
    cross join open_slot s
    where not exists (
      select from renewed n where n.batch_id = h.batch and n.nonce = h.nonce and n.member = h.member
    )
  )
  select jsonb_agg(jsonb_build_array(e.slot, e.batch::text, e.nonce::text, e.member))
  into v_lost
  from beat e
  where not exists (
    select from held h where h.slot = e.slot and h.batch = e.batch and h.nonce = e.nonce and h.member = e.member
  ) and not exists (
    select from renewed n where n.batch_id = e.batch and n.nonce = e.nonce and n.member = e.member
  );
  return v_lost;
end
$$;

revoke execute on function awa.heartbeat(uuid, jsonb, timestamptz) from public;

-- What is open under an owner's name, claimed p_older_ms ago or earlier, from batch p_frontier on.
-- Answers {"frontier", "attempts": [[slot, "batch", "nonce", member, "job id", "run lease"], ..]}.
create function awa.owned_attempts(p_owner uuid, p_older_ms bigint, p_frontier bigint, p_now timestamptz) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  with cut as materialized (
    select coalesce(p_now, clock_timestamp()) - p_older_ms * interval '1 millisecond' as at
  ),
  open as materialized (
    select a.slot, a.batch_id, a.nonce, a.member, a.claimed_at
    from awa.open_attempts a
    where a.owner = p_owner and a.batch_id >= p_frontier
  ),
  -- A claim that is still under way may commit a lower number than one that is seen already, but not a minute later.
  settled as materialized (
    select b.batch_id
    from awa.claim_batches b, cut
    where b.batch_id >= p_frontier and b.claimed_at <= cut.at - interval '1 minute'
    order by b.batch_id desc limit 1
  )
  select jsonb_build_object(
    'frontier',
    coalesce((select least(s.batch_id, (select min(o.batch_id) from open o)) from settled s), p_frontier)::text,
    'attempts',
    coalesce(
      (
        select jsonb_agg(jsonb_build_array(
          o.slot, o.batch_id::text, o.nonce::text, o.member, r.job_id::text, (r.run_lease + 1)::text))
        from open o
        join awa.claim_batches b on b.slot = o.slot and b.batch_id = o.batch_id
        cross join lateral (
          select * from awa.ready_entries r
          where r.slot = b.slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, o.member) limit 1
        ) r
        cross join cut
        where o.claimed_at <= cut.at
      ),
      '[]'
    ) || coalesce(
      (
        select jsonb_agg(jsonb_build_array(
          x.slot, x.batch_id::text, x.nonce::text, x.member, x.job_id::text, x.run_lease::text))
        from awa.leases x, cut
        where x.owner = p_owner and x.entry is not null and x.claimed_at <= cut.at
      ),
      '[]'
    )
  )
$$;

revoke execute on function awa.owned_attempts(uuid, bigint, bigint, timestamptz) from public;

-- Attempts whose last sign of life is older than p_cutoff: a lease that is no longer renewed, or a claim that never got
-- one, from batch p_frontier on. p_owners: only theirs, null for all.
create function awa.stale_attempts(p_cutoff timestamptz, p_frontier bigint, p_limit integer, p_owners uuid[])
returns table (slot smallint, batch bigint, nonce bigint, member smallint, owner uuid)
language sql stable
as $$
  select * from (
    select x.slot, x.batch_id, x.nonce, x.member, x.owner
    from awa.leases x
    where x.heartbeat_at < p_cutoff
    union all
    select a.slot, a.batch_id, a.nonce, a.member, a.owner
    from awa.open_attempts a
    where a.batch_id >= p_frontier and a.claimed_at < p_cutoff
      and not exists (select from awa.leases x where x.batch_id = a.batch_id and x.member = a.member)
  ) a
  where p_owners is null or a.owner = any (p_owners)
  order by a.batch_id, a.member
  limit p_limit
$$;

-- The same for attempts past their deadline. A lease carries the deadline of its attempt.
create function awa.expired_attempts(p_cutoff timestamptz, p_frontier bigint, p_limit integer, p_owners uuid[])
returns table (slot smallint, batch bigint, nonce bigint, member smallint, owner uuid)
language sql stable
as $$
  select * from (
    select x.slot, x.batch_id, x.nonce, x.member, x.owner
    from awa.leases x
    where x.deadline_at < p_cutoff
    union all
    select a.slot, a.batch_id, a.nonce, a.member, a.owner
    from awa.open_attempts a
    where a.batch_id >= p_frontier and a.deadline_at < p_cutoff
      and not exists (select from awa.leases x where x.batch_id = a.batch_id and x.member = a.member)
  ) a
  where p_owners is null or a.owner = any (p_owners)
  order by a.batch_id, a.member
  limit p_limit
$$;

-- Takes attempts back. p_reason: stale_heartbeat, with p_age_ms the staleness, or deadline_exceeded, with p_age_ms 0.
-- p_frontier: every lower batch is settled. p_dlq: see is_dead_lettered. Answers the rescued jobs as [["job id", state], ..] and whether the pass was
-- full. Batches below `settled` were old enough to be decided by this pass, but for those of claims under way: when
-- every transaction up to `xid` has ended (`xmin` of a later pass tells), those below both passes' `settled` are decided.
create function awa.rescue(
  p_reason text,
  p_age_ms bigint,
  p_frontier bigint,
  p_limit integer,
  p_now timestamptz,
  p_dlq jsonb default null,
  out rescued jsonb,
  out complete boolean,
  out settled bigint,
  out xid xid8,
  out xmin xid8
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_cutoff constant timestamptz := v_now - p_age_ms * interval '1 millisecond';
  v_error constant text := case p_reason
    when 'stale_heartbeat' then 'heartbeat stale: the worker stopped answering'
    else 'hard deadline exceeded'
  end;
  v_owners uuid[];
  v_held uuid[];
  v_ended jsonb;
  v_one jsonb;
  v_jobs awa.successor[];
  v_some awa.successor[];
  v_found integer;
  v_young bigint;
begin
  perform awa.assert_read_committed();
  -- Before our id: whoever has drawn a lower number than this batch has a lower id than ours.
  select b.batch_id into v_young
  from awa.claim_batches b
  where b.batch_id >= p_frontier and b.claimed_at >= v_cutoff
  order by b.batch_id limit 1;
  rescue.xid := pg_current_xact_id();
  update awa.rescue_frontier set batch_id = p_frontier where batch_id < p_frontier;
  rescue.xmin := pg_snapshot_xmin(pg_current_snapshot());

  select array_agg(distinct a.owner), count(*) into v_owners, v_found
  from (
    select owner from awa.stale_attempts(v_cutoff, p_frontier, p_limit, null) where p_reason = 'stale_heartbeat'
    union all
    select owner from awa.expired_attempts(v_cutoff, p_frontier, p_limit, null) where p_reason <> 'stale_heartbeat'
  ) a;
  -- A look that was cut off may have left owners out, whatever the second look finds.
  rescue.complete := v_found < p_limit;
  v_held := awa.hold_free_owners(v_owners);
  rescue.complete := rescue.complete and v_held is not distinct from v_owners;
  v_owners := v_held;

  -- Again, under the locks: a heartbeat or a completion may have come in between.
  if v_owners is not null then
    select
      jsonb_agg(jsonb_build_object(
        'slot', a.slot, 'batch', a.batch, 'nonce', a.nonce, 'member', a.member, 'act', 'rescue', 'error', v_error)),
      count(*)
    into v_ended, v_found
    from (
      select * from awa.stale_attempts(v_cutoff, p_frontier, p_limit, v_owners) where p_reason = 'stale_heartbeat'
      union all
      select * from awa.expired_attempts(v_cutoff, p_frontier, p_limit, v_owners) where p_reason <> 'stale_heartbeat'
    ) a;
    rescue.complete := rescue.complete and v_found < p_limit;
  end if;

  if v_ended is not null then
    begin
      select c.successors into v_jobs from awa.close_attempts(v_owners, '[]', v_ended, v_now, p_dlq) c;
    exception when others then
      -- One job that cannot be written must not keep the others from being rescued.
      for v_one in select jsonb_array_elements(v_ended) loop
        begin
          select c.successors into v_some
          from awa.close_attempts(v_owners, '[]', jsonb_build_array(v_one), v_now, p_dlq) c;
          v_jobs := v_jobs || v_some;
        exception when others then
          rescue.complete := false;
          raise warning 'awa: cannot rescue member % of batch %: %', v_one -> 'member', v_one -> 'batch', sqlerrm;
        end;
      end loop;
    end;
  end if;

  rescue.rescued := coalesce(
    (select jsonb_agg(jsonb_build_array(j.job_id::text, j.state) order by j.job_id) from unnest(v_jobs) j),
    '[]'
  );
  rescue.settled := p_frontier;
  if p_reason = 'stale_heartbeat' and rescue.complete and v_young is not null then
    rescue.settled := v_young;
  end if;
end
$$;

revoke execute on function awa.rescue(text, bigint, bigint, integer, timestamptz, jsonb) from public;

-- Moves up to p_limit due jobs to their queues, the longest due first; answers how many. Those of paused queues stay.
create function awa.promote(p_limit integer, p_now timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := coalesce(p_now, clock_timestamp());
  v_due constant bigint[] := awa.lock_due(p_limit, v_now);
  v_jobs awa.successor[];
begin
  with due as (
    delete from awa.deferred_jobs d
    where d.job_id = any (v_due)
    returning d.*
  )
  select array_agg(
    (d.job_id, 'available', d.run_at, d.created_at, d.attempted_at, d.run_lease, d.priority, d.shard, d.attempt,
      d.max_attempts, d.queue, d.kind, d.args, d.envelope, null)::awa.successor
    order by d.run_at, d.job_id
  )
  into v_jobs
  from due d;
  if v_jobs is null then
    return 0;
  end if;
  perform awa.place(v_jobs, v_now);
  return cardinality(v_jobs);
end
$$;

revoke execute on function awa.promote(integer, timestamptz) from public;
