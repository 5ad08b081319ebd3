import { DatabaseError } from "@awa/model/Errors"
import { Awa } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Option, TestClock } from "effect"
import type { Leadership, Term } from "../src/internal/leadership.js"
import { ConnectionLost } from "../src/internal/pgConnection.js"
import { Greet, quiet, start } from "./support/harness.js"
import * as MemoryEngine from "./support/memoryEngine.js"

const greet = { kind: "greet", args: { name: "Ada" } }

const worker = Awa.builder.pipe(
  Awa.queue("default", { pollInterval: "1 minute" }),
  Awa.handle(Greet, () => Effect.void)
)

/** A lead that one of several can have, and that can be taken away. */
const makeLeadership = () => {
  let held = 0
  let most = 0
  let lost = Deferred.unsafeMake<never, ConnectionLost>(undefined as never)
  const leadership: Leadership = {
    acquire: Effect.gen(function*() {
      if (held > 0) return Option.none<Term>()
      yield* Effect.acquireRelease(
        Effect.sync(() => void (most = Math.max(most, ++held))),
        () => Effect.sync(() => void held--)
      )
      lost = Deferred.unsafeMake<never, ConnectionLost>(undefined as never)
      return Option.some({ check: Effect.void, lost: Deferred.await(lost) })
    })
  }
  return {
    leadership,
    most: () => most,
    take: Effect.suspend(() => Deferred.fail(lost, new ConnectionLost(new Error("killed"))))
  }
}

describe("maintenance", () => {
  it.scoped("one of two workers leads, and the other takes over when it stops", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const { leadership, most } = makeLeadership()
      const first = yield* start(worker.pipe(quiet), { engine, leadership })
      yield* first.signals.untilCount("leader", 1)
      const second = yield* start(worker.pipe(quiet), { engine, leadership })
      assert.isTrue((yield* first.awa.healthCheck).leader)
      assert.isFalse((yield* second.awa.healthCheck).leader)
      yield* first.awa.shutdown()
      assert.deepStrictEqual(first.signals.all("leader").map(({ leading }) => leading), [true, false])
      yield* second.signals.advanceUntil("the other leads", "1 second", () => second.signals.all("leader").length > 0)
      assert.strictEqual(most(), 1)
    }))

  it.scoped("a leader whose connection is lost stops its tasks and runs again", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const { leadership, take } = makeLeadership()
      const { signals } = yield* start(
        worker.pipe(Awa.maintenance({ promoteInterval: "1 minute" })),
        { engine, leadership }
      )
      yield* signals.untilCount("leader", 1)
      yield* take
      yield* signals.untilCount("leader", 2)
      engine.add({ ...greet, runAt: 10_000 })
      yield* signals.advanceUntil("it leads again", "1 second", () => signals.all("leader").length === 3)
      yield* signals.advanceUntil("the job ran", "10 seconds", () => engine.states()[0] === "completed")
    }))

  it.scoped("promotes in batches until nothing more is due", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...Array.from({ length: 9000 }, () => ({ ...greet, queue: "elsewhere", runAt: 1_000 })))
      const { signals } = yield* start(worker.pipe(Awa.maintenance({ promoteInterval: "10 seconds" })), { engine })
      yield* signals.advanceUntil("all are promoted", "10 seconds", () =>
        signals.all("promoted").some(({ count }) =>
          count === 9000
        ))
      const sizes = engine.calls.filter(({ operation }) => operation === "promote").map(({ size }) => size)
      assert.isTrue(sizes.every((size) => size === 4096))
      assert.strictEqual(sizes.length, 1 + 3)
    }))

  it.scoped("what can wait leaves a worker alone that has just started, for five seconds at most", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const { signals } = yield* start(worker.pipe(quiet), { engine })
      const ran = () => [
        ...["rescued", "reclaimed", "expired", "purged"].map((tag) =>
          signals.seen.filter(({ _tag }) => _tag === tag).length
        ),
        engine.count("sweepKeys")
      ]
      yield* signals.untilCount("promoted", 1)
      assert.deepStrictEqual(ran(), [0, 0, 0, 0, 0])
      yield* TestClock.adjust("5 seconds")
      yield* signals.until("each ran", () => ran().every((times) => times > 0))
    }))

  it.scoped("rescues in batches until none is left", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...Array.from({ length: 1100 }, () => ({ ...greet, queue: "elsewhere" })))
      yield* engine.service.claim({
        queue: "elsewhere",
        limit: 2000,
        owner: "dead",
        nonce: "1",
        deadline: null,
        durability: "async"
      })
      const { signals } = yield* start(worker.pipe(quiet), { engine })
      yield* signals.advanceUntil("all are rescued", "10 seconds", () =>
        signals.all("rescued").reduce((sum, { attempts }) =>
          sum + attempts.length, 0) === 1100)
      assert.isTrue(
        engine.states().every((state) =>
          state === "retryable"
        )
      )
    }))

  it.scoped("a task that fails delays no other and goes on when it can", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.before("rescueStale", Effect.die("a bug"))
      engine.before(
        "promote",
        Effect.fail(new DatabaseError({ operation: "promote", sqlState: "57014", cause: new Error("slow") }))
      )
      engine.add({ ...greet, runAt: 1_000 })
      const { awa, signals } = yield* start(
        worker.pipe(
          Awa.heartbeat({ rescueInterval: "10 seconds" }),
          Awa.maintenance({ promoteInterval: "10 seconds" })
        ),
        { engine }
      )
      yield* signals.advanceUntil(
        "both failed",
        "1 second",
        () => new Set(signals.all("failed").map(({ loop }) => loop)).size === 2
      )
      engine.before("promote", Effect.void)
      yield* signals.advanceUntil("the job ran", "1 second", () => engine.states()[0] === "completed")
      assert.isTrue((yield* awa.healthCheck).maintenanceAlive)
    }))
})
