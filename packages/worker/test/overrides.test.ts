import { DatabaseError } from "@awa/model/Errors"
import { Awa } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Logger, TestClock } from "effect"
import { Greet, quiet, start } from "./support/harness.js"
import * as MemoryEngine from "./support/memoryEngine.js"

const greet = { kind: "greet", args: { name: "Ada" } }

const override = { queue: "default", refused: [] }

const refresh = Duration.seconds(10)

/** Moves the clock to the next look at the overrides. */
const nextLook = ({ engine }: { readonly engine: MemoryEngine.MemoryEngine }) =>
  Effect.gen(function*() {
    const looks = engine.count("overrides")
    while (engine.count("overrides") === looks) {
      yield* TestClock.adjust("1 second")
      yield* Effect.yieldNow()
    }
  })

describe("overrides", () => {
  it.scoped("hold from the first claim on", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.override({ ...override, claimBatchSize: 3, deadline: Duration.seconds(7) })
      engine.add(...Array.from({ length: 6 }, () => greet))
      const gate = yield* Effect.makeLatch(false)
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default"), Awa.handle(Greet, () => gate.await), quiet),
        { engine }
      )
      yield* signals.until("all run", () => engine.states().every((state) => state === "running"))
      assert.strictEqual(
        Math.max(...engine.calls.filter(({ operation }) => operation === "claim").map((c) => c.size)),
        3
      )
      assert.deepStrictEqual(engine.jobs.map(({ deadlineAt }) => deadlineAt), Array(6).fill(7_000))
      yield* gate.open
    }))

  it.scoped("are taken over while the worker runs, and given up when they are cleared", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const worker = yield* start(
        Awa.builder.pipe(
          Awa.queue("default", { pollInterval: "1 hour", deadline: "1 minute" }),
          Awa.handle(Greet, () => Effect.never),
          quiet
        ),
        { engine }
      )
      const { signals } = worker
      yield* signals.untilCount("asleep", 1)
      const sleepsThrough = Effect.gen(function*() {
        const [job] = engine.add(greet)
        yield* TestClock.adjust("1 minute")
        return job!.state
      })
      assert.strictEqual(yield* sleepsThrough, "available", "polled once an hour")

      engine.override({ ...override, pollInterval: Duration.seconds(1), deadline: Duration.hours(2) })
      yield* signals.advanceUntil("it is overridden", "1 second", () => signals.all("overridden").length === 1)
      yield* signals.advanceUntil("the job runs", "1 second", () => engine.jobs[0]!.state === "running")
      assert.strictEqual(engine.jobs[0]!.deadlineAt - engine.jobs[0]!.claimedAt, Duration.toMillis("2 hours"))

      engine.override()
      yield* signals.advanceUntil("it is not any more", "1 second", () => signals.all("overridden").length === 2)
      yield* signals.until("it sleeps", () => signals.all("asleep").length >= 2)
      assert.strictEqual(yield* sleepsThrough, "available", "polled once an hour again")
    }))

  it.scoped("that shorten a deadline wake who watches over it", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const { notifier, signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("default", { deadline: "1 day", pollInterval: "1 day" }),
          Awa.handle(Greet, () => Effect.never),
          quiet
        ),
        { engine }
      )
      yield* signals.untilCount("asleep", 1)
      engine.override({ ...override, deadline: Duration.seconds(5) })
      yield* signals.advanceUntil("it is overridden", "1 second", () => signals.all("overridden").length === 1)
      engine.add(greet)
      notifier.notify("default")
      yield* signals.advanceUntil("the attempt was interrupted", "1 second", () => signals.flushed().length === 1)
      assert.isAtMost(engine.jobs[0]!.runAt, 60_000)
    }))

  it.scoped("that cannot be read leave what held before", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.override({ ...override, claimBatchSize: 2 })
      const worker = yield* start(
        Awa.builder.pipe(Awa.queue("default"), Awa.handle(Greet, () => Effect.void), quiet),
        { engine }
      )
      engine.before(
        "overrides",
        Effect.fail(new DatabaseError({ operation: "look for overrides", sqlState: null, cause: new Error("down") }))
      )
      yield* worker.signals.advanceUntil("it failed", refresh, () =>
        worker.signals.all("failed").some(({ loop }) =>
          loop === "overrides"
        ))
      engine.add(...Array.from({ length: 4 }, () => greet))
      worker.notifier.notify("default")
      yield* worker.signals.until("all ran", () => worker.signals.flushed().length === 4)
      const sizes = engine.calls.filter(({ operation }) => operation === "claim").map(({ size }) => size)
      assert.deepStrictEqual([...new Set(sizes)], [2])
    }))

  it.scoped("that make no sense are ignored, which is said once", () =>
    Effect.gen(function*() {
      const lines: Array<string> = []
      const logger = Logger.make(({ message }) => void lines.push(String(message)))
      const engine = MemoryEngine.make()
      engine.override({ queue: "default", deadline: Duration.seconds(1), refused: ["claim_batch_size"] })
      yield* Effect.gen(function*() {
        const worker = yield* start(
          Awa.builder.pipe(Awa.queue("default", { deadline: null }), Awa.handle(Greet, () => Effect.void), quiet),
          { engine }
        )
        yield* nextLook(worker)
        yield* nextLook(worker)
        engine.add(greet)
        worker.notifier.notify("default")
        yield* worker.signals.until("it ran", () => worker.signals.flushed().length === 1)
      }).pipe(Effect.provide(Logger.replace(Logger.defaultLogger, logger)))
      assert.strictEqual(engine.jobs[0]!.deadlineAt, Infinity)
      const said = lines.filter((line) => line.includes("are ignored"))
      assert.strictEqual(said.length, 1)
      assert.match(said[0]!, /"default".*claim_batch_size.*deadline/)
    }))
})

describe("dead letters", () => {
  it.scoped("are cleaned up by the leader, batch by batch, at the interval", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.deadLetters.push(...Array.from({ length: 25 }))
      const { signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("default"),
          Awa.handle(Greet, () => Effect.void),
          Awa.dlq({ cleanupBatchSize: 10, cleanupInterval: "1 minute" }),
          quiet
        ),
        { engine }
      )
      yield* signals.advanceUntil("it looks", "1 second", () => signals.all("purged").length === 1)
      assert.strictEqual(engine.count("cleanupDeadLetters"), 3)
      assert.deepStrictEqual(signals.all("purged").map(({ count }) => count), [25])
      engine.deadLetters.push(1)
      yield* signals.advanceUntil("it looks again", "10 seconds", () => signals.all("purged").length === 2)
      assert.deepStrictEqual(signals.all("purged").map(({ count }) => count), [25, 1])
    }))
})
