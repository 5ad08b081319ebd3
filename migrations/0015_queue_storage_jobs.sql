-- schema: engine
-- What an operator reads: every job once, in its true state, from one snapshot.

-- A payload for who reads jobs by SQL: jsonb, which can be asked. A number that it has no room for, 1e999999, comes from
-- calls past the library only; shown as text it keeps nobody from the rest.
create function awa.readable(p_args json) returns jsonb
language plpgsql immutable
as $$
begin
  return p_args::jsonb;
exception when data_exception then
  return to_jsonb(p_args::text);
end
$$;

-- The jobs whose present home is the log: waiting, running and completed ones. A row that no batch holds waits, unless it
-- has a tombstone; the rest is decided by claim and closure of the same snapshot, so that nothing lags. In one lane and
-- slot the main parts of batches do not overlap: only the first that ends at or above a position can hold it, and what
-- that one passed over was claimed late or still waits.
--
-- Everything is looked up row by row, and only where it decides: the log has no statistics to plan a join by. Not even
-- `exists` will do where it is one of several conditions: it may be planned to read the whole table into a hash.
create view awa.log_jobs as
select
  r.job_id, r.lane_id, r.kind, r.args, r.max_attempts, r.run_at, r.created_at, r.envelope,
  case
    when m.batch_id is null then 'available'
    when k.act is null then 'running'
    else 'completed'
  end::awa/*control*/.job_state as state,
  r.attempt + (m.batch_id is not null)::integer as attempt,
  r.run_lease + (m.batch_id is not null)::integer as run_lease,
  m.claimed_at, m.deadline_at, m.batch_id, m.member, k.finished_at, r.slot, r.pos
from awa.ready_entries r
left join lateral (
  select f.batch_id, f.claimed_at, f.deadline_at, f.n, coalesce(cardinality(f.late), 0) + f.place as member
  from (
    select b.*,
      -- Offsets ascend: a binary search.
      case when b.lo <= r.pos then width_bucket((r.pos - b.lo)::integer, b.offsets) end as place
    from awa.claim_batches b
    where b.slot = r.slot and b.lane_id = r.lane_id and b.hi >= r.pos
    order by b.hi limit 1
  ) f
  where f.offsets[f.place] = r.pos - f.lo
  union all
  -- By the position alone, which is of one lane: the index of the late ones has nothing else. Late is only what the lane's
  -- newest cursor has passed.
  select b.batch_id, b.claimed_at, b.deadline_at, b.n, array_position(b.late, r.pos)
  from awa.claim_batches b
  where b.slot = r.slot and b.late @> array[r.pos]
    and r.pos <= (
      select c.cursor_pos from awa.claim_batches c
      -- From b on, so that it is looked for only where there is one.
      where c.lane_id = r.lane_id and c.batch_id >= b.batch_id and c.cursor_pos is not null
      order by -c.batch_id limit 1
    )
  limit 1
) m on true
left join lateral (
  select k.act, k.finished_at from awa.closures k
  where k.slot = r.slot and k.batch_id = m.batch_id and (k.n = m.n or m.member = any (k.members))
  limit 1
) k on true
where (
    k.act is null
    -- One that was copied because it is kept for longer than its slot is shown from there.
    or k.act = 'complete' and (select true from awa.finished_jobs f where f.job_id = r.job_id limit 1) is null
  )
  and (
    m.batch_id is not null
    or (
      select true from awa.tombstones t where t.slot = r.slot and t.lane_id = r.lane_id and t.pos = r.pos limit 1
    ) is null
  );

-- A view for each place jobs stand in, with the columns of `jobs`; that of the log tells besides where in it.
create view awa.log_job_rows as
select
  j.job_id as id, j.kind, l.queue, awa.readable(j.args) as args, j.state, l.priority, j.attempt, j.max_attempts, j.run_lease, j.run_at,
  j.claimed_at as attempted_at,
  case when j.state = 'running' then (
    select x.heartbeat_at from awa.leases x where x.batch_id = j.batch_id and x.member = j.member limit 1
  ) end as heartbeat_at,
  j.deadline_at, j.finished_at as finalized_at, j.created_at,
  coalesce(j.envelope -> 'errors', '[]') as errors,
  coalesce(j.envelope -> 'metadata', '{}') as metadata,
  coalesce(array(select jsonb_array_elements_text(j.envelope -> 'tags')), '{}') as tags,
  case j.state
    when 'running' then coalesce(
      (select x.progress from awa.leases x where x.batch_id = j.batch_id and x.member = j.member limit 1),
      j.envelope -> 'progress'
    )
    when 'available' then j.envelope -> 'progress'
  end as progress,
  j.envelope ->> 'ordering_key' as ordering_key,
  j.slot, j.lane_id, j.pos
