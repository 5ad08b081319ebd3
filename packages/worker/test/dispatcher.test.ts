import { DatabaseError } from "@awa/model/Errors"
import { Awa } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { Greet, makeNotifier, quiet, start } from "./support/harness.js"
import * as MemoryEngine from "./support/memoryEngine.js"

const greet = { kind: "greet", args: { name: "Ada" } }

const many = (count: number, job: MemoryEngine.NewJob = greet) => Array.from({ length: count }, () => job)

const done = Awa.handle(Greet, () => Effect.void)

const claims = (engine: MemoryEngine.MemoryEngine) =>
  engine.calls.filter(({ operation }) => operation === "claim").map(({ size }) => size)

describe("dispatcher", () => {
  it.scoped("never runs more jobs than it has slots, and uses all of them", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(50))
      let running = 0
      let most = 0
      const handler = Effect.acquireUseRelease(
        Effect.sync(() => void (most = Math.max(most, ++running))),
        () => Effect.yieldNow(),
        () => Effect.sync(() => void running--)
      )
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default", { maxWorkers: 7 }), Awa.handle(Greet, () => handler)),
        { engine }
      )
      yield* signals.until("all are stored", () => signals.flushed().length === 50)
      assert.strictEqual(most, 7)
    }))

  it.scoped("claims no more than the size of a batch, and again at once while there is a backlog", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(25))
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default", { maxWorkers: 100, claimBatchSize: 10 }), done),
        { engine }
      )
      yield* signals.until("all are stored", () => signals.flushed().length === 25)
      assert.deepStrictEqual(signals.all("claimed").slice(0, 3).map(({ count }) => count), [10, 10, 5])
    }))

  it.scoped("asks for nothing while all slots are taken, and for a new job when one comes free", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(3))
      const gates = many(3).map(() => Effect.unsafeMakeLatch(false))
      let started = 0
      const { signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("default", { maxWorkers: 1, deadline: null }),
          Awa.handle(Greet, () => Effect.suspend(() => gates[started++]!.await))
        ),
        { engine }
      )
      for (let i = 0; i < 3; i++) {
        yield* signals.until(`job ${i} runs`, () => started === i + 1 && engine.count("claim") === i + 1)
        yield* gates[i]!.open
      }
      yield* signals.until("all are stored", () => signals.flushed().length === 3)
      assert.deepStrictEqual(claims(engine).slice(0, 3), [1, 1, 1])
    }))

  it.scoped("with one slot the end of a job goes with the claim of the next", () =>
    Effect.gen(function*() {
      for (const maxWorkers of [1, 2]) {
        const engine = MemoryEngine.make()
        engine.add(...many(5))
        const { signals } = yield* start(
          Awa.builder.pipe(Awa.queue("default", { maxWorkers }), done),
          { engine }
        )
        yield* signals.until("all are stored", () => signals.flushed().length === 5)
        yield* signals.untilCount("asleep", 1)
        assert.deepStrictEqual(engine.states(), many(5).map(() => "completed"))
        // The completer may come first, where the fiber of the dispatcher yields in between.
        const taken = engine.calls.filter(({ operation }) => operation === "completeAndClaim").map(({ size }) => size)
        assert.isTrue(maxWorkers === 1 ? taken.length >= 2 : taken.length === 0, JSON.stringify(taken))
        assert.isTrue(taken.every((size) => size === 1))
        assert.strictEqual(signals.flushed().length, 5)
      }
    }))

  it.scoped("an end whose claim fails is stored without it", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(3))
      const failure = Effect.fail(new DatabaseError({ operation: "x", sqlState: "22023", cause: null }))
      engine.before("completeAndClaim", failure)
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default", { maxWorkers: 1 }), done),
        { engine }
      )
      yield* signals.advanceUntil("all are stored", "100 millis", () => signals.flushed().length === 3)
      assert.isTrue(signals.flushed().every(({ verdict }) => verdict === "accepted"))
      assert.deepStrictEqual(engine.states(), ["completed", "completed", "completed"])
      assert.isAbove(engine.count("completeAndClaim"), 1)
    }))

  it.scoped("an end whose answer is lost with that of its claim is stored once, and the claimed job is looked for", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(3))
      let lost = 0
      engine.after(
        "completeAndClaim",
        Effect.suspend(() =>
          lost++ === 0 ? Effect.fail(new DatabaseError({ operation: "x", sqlState: null, cause: null })) : Effect.void
        )
      )
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default", { maxWorkers: 1 }), done),
        { engine }
      )
      yield* signals.advanceUntil(
        "all have ended",
        "1 second",
        () => engine.states().every((state) => state === "completed")
      )
      assert.deepStrictEqual(engine.jobs.map(({ attempt }) => attempt), [1, 1, 1])
      yield* signals.until(
        "the first is acknowledged",
        () => signals.flushed().some(({ verdict }) => verdict === "repeated")
      )
    }))

  it.scoped("each queue has its own slots and takes its own jobs only", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(5, { ...greet, queue: "slow" }), ...many(5, { ...greet, queue: "fast" }), {
        ...greet,
        queue: "other"
      })
      const gate = yield* Effect.makeLatch(false)
      const { awa, signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("slow", { maxWorkers: 2 }),
          Awa.queue("fast"),
          Awa.handle(Greet, (_, { job }) => job.queue === "slow" ? gate.await : Effect.void)
        ),
        { engine }
      )
      yield* signals.until("the fast queue is empty", () => signals.flushed().length === 5)
      yield* signals.until("the slow queue is full", () => signals.all("claimed").some(({ queue }) => queue === "slow"))
      assert.deepStrictEqual((yield* awa.healthCheck).queues, {
        slow: { inFlight: 2, maxWorkers: 2 },
        fast: { inFlight: 0, maxWorkers: 50 }
      })
      yield* gate.open
      yield* signals.until("all are stored", () => signals.flushed().length === 10)
      assert.strictEqual(engine.jobs[10]!.state, "available")
    }))

  it.scoped("an idle queue is marked, sleeps, and is woken by a notification", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const notifier = makeNotifier()
      const { signals } = yield* start(Awa.builder.pipe(Awa.queue("default"), done), { engine, notifier })
      yield* signals.untilCount("asleep", 1)
      assert.isTrue(signals.all("asleep")[0]!.marked)
      assert.deepStrictEqual([...notifier.marks], ["default"])
      const before = engine.count("claim")
      engine.add(greet)
      notifier.notify("default")
      yield* signals.until("it is stored", () => signals.flushed().length === 1)
      assert.strictEqual(engine.count("claim"), before + 1)
      assert.deepStrictEqual([...notifier.marks], ["default"])
    }))

  it.scoped("a burst takes the mark away, and quiet brings it back", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const notifier = makeNotifier()
      const { signals } = yield* start(Awa.builder.pipe(Awa.queue("default"), done), { engine, notifier })
      yield* signals.untilCount("asleep", 1)
      engine.add(...many(20))
      notifier.notify("default")
      yield* signals.until("the mark was taken away", () => signals.all("marked").some(({ held }) => !held))
      yield* signals.until("it sleeps again", () => signals.all("asleep").length === 2)
      assert.deepStrictEqual([...notifier.marks], ["default"])
    }))

  it.scoped("a queue without a free slot gives its mark away", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const notifier = makeNotifier()
      const gate = yield* Effect.makeLatch(false)
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default", { maxWorkers: 1 }), Awa.handle(Greet, () => gate.await)),
        { engine, notifier }
      )
      yield* signals.untilCount("asleep", 1)
      engine.add(greet)
      notifier.notify("default")
      yield* signals.until("the mark was taken away", () => signals.all("marked").some(({ held }) => !held))
      assert.strictEqual(notifier.marks.size, 0)
      yield* gate.open
    }))

  it.scoped("without notifications the poll finds the job, with one statement for all sleeping queues", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const notifier = makeNotifier()
      notifier.answerMarks("unavailable")
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("a"), Awa.queue("b", { pollInterval: "1 second" }), done),
        { engine, notifier }
      )
      yield* signals.untilCount("asleep", 2)
      engine.add({ ...greet, queue: "b" })
      yield* signals.advanceUntil("it is stored", "50 millis", () => signals.flushed().length === 1)
      assert.deepInclude(engine.calls, { operation: "probe", size: 2 })
    }))

  it.scoped("a reconnected notifier makes every queue claim", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const notifier = makeNotifier()
      const { signals } = yield* start(Awa.builder.pipe(Awa.queue("a"), Awa.queue("b"), done), { engine, notifier })
      yield* signals.untilCount("asleep", 2)
      engine.add({ ...greet, queue: "a" }, { ...greet, queue: "b" })
      notifier.connected()
      yield* signals.until("both are stored", () => signals.flushed().length === 2)
      yield* signals.until("both sleep again", () => signals.all("asleep").length === 4)
      assert.deepStrictEqual([...notifier.marks].sort(), ["a", "b"])
    }))

  it.scoped("a claim that fails gives its slots back and is tried again", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet)
      engine.before(
        "claim",
        Effect.fail(new DatabaseError({ operation: "claim", sqlState: "55P03", cause: new Error("busy") }))
      )
      const { awa, signals } = yield* start(Awa.builder.pipe(Awa.queue("default"), done), { engine })
      yield* signals.untilCount("failed", 1)
      assert.strictEqual((yield* awa.healthCheck).queues["default"]!.inFlight, 0)
      engine.before("claim", Effect.void)
      yield* signals.advanceUntil("it is stored", "100 millis", () => signals.flushed().length === 1)
    }))

  it.scoped("claims nothing while too many results wait to be stored", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.before("complete", gate.await)
      engine.add(...many(200))
      const { signals } = yield* start(
        Awa.builder.pipe(Awa.queue("default", { maxWorkers: 10 }), Awa.completion({ batchSize: 5 }), done),
        { engine }
      )
      yield* signals.until("the backlog is full", () =>
        engine.states().filter((state) => state === "running").length > 20)
      assert.isAtMost(
        engine.states().filter((state) =>
          state === "running"
        ).length,
        30
      )
      yield* gate.open
      yield* signals.until("all are stored", () => signals.flushed().length === 200)
    }))

  it.scoped("a handler past its deadline is interrupted, retried, and its slot comes free", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet, { ...greet, queue: "patient" })
      const { awa, signals } = yield* start(
        Awa.builder.pipe(
          quiet,
          Awa.queue("default", { deadline: "10 seconds", pollInterval: "1 minute" }),
          Awa.queue("patient", { deadline: "1 hour", pollInterval: "1 minute" }),
          Awa.handle(Greet, () => Effect.never)
        ),
        { engine }
      )
      yield* signals.until("both run", () => engine.states().every((state) => state === "running"))
      yield* signals.advanceUntil("one is stored", "1 second", () => signals.flushed().length === 1)
      assert.strictEqual(engine.jobs[0]!.state, "retryable")
      assert.include(engine.jobs[0]!.errors[0], "deadline exceeded")
      assert.deepStrictEqual((yield* awa.healthCheck).queues, {
        default: { inFlight: 0, maxWorkers: 50 },
        patient: { inFlight: 1, maxWorkers: 50 }
      })
    }))

  it.scoped("a job that cannot be started is retried, and keeps no other from starting", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(...many(3))
      const { service } = engine
      const claim = service.claim
      Object.assign(service, {
        claim: (options: Parameters<typeof claim>[0]) =>
          Effect.map(claim(options), (claimed) =>
            claimed.map((one, i) => {
              let looks = 0
              const job = new Proxy(one.job, {
                get: (target, key) => {
                  if (key === "kind" && i === 1 && looks++ === 0) throw new TypeError("no kind")
                  return Reflect.get(target, key)
                }
              })
              return { ...one, job }
            }))
      })
      const { awa, signals } = yield* start(Awa.builder.pipe(Awa.queue("default"), done), { engine })
      yield* signals.until("all are stored", () => signals.flushed().length === 3)
      assert.deepStrictEqual(engine.states(), ["completed", "retryable", "completed"])
      assert.include(engine.jobs[1]!.errors[0], "no kind")
      assert.strictEqual((yield* awa.healthCheck).queues["default"]!.inFlight, 0)
      assert.strictEqual(signals.all("failed").length, 0)
    }))

  it.scoped("claiming that only failed for 30 seconds is not healthy, until it works", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.before("claim", Effect.fail(new DatabaseError({ operation: "x", sqlState: "42501", cause: null })))
      const { awa, signals } = yield* start(Awa.builder.pipe(Awa.queue("default"), quiet, done), { engine })
      yield* signals.untilCount("failed", 1)
      assert.deepInclude(yield* awa.healthCheck, { healthy: true, pollLoopAlive: true })
      yield* signals.advanceUntil("it failed for long", "10 seconds", () => signals.all("failed").length > 40)
      assert.deepInclude(yield* awa.healthCheck, { healthy: false, postgresConnected: true, pollLoopAlive: false })
      engine.before("claim", Effect.void)
      yield* signals.advanceUntil("it sleeps", "1 second", () => signals.all("asleep").length > 0)
      assert.deepInclude(yield* awa.healthCheck, { healthy: true, pollLoopAlive: true })
    }))

  it.scoped("results that could not be stored for 30 seconds are not healthy", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet)
      engine.before("complete", Effect.fail(new DatabaseError({ operation: "x", sqlState: "42501", cause: null })))
      const { awa, signals } = yield* start(Awa.builder.pipe(Awa.queue("default"), quiet, done), { engine })
      yield* signals.untilCount("failed", 1)
      assert.isTrue((yield* awa.healthCheck).healthy)
      yield* signals.advanceUntil("it failed for long", "10 seconds", () => signals.all("failed").length > 70)
      assert.deepInclude(yield* awa.healthCheck, { healthy: false, pollLoopAlive: true })
      engine.before("complete", Effect.void)
      yield* signals.advanceUntil("it is stored", "1 second", () => signals.flushed().length === 1)
      assert.isTrue((yield* awa.healthCheck).healthy)
    }))
})
