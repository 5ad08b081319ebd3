import { Jobs, Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { Awa, Job } from "awa"
import { Effect, Schema } from "effect"
import * as assert from "node:assert/strict"

export const Work = Job.make("work", { payload: { n: Schema.Int } })

/** Runs until it is let go. */
export const Hold = Job.make("hold", { payload: { release: Schema.Boolean } })

/** One run of a handler, as the handler itself wrote it down. */
export interface Run {
  readonly jobId: bigint
  readonly attempt: number
  readonly fence: string
}

/** Where handlers leave their effect: rows of a table beside the queue. */
export const createLedger = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) => sql`create table ledger (job_id bigint not null, attempt integer not null, fence text not null)`
)

export const record = ({ attempt, fence, jobId }: Run) =>
  Effect.flatMap(
    SqlClient.SqlClient,
    (sql) => sql`insert into ledger (job_id, attempt, fence) values (${String(jobId)}, ${attempt}, ${fence})`
  )

export const readLedger: Effect.Effect<ReadonlyArray<Run>, unknown, SqlClient.SqlClient> = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) =>
    Effect.map(
      sql<{ id: string; attempt: number; fence: string }>`select job_id::text as id, attempt, fence from ledger`,
      (rows) => rows.map(({ attempt, fence, id }) => ({ jobId: BigInt(id), attempt, fence }))
    )
)

export const countLedger = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) => Effect.map(sql<{ n: number }>`select count(*)::int as n from ledger`, ([row]) => row!.n)
)

/** A failed attempt is repeated soon: how long the wait is has tests of its own. */
export const hurry = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) =>
    sql`create or replace function awa.backoff(p_attempt integer) returns interval
    language sql volatile parallel safe as ${sql.literal("$$ select interval '50 milliseconds' $$")}`
)

/** Waits until nothing is left to do. */
export const allEnded = Effect.map(Jobs.countByState(), ({ cancelled, completed, failed, ...open }) => {
  assert.equal(Object.values(open).reduce((sum, n) => sum + n, 0), 0, JSON.stringify({ ...open, completed }))
  assert.deepEqual({ cancelled, failed }, { cancelled: 0, failed: 0 })
}).pipe((check) => Wait.eventually(check, { within: "40 seconds", every: "25 millis" }))

/** Every job is completed, and by what is in the ledger: none that did not run, and no attempt that ran twice. */
export const assertAccounted = (jobs: ReadonlyArray<Jobs.StoredJob>, runs: ReadonlyArray<Run>): void => {
  assert.ok(jobs.length > 0)
  assert.deepEqual(jobs.filter(({ state }) => state !== "completed"), [])
  assert.equal(new Set(runs.map(({ fence }) => fence)).size, runs.length, "an attempt ran twice")
  const attempts = new Map<bigint, Array<number>>()
  for (const { attempt, jobId } of runs) attempts.set(jobId, [...attempts.get(jobId) ?? [], attempt])
  for (const job of jobs) {
    const ran = attempts.get(job.id) ?? []
    assert.ok(ran.includes(job.attempt), `job ${job.id} completed in attempt ${job.attempt}, and ran in ${ran.join()}`)
    assert.ok(ran.every((attempt) => attempt <= job.attempt), `job ${job.id} ran in ${ran.join()} of ${job.attempt}`)
    assert.deepEqual(job.errors.map(({ attempt }) => attempt), Array.from({ length: job.attempt - 1 }, (_, i) => i + 1))
  }
  const ids = new Set(jobs.map(({ id }) => id as bigint))
  assert.deepEqual(runs.filter(({ jobId }) => !ids.has(jobId)), [])
}

/** Rescues soon, and leaves its effects in the ledger. `reached` is told how far each job got. */
export const worker = (reached: (point: "before the effect" | "after the effect") => void) =>
  Awa.builder.pipe(
    Awa.queue("default", { maxWorkers: 10 }),
    Awa.heartbeat({ interval: "300 millis", staleness: "1500 millis", rescueInterval: "300 millis" }),
    Awa.maintenance({ leaderElectionInterval: "200 millis", promoteInterval: "50 millis" }),
    Awa.handle(Work, (_, { attempt, fence, job }) =>
      Effect.gen(function*() {
        reached("before the effect")
        yield* record({ jobId: job.id, attempt, fence })
        reached("after the effect")
      }))
  )