from awa.log_jobs j
cross join lateral (select n.queue, n.priority from awa.lanes n where n.lane_id = j.lane_id limit 1) l;

-- Attempts that the log has let go of.
create view awa.evicted_job_rows as
select
  x.job_id as id, r.kind, l.queue, awa.readable(r.args) as args, 'running'::awa/*control*/.job_state as state, l.priority,
  r.attempt + 1 as attempt, r.max_attempts, x.run_lease, r.run_at,
  x.claimed_at as attempted_at, x.heartbeat_at, x.deadline_at, null::timestamptz as finalized_at, r.created_at,
  coalesce(r.envelope -> 'errors', '[]') as errors,
  coalesce(r.envelope -> 'metadata', '{}') as metadata,
  coalesce(array(select jsonb_array_elements_text(r.envelope -> 'tags')), '{}') as tags,
  coalesce(x.progress, r.envelope -> 'progress') as progress,
  r.envelope ->> 'ordering_key' as ordering_key
from awa.leases x
cross join lateral awa.entry_of(x.entry) r
cross join lateral (select n.queue, n.priority from awa.lanes n where n.lane_id = r.lane_id limit 1) l
where x.entry is not null;

create view awa.deferred_job_rows as
select
  d.job_id as id, d.kind, d.queue, awa.readable(d.args) as args, d.state, d.priority, d.attempt::integer, d.max_attempts, d.run_lease, d.run_at,
  d.attempted_at, null::timestamptz as heartbeat_at, null::timestamptz as deadline_at,
  null::timestamptz as finalized_at, d.created_at,
  coalesce(d.envelope -> 'errors', '[]') as errors,
  coalesce(d.envelope -> 'metadata', '{}') as metadata,
  coalesce(array(select jsonb_array_elements_text(d.envelope -> 'tags')), '{}') as tags,
  d.envelope -> 'progress' as progress,
  d.envelope ->> 'ordering_key' as ordering_key
from awa.deferred_jobs d;

create view awa.finished_job_rows as
select
  f.job_id as id, f.kind, f.queue, awa.readable(f.args) as args, f.state, f.priority, f.attempt::integer, f.max_attempts, f.run_lease, f.run_at,
  f.attempted_at, null::timestamptz as heartbeat_at, null::timestamptz as deadline_at, f.finished_at as finalized_at,
  f.created_at,
  coalesce(f.envelope -> 'errors', '[]') as errors,
  coalesce(f.envelope -> 'metadata', '{}') as metadata,
  coalesce(array(select jsonb_array_elements_text(f.envelope -> 'tags')), '{}') as tags,
  f.envelope -> 'progress' as progress,
  f.envelope ->> 'ordering_key' as ordering_key
from awa.finished_jobs f;

create view awa.dlq_job_rows as
select
  q.job_id as id, q.kind, q.queue, awa.readable(q.args) as args, 'failed'::awa/*control*/.job_state as state, q.priority,
  q.attempt::integer, q.max_attempts, q.run_lease, q.run_at, q.attempted_at, null::timestamptz as heartbeat_at,
  null::timestamptz as deadline_at, q.finished_at as finalized_at, q.created_at,
  coalesce(q.envelope -> 'errors', '[]') as errors,
  coalesce(q.envelope -> 'metadata', '{}') as metadata,
  coalesce(array(select jsonb_array_elements_text(q.envelope -> 'tags')), '{}') as tags,
  q.envelope -> 'progress' as progress,
  q.envelope ->> 'ordering_key' as ordering_key
from awa.dlq_entries q;

create view awa/*control*/.jobs as
-- First appearances, whose position is the id, and the others: an id is looked up in the index that each of them has.
-- That of positions begins with the lane, so all lanes are named.
select
  j.id, j.kind, j.queue, j.args, j.state, j.priority, j.attempt, j.max_attempts, j.run_lease, j.run_at, j.attempted_at,
  j.heartbeat_at, j.deadline_at, j.finalized_at, j.created_at, j.errors, j.metadata, j.tags, j.progress,
  j.ordering_key
from awa.log_job_rows j
where j.id = j.pos and j.lane_id = any (array(select l.lane_id from awa.lanes l))
union all
select
  j.id, j.kind, j.queue, j.args, j.state, j.priority, j.attempt, j.max_attempts, j.run_lease, j.run_at, j.attempted_at,
  j.heartbeat_at, j.deadline_at, j.finalized_at, j.created_at, j.errors, j.metadata, j.tags, j.progress,
  j.ordering_key
from awa.log_job_rows j
where j.id <> j.pos
union all
select * from awa.evicted_job_rows
union all
select * from awa.deferred_job_rows
union all
select * from awa.finished_job_rows
union all
select * from awa.dlq_job_rows;
