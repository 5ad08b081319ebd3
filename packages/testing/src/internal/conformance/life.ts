import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import * as Jobs from "../../Jobs.js"
import { all, check, outcomes } from "./harness.js"

/** @internal */
export const living = [
  check("a job is in exactly one state at every step of its life", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ delay: "1 minute", maxAttempts: 4 })
      const path: Array<string> = []
      // `expectState` fails when the job is found in no state or in two.
      const note = Effect.flatMap(t.job(id), ({ state }) =>
        Effect.map(Jobs.countByState({ queue: t.queue }), (counts) => {
          path.push(state)
          assert.equal(
            Object.values(counts).reduce((sum, n) =>
              sum + n
            ),
            1
          )
          assert.equal(counts[state], 1)
        }))
      const promote = Effect.zipRight(TestClock.adjust("1 hour"), t.engine.promote(all))
      yield* note
      yield* promote
      yield* note
      for (const outcome of [outcomes.snooze, outcomes.return, outcomes.retry, outcomes.retryNow]) {
        const claimed = yield* t.claimOne
        yield* note
        yield* t.accept(claimed, outcome)
        yield* note
        yield* promote
        yield* note
      }
      yield* t.claimOne
      yield* TestClock.adjust("1 hour")
      yield* t.engine.rescueStale({ staleness: Duration.minutes(1), limit: all })
      yield* note
      yield* promote
      const last = yield* t.claimOne
      yield* t.engine.heartbeat(t.owner, [{ token: last.token, progress: 1 }])
      yield* note
      yield* t.accept(last, outcomes.completed)
      yield* note
      assert.deepEqual(path, [
        "scheduled",
        "available",
        ...["running", "scheduled", "available"],
        ...["running", "available", "available"],
        ...["running", "retryable", "available"],
        ...["running", "available", "available"],
        "retryable",
        "running",
        "completed"
      ])
    })),

  check("jobs can be looked at by queue, kind, state and id", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(3)
      yield* t.enqueue({ queue: `${t.queue}-other` })
      yield* t.claim(1)
      const found = yield* Effect.all([
        Jobs.list({ queue: t.queue, kind: "conformance" }),
        Jobs.list({ queue: t.queue, state: "available" }),
        Jobs.list({ ids: [ids[2]!, ids[0]!] }),
        Jobs.list({ queue: t.queue, kind: "other" })
      ])
      const [a, b, c] = ids
      assert.deepEqual(found.map((jobs) => jobs.map((job) => job.id)), [[a, b, c], [b, c], [a, c], []])
    }))
]
