import { Database, Dlq } from "@awa/model"
import { Jobs } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { Effect } from "effect"
import * as assert from "node:assert/strict"
import type { Model, ModelJob } from "./model.js"

/** Every job is listed once, in the state the model has for it. */
export const agree = (model: Model) =>
  Effect.gen(function*() {
    yield* learnRetries(model)
    const stored = yield* Jobs.list()
    const seen = stored.map((job) => ({
      id: BigInt(job.id),
      state: job.state as string,
      queue: job.queue,
      priority: job.priority,
      args: job.args,
      attempt: job.attempt,
      maxAttempts: job.maxAttempts,
      runLease: job.runLease,
      errors: job.errors.length,
      progress: job.progress
    }))
    const listed = new Set(seen.map(({ id }) => id))
    const progressOf = (job: ModelJob) => model.open.find((attempt) => attempt.job === job)?.progress ?? job.progress
    // A slot that was freed has taken its successes along.
    const present = model.visible.filter(({ id, state }) => state !== "completed" || !model.forgets || listed.has(id))
    const expected = [...present].sort((a, b) => a.id < b.id ? -1 : 1).map((job) => ({
      id: job.id,
      state: job.state,
      queue: job.queue,
      priority: job.priority,
      args: job.args,
      attempt: job.attempt,
      maxAttempts: job.maxAttempts,
      runLease: job.runLease,
      errors: job.errors,
      progress: progressOf(job)
    }))
    assert.deepEqual(seen, expected, "jobs as they are listed")
    yield* agreeOnKeys(model)
    const dead = yield* Dlq.list({ limit: 1000 })
    assert.deepEqual(dead.map(({ id }) => id), model.deadLetters.map(({ id }) => id).reverse(), "dead letters")
  })

/** Every key is held by the job that has it, and by none that has let it go. */
const agreeOnKeys = (model: Model) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const held = yield* sql<{ id: string }>`select job_id::text as id from awa.unique_claims`
    const holders = model.visible.filter((job) => job.unique !== undefined && model.holder(job.unique.of) === job)
    assert.deepEqual(held.map(({ id }) => id).sort(), holders.map(({ id }) => String(id)).sort(), "holders of keys")
  })

/** The jitter of the backoff is the database's. */
export const learnRetries = (model: Model) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const rows = yield* sql<{ id: string; run_at: string }>`
      select job_id::text as id, (extract(epoch from run_at) * 1000000)::bigint::text as run_at
      from awa.deferred_jobs where state = 'retryable'`
    for (const { id, run_at } of rows) {
      const job = model.jobs.find((job) => String(job.id) === id)
      if (job !== undefined) job.runAt = Number(run_at)
    }
  })

/** The log as the rules below speak of it; small tables, for what is partitioned takes long to plan. */
const views: Readonly<Record<string, string>> = {
  entry: "select slot, lane_id, pos, job_id, run_lease from awa.ready_entries",
  batch: "select * from awa.claim_batches",
  closure: "select * from awa.closures",
  stone: "select slot, lane_id, pos from awa.tombstones",
  member: `select b.slot, b.batch_id, b.lane_id, m.member, awa.member_pos(b, m.member) as pos
    from awa.claim_batches b cross join lateral generate_series(1, b.n) m(member)`,
  closed: "select k.slot, k.batch_id, k.act, m.member from awa.closures k cross join unnest(k.members) m(member)",
  /** Once for every claim that has taken the row, or once without. */
  taken: `select e.*, m.batch_id, m.member from entry e
    left join member m on m.slot = e.slot and m.lane_id = e.lane_id and m.pos = e.pos`,
  /** What became of each row: how often it was claimed or given up. */
  used: `select e.*,
      (select count(*) from member m where m.slot = e.slot and m.lane_id = e.lane_id and m.pos = e.pos)
        + (select count(*) from stone s where s.slot = e.slot and s.lane_id = e.lane_id and s.pos = e.pos) as times
    from entry e`,
  counted: `select e.slot, count(*) as there,
      (select coalesce(sum(k.n), 0) from closure k where k.slot = e.slot)
        + (select count(*) from stone s where s.slot = e.slot) as closed
    from entry e group by e.slot`,
  home: `select u.job_id, 'waiting' as state from used u where u.times = 0
    union all
    select t.job_id, case when k.act is null then 'running' else 'completed' end
    from taken t left join closed k on k.slot = t.slot and k.batch_id = t.batch_id and k.member = t.member
    where t.batch_id is not null and (k.act is null or k.act = 'complete')
    union all
    select job_id, 'running' from awa.leases where entry is not null
    union all
    select job_id, state::text from awa.deferred_jobs
    union all
    select job_id, state::text from awa.finished_jobs
    union all
    select job_id, 'dead' from awa.dlq_entries`
}

