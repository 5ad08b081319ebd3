import { EmbeddedPostgres } from "@awa/embedded"
import { Jobs, Wait } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Awa } from "awa"
import { Duration, Effect } from "effect"
import { start } from "../worker/support/worker.js"
import * as Server from "./support/server.js"
import * as Work from "./support/work.js"

describe("a database that is away", () => {
  it.scopedLive("for ten seconds costs no result of what ended meanwhile", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.EmbeddedPostgres
      const gate = yield* Effect.makeLatch(false)
      let ran = 0
      const { awa, signals } = yield* start(Awa.builder.pipe(
        Awa.queue("default", { maxWorkers: 30 }),
        Awa.handle(Work.Work, () => Effect.zipRight(gate.await, Effect.sync(() => void ran++)))
      ))
      const ids = yield* Work.Work.enqueueMany(Array.from({ length: 40 }, (_, n) => ({ n })))
      const claimed = () => signals.all("claimed").reduce((sum, { count }) => sum + count, 0)
      yield* signals.until("thirty run", () => claimed() === 30)
      yield* server.stop("fast")
      const begin = performance.now()
      yield* gate.open
      yield* signals.until("it was away for ten seconds", () => performance.now() - begin > 10_000)
      assert.strictEqual(ran, 30)
      assert.deepInclude(yield* awa.healthCheck, { healthy: false, postgresConnected: false, pollLoopAlive: true })
      yield* server.start
      yield* signals.until("all is stored", () => signals.flushed().length === 40)
      assert.strictEqual(ran, 40)
      assert.deepStrictEqual([...new Set(signals.flushed().map(({ verdict }) => verdict))], ["accepted"])
      const jobs = yield* Jobs.list()
      assert.deepStrictEqual(
        jobs.map(({ attempt, id, state }) => [id, state, attempt]),
        ids.map((id) => [id, "completed", 1])
      )
      yield* Wait.eventually(Effect.map(awa.healthCheck, ({ healthy }) => assert.isTrue(healthy)))
    }).pipe(Effect.scoped, Effect.provide(Server.layer)))

  it.scopedLive("does not hold up a shutdown; what could not be stored is run again elsewhere", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.EmbeddedPostgres
      yield* Work.createLedger
      yield* Work.hurry
      const gate = yield* Effect.makeLatch(false)
      const { awa, signals } = yield* start(Awa.builder.pipe(
        Awa.queue("default", { maxWorkers: 30 }),
        Awa.handle(Work.Work, () => gate.await),
        Awa.handle(Work.Hold, () => Effect.never)
      ))
      yield* Work.Work.enqueueMany(Array.from({ length: 20 }, (_, n) => ({ n })))
      yield* Work.Hold.enqueue({ release: false })
      const claimed = () => signals.all("claimed").reduce((sum, { count }) => sum + count, 0)
      yield* signals.until("all run", () => claimed() === 21)
      yield* server.stop("immediate")
      yield* gate.open
      const [took] = yield* Effect.timed(awa.shutdown("2 seconds"))
      assert.isAtMost(Duration.toMillis(took), 3_000)
      assert.lengthOf(signals.all("stopped"), 1)

      yield* server.start
      const second = yield* start(
        Work.worker(() => {}).pipe(
          Awa.handle(Work.Hold, () => Effect.void)
        )
      )
      yield* Work.allEnded
      const jobs = yield* Jobs.list()
      assert.lengthOf(jobs, 21)
      assert.isTrue(jobs.every(({ state }) => state === "completed"))
      assert.isTrue(second.signals.flushed().every(({ verdict }) => verdict === "accepted"))
    }).pipe(Effect.scoped, Effect.provide(Server.layer)))
})
