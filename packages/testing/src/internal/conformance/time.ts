import { TimeSource } from "@awa/model/TimeSource"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { checkAlone, idsOf, outcomes } from "./harness.js"

const databaseNow = Effect.gen(function*() {
  const sql = (yield* SqlClient.SqlClient).withoutTransforms()
  const rows = yield* sql<{ now: string }>`select (extract(epoch from clock_timestamp()) * 1000)::bigint::text as now`
  return Number(rows[0]!.now)
}).pipe(Effect.orDie)

/** @internal */
export const telling = [
  checkAlone("without a time source the clock of the database decides", (t) =>
    Effect.gen(function*() {
      const before = yield* databaseNow
      const [now, later] = [yield* t.enqueue(), yield* t.enqueue({ delay: "1 hour" })]
      const [claimed] = yield* t.claim(1, { deadline: Duration.hours(1) })
      yield* t.engine.heartbeat(t.owner, [{ token: claimed!.token }])
      const running = yield* t.expectState(now, "running")
      yield* TestClock.adjust("1 day")
      assert.equal(yield* t.engine.promote(10), 0)
      assert.deepEqual(yield* t.engine.rescueStale({ staleness: Duration.minutes(1), limit: 10 }), [])
      assert.deepEqual(yield* t.engine.rescueExpired({ limit: 10 }), [])
      yield* t.accept(claimed!, outcomes.completed)
      const finished = yield* t.expectState(now, "completed")
      const scheduled = yield* t.expectState(later, "scheduled")
      const end = yield* databaseNow
      const hour = 3_600_000
      const instants = {
        createdAt: running.createdAt.getTime(),
        attemptedAt: claimed!.job.attemptedAt?.getTime(),
        heartbeatAt: running.heartbeatAt?.getTime(),
        deadlineAt: running.deadlineAt!.getTime() - hour,
        finalizedAt: finished.finalizedAt?.getTime(),
        runAt: scheduled.runAt.getTime() - hour
      }
      for (const [name, instant] of Object.entries(instants)) {
        assert.ok(instant! >= before - 1 && instant! <= end + 1, `${name} is ${instant}, not in ${before}..${end}`)
      }
    }).pipe(Effect.provideService(TimeSource, Effect.succeed(null)))),

  checkAlone("with a time source nothing is due until its clock says so", (t) =>
    Effect.gen(function*() {
      const waiting = yield* t.enqueue({ delay: "1 minute" })
      const running = yield* t.enqueue()
      yield* t.claim(1, { deadline: Duration.minutes(2) })
      const pass = Effect.all({
        promoted: t.engine.promote(10),
        expired: t.engine.rescueExpired({ limit: 10 }),
        stale: t.engine.rescueStale({ staleness: Duration.minutes(3), limit: 10 })
      })
      assert.deepEqual(yield* pass, { promoted: 0, expired: [], stale: [] })
      yield* TestClock.adjust("61 seconds")
      assert.deepEqual(yield* pass, { promoted: 1, expired: [], stale: [] })
      assert.deepEqual(idsOf(yield* t.claim()), [waiting])
      yield* TestClock.adjust("60 seconds")
      const { expired, stale } = yield* pass
      assert.deepEqual([expired.map(({ jobId }) => jobId), stale], [[running], []])
    }))
]