/** Queries that answer what breaks a rule. */
export type Invariants = Readonly<Record<string, string>>

/** What must never be found, at whatever moment one looks. */
export const always: Invariants = {
  "I1: a row of the log is claimed or given up once at most": "select * from used where times > 1",
  "I1: a claim takes rows that are there": `select * from member m where not exists (
    select from entry e where e.slot = m.slot and e.lane_id = m.lane_id and e.pos = m.pos)`,
  "I2: no more is closed than there is": "select * from counted where closed > there",
  "I3: what is closed was claimed, and is closed once": `select c.slot, c.batch_id, c.member
    from closed c left join batch b on b.slot = c.slot and b.batch_id = c.batch_id
    group by c.slot, c.batch_id, c.member, b.n
    having count(*) > 1 or b.n is null or c.member not between 1 and b.n`,
  "I3: closures count their members": "select * from closure where n <> cardinality(members)",
  "I5: the cursor of a lane never falls": `select * from (
      select lane_id, batch_id, cursor_pos, lag(cursor_pos) over (partition by lane_id order by batch_id) as before
      from batch where cursor_pos is not null
    ) c where cursor_pos < before`,
  "I6: a job is in one place, unless it was thrown away": `select k.job_id, array_agg(h.state) as places
    from (select job_id from entry union select job_id from home) k left join home h on h.job_id = k.job_id
    where k.job_id not in (select job_id from gone)
    group by k.job_id having count(h.job_id) <> 1`,
  "I6: what was thrown away is nowhere": "select * from home where job_id in (select job_id from gone)",
  "I7: every attempt of a job has its own lease":
    "select job_id, run_lease from taken where batch_id is not null group by job_id, run_lease having count(*) > 1",
  "I7: the lease of a job never falls": `select * from (
      select job_id, run_lease, lag(run_lease) over (partition by job_id order by pos) as before from entry
    ) e where run_lease < before`
}

/** What must not be found either when all jobs have ended. */
export const drained: Invariants = {
  "I1: every row of the log was claimed or given up": "select * from used where times <> 1",
  "I2: what there was is closed": "select * from counted where closed <> there",
  "no attempt is left that a lease speaks for": "select * from awa.leases"
}

export const holds = (invariants: Invariants, model: Model) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const gone = model.jobs.filter(({ state }) => state === "gone").map(({ id }) => id)
    yield* sql.unsafe(`create temporary table gone on commit drop as select unnest('{${gone}}'::bigint[]) as job_id`)
    for (const [name, query] of Object.entries(views)) {
      yield* sql.unsafe(`create temporary table ${name} on commit drop as ${query}`)
    }
    for (const [rule, query] of Object.entries(invariants)) assert.deepEqual(yield* sql.unsafe(query), [], rule)
  }).pipe(Database.transaction)

/** I9: nothing in the log is ever updated or deleted. */
export const onlyInserted = Effect.map(Jobs.tableWrites, (tables) => {
  const log = /^(ready_entries|claim_batches|closures|tombstones)_/
  assert.deepEqual(
    tables.filter(({ deletes, table, updates }) => log.test(table) && deletes + updates > 0),
    [],
    "I9: rows of the log were changed"
  )
})
