import type { Signals } from "awa"
import { Awa } from "awa"
import { Effect, Schedule } from "effect"
import * as assert from "node:assert/strict"
import type { start } from "../../worker/support/worker.js"
import * as Work from "./work.js"

export type Started = Effect.Effect.Success<ReturnType<typeof start>>

/** What handlers did, in memory: nothing that happens to the database can take it back. */
export const makeRuns = (maxWorkers = 20) => {
  const runs: Array<Work.Run> = []
  /** A worker whose handlers use the application's connections for every other job. */
  const worker = Awa.builder.pipe(
    Awa.queue("default", { maxWorkers }),
    Awa.heartbeat({ interval: "500 millis", staleness: "3 seconds", rescueInterval: "500 millis" }),
    Awa.maintenance({ leaderElectionInterval: "200 millis", promoteInterval: "50 millis" }),
    Awa.handle(Work.Work, ({ n }, { attempt, fence, job }) => {
      const run: Work.Run = { jobId: job.id, attempt, fence }
      runs.push(run)
      return Effect.when(Work.record(run), () => n % 2 === 0).pipe(Effect.asVoid)
    })
  )
  return { runs, worker }
}

/**
 * Enqueues until it is interrupted. What was acknowledged must be there; what was not may be there, too, if only the
 * answer was lost.
 */
export const produce = (acknowledged: Array<bigint>, backlog: () => number) =>
  Effect.suspend(() =>
    backlog() > 200
      ? Effect.void
      : Effect.map(Work.Work.enqueueMany(Array.from({ length: 20 }, (_, n) => ({ n }))), (ids) => {
        acknowledged.push(...ids)
      })
  ).pipe(Effect.ignore, Effect.uninterruptible, Effect.repeat(Schedule.spaced("5 millis")))

/** Each job was acknowledged as completed by one attempt, and no attempt was acknowledged twice. */
export const assertStoredOnce = (
  flushed: ReadonlyArray<Signals.Flushed>,
  runs: ReadonlyArray<Work.Run>,
  jobs: number
): void => {
  const jobOf = new Map(runs.map(({ fence, jobId }) => [fence, jobId]))
  const completed = flushed.filter(({ outcome, verdict }) => outcome === "completed" && verdict !== "refused")
  assert.equal(new Set(completed.map(({ fence }) => jobOf.get(fence))).size, jobs)
  assert.equal(completed.length, jobs, "a job was acknowledged as completed twice")
}

/** How many attempts ended so far. */
export const endedBy = ({ signals }: Started) => signals.flushed().length
