import { DatabaseError } from "@awa/model/Errors"
import { Awa } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Fiber, TestClock } from "effect"
import { Greet, quiet, start } from "./support/harness.js"
import * as MemoryEngine from "./support/memoryEngine.js"
import { advancing } from "./support/signalLog.js"

const greet = { kind: "greet", args: { name: "Ada" } }

const worker = Awa.builder.pipe(quiet, Awa.queue("default", { pollInterval: "1 minute", deadline: null }))

const running = (engine: MemoryEngine.MemoryEngine) => engine.states().every((state) => state === "running")

/** Shuts down while the test clock runs, and answers how long that took on it. */
const timed = (shutdown: Effect.Effect<void>) =>
  Effect.gen(function*() {
    const before = yield* Clock.currentTimeMillis
    yield* advancing("100 millis", shutdown)
    return (yield* Clock.currentTimeMillis) - before
  })

describe("shutdown", () => {
  it.scoped("waits for running jobs and stores their results, and claims no more", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.add(greet, greet)
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => gate.await)), { engine })
      yield* signals.until("both run", () => running(engine))
      const stopping = yield* Effect.fork(awa.shutdown("30 seconds"))
      yield* signals.until("it stops", () => stopping.unsafePoll() === null)
      engine.add(greet)
      assert.isTrue((yield* awa.healthCheck).shuttingDown)
      yield* gate.open
      yield* Fiber.join(stopping)
      assert.deepStrictEqual(engine.states(), ["completed", "completed", "available"])
      const health = yield* awa.healthCheck
      assert.isFalse(health.healthy)
      assert.isFalse(health.pollLoopAlive)
      assert.isFalse(health.leader)
    }))

  it.scoped("interrupts and returns what does not finish in four fifths of the time, the attempt unspent", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet)
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => Effect.never)), { engine })
      yield* signals.until("it runs", () => running(engine))
      const took = yield* timed(awa.shutdown("10 seconds"))
      assert.isAtLeast(took, 8_000)
      assert.isBelow(took, 9_000)
      assert.deepInclude(engine.jobs[0], { state: "available", attempt: 0, errors: [] })
    }))

  it.scoped("waits for the finalizers of a handler that is over", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      let closing = false
      engine.add(greet)
      const close = Effect.addFinalizer(() => Effect.zipRight(Effect.sync(() => void (closing = true)), gate.await))
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => close)), { engine })
      yield* signals.until("it closes", () => closing)
      const stopping = yield* Effect.fork(awa.shutdown("10 seconds"))
      yield* TestClock.adjust("5 seconds")
      assert.strictEqual(engine.jobs[0]!.state, "running")
      yield* gate.open
      yield* advancing("100 millis", Fiber.join(stopping))
      assert.deepInclude(engine.jobs[0], { state: "completed", attempt: 1 })
    }))

  it.scoped("leaves a handler that does not react to rescue, and ends in time", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.add(greet)
      const { awa, signals } = yield* start(
        worker.pipe(Awa.handle(Greet, () => Effect.uninterruptible(gate.await))),
        { engine }
      )
      yield* Effect.addFinalizer(() => gate.open)
      yield* signals.until("it runs", () => running(engine))
      const took = yield* timed(awa.shutdown("10 seconds"))
      assert.isAtMost(took, 10_100)
      assert.deepInclude(engine.jobs[0], { state: "running", attempt: 1 })
    }))

  it.scoped("gives up on results the database does not take, in time", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet)
      engine.before(
        "complete",
        Effect.fail(new DatabaseError({ operation: "complete", sqlState: null, cause: new Error("away") }))
      )
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => Effect.void)), { engine })
      yield* signals.untilCount("failed", 1)
      const took = yield* timed(awa.shutdown("10 seconds"))
      assert.isAtMost(took, 10_100)
      assert.strictEqual(engine.jobs[0]!.state, "running")
    }))

  it.scoped("stores results as soon as the database is back", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet)
      engine.before(
        "complete",
        Effect.fail(new DatabaseError({ operation: "complete", sqlState: null, cause: new Error("away") }))
      )
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => Effect.void)), { engine })
      yield* signals.untilCount("failed", 1)
      const stopping = yield* Effect.fork(awa.shutdown("30 seconds"))
      yield* signals.advanceUntil("it failed again", "100 millis", () => signals.all("failed").length > 2)
      engine.before("complete", Effect.void)
      yield* advancing("100 millis", Fiber.join(stopping))
      assert.strictEqual(engine.jobs[0]!.state, "completed")
    }))

  it.scoped("gives back the jobs of a claim that was under way", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.add(greet, greet)
      engine.after("claim", gate.await)
      let ran = 0
      const { awa, signals } = yield* start(
        worker.pipe(Awa.handle(Greet, () => Effect.sync(() => void ran++))),
        { engine }
      )
      yield* signals.until("the claim is under way", () => running(engine))
      const stopping = yield* Effect.fork(awa.shutdown("30 seconds"))
      while (!(yield* awa.healthCheck).shuttingDown) yield* Effect.yieldNow()
      yield* gate.open
      yield* Fiber.join(stopping)
      assert.strictEqual(ran, 0)
      assert.isTrue(engine.jobs.every(({ attempt, state }) => state === "available" && attempt === 0))
    }))

  it.scoped("jobs keep their heartbeat while they are waited for", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.add(greet)
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => gate.await)), { engine })
      yield* signals.until("it runs", () => running(engine))
      const stopping = yield* Effect.fork(awa.shutdown("5 minutes"))
      yield* signals.advanceUntil("it beat", "10 seconds", () => signals.all("beat").some(({ count }) => count === 1))
      yield* gate.open
      yield* Fiber.join(stopping)
      assert.strictEqual(engine.jobs[0]!.state, "completed")
    }))

  it.scoped("a second call waits for the first and does nothing else", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.add(greet)
      const { awa, signals } = yield* start(worker.pipe(Awa.handle(Greet, () => gate.await)), { engine })
      yield* signals.until("it runs", () => running(engine))
      const first = yield* Effect.fork(awa.shutdown())
      const second = yield* Effect.fork(awa.shutdown("1 millis"))
      yield* gate.open
      yield* Fiber.join(Fiber.zip(first, second))
      yield* awa.shutdown()
      assert.strictEqual(signals.all("stopped").length, 1)
      assert.strictEqual(engine.jobs[0]!.state, "completed")
    }))
})
