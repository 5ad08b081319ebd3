import { DatabaseError } from "@awa/model/Errors"
import { Awa, JobContext } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect } from "effect"
import { Greet, quiet, start } from "./support/harness.js"
import * as MemoryEngine from "./support/memoryEngine.js"

const lostConnection = new DatabaseError({ operation: "x", sqlState: null, cause: new Error("gone") })

const greet = { kind: "greet", args: { name: "Ada" } }

const worker = Awa.builder.pipe(
  Awa.queue("default", { deadline: null, maxWorkers: 2000, pollInterval: "1 minute" }),
  quiet
)

/** A worker whose handlers run until the gate opens, or fail to notice anything. */
const setUp = (jobs: number, handler?: Effect.Effect<void, unknown, JobContext.JobContext>) =>
  Effect.gen(function*() {
    const gate = yield* Effect.makeLatch(false)
    const interrupted: Array<string> = []
    const engine = MemoryEngine.make()
    engine.add(...Array.from({ length: jobs }, () => greet))
    const builder = worker.pipe(
      Awa.handle(Greet, (_, { fence }) =>
        Effect.zipRight(handler ?? Effect.void, gate.await).pipe(
          Effect.onInterrupt(() => Effect.sync(() => void interrupted.push(fence)))
        ))
    )
    const { awa, signals } = yield* start(builder, { engine })
    yield* Effect.addFinalizer(() => gate.open)
    yield* signals.until("all are claimed", () => engine.states().every((state) => state === "running"))
    const beats = () => engine.calls.filter(({ operation }) => operation === "heartbeat").map(({ size }) => size)
    return { awa, engine, signals, gate, interrupted, beats }
  })

describe("heartbeat", () => {
  it.scoped("an attempt older than the interval beats, in statements of 500", () =>
    Effect.gen(function*() {
      const { beats, engine, signals } = yield* setUp(1200)
      yield* signals.advanceUntil("a pass beat", "30 seconds", () => signals.all("beat").some(({ count }) => count > 0))
      assert.deepStrictEqual(beats().slice(0, 3), [500, 500, 200])
      assert.isTrue(engine.jobs.every(({ beatAt }) => beatAt >= 27_000))
    }))

  it.scoped("a short job beats never", () =>
    Effect.gen(function*() {
      const { beats, gate, signals } = yield* setUp(3)
      yield* gate.open
      yield* signals.until("all are stored", () => signals.flushed().length === 3)
      yield* signals.advanceUntil("passes went by", "10 seconds", () => signals.all("beat").length > 3)
      assert.deepStrictEqual(beats(), [])
    }))

  it.scoped("progress is stored with the next beat, however young the attempt, and only once", () =>
    Effect.gen(function*() {
      const report = Effect.flatMap(
        JobContext.JobContext,
        ({ setProgress, updateMetadata }) => Effect.zipRight(setProgress(30, "reading"), updateMetadata({ page: 2 }))
      )
      const { beats, engine, signals } = yield* setUp(1, report)
      yield* signals.advanceUntil("a pass beat", "1 seconds", () => signals.all("beat").some(({ count }) => count > 0))
      assert.deepStrictEqual(engine.jobs[0]!.progress, { percent: 30, message: "reading", metadata: { page: 2 } })
      engine.jobs[0]!.progress = "not written again"
      yield* signals.advanceUntil("it beat again", "1 seconds", () => beats().length >= 2)
      assert.strictEqual(engine.jobs[0]!.progress, "not written again")
    }))

  it.scoped("a pass that fails is tried again soon, with the same progress", () =>
    Effect.gen(function*() {
      const report = Effect.flatMap(JobContext.JobContext, ({ setProgress }) => setProgress(30))
      const { engine, signals } = yield* setUp(1, report)
      engine.before("heartbeat", Effect.fail(lostConnection))
      yield* signals.advanceUntil("it failed", "10 seconds", () => signals.all("failed").length > 0)
      engine.before("heartbeat", Effect.void)
      yield* signals.advanceUntil("it works", "100 millis", () => signals.all("beat").some(({ count }) => count > 0))
      assert.deepStrictEqual(engine.jobs[0]!.progress, { percent: 30 })
    }))

  it.scoped("progress the database refuses is dropped, and everybody is renewed", () =>
    Effect.gen(function*() {
      const report = Effect.flatMap(JobContext.JobContext, ({ job, setProgress }) => setProgress(Number(job.id)))
      const { engine, signals } = yield* setUp(9, report)
      const { service } = engine
      const heartbeat = service.heartbeat
      Object.assign(service, {
        heartbeat: (owner: string, list: Parameters<typeof heartbeat>[1]) =>
          list.some(({ progress }) => (progress as { percent: number } | undefined)?.percent === 5)
            ? Effect.fail(new DatabaseError({ operation: "heartbeat", sqlState: "22P05", cause: new Error("bad") }))
            : heartbeat(owner, list)
      })
      yield* signals.advanceUntil("a pass beat", "1 second", () => signals.all("beat").some(({ count }) => count === 9))
      assert.isTrue(engine.jobs.every(({ beatAt }) => beatAt > 0))
      assert.deepStrictEqual(
        engine.jobs.map(({ progress }) => (progress as { percent: number } | undefined)?.percent),
        [1, 2, 3, 4, undefined, 6, 7, 8, 9]
      )
      assert.strictEqual(signals.all("failed").length, 0)
    }))

  it.scoped("one attempt that cannot beat at all keeps no other from it, and the pass fails", () =>
    Effect.gen(function*() {
      const { engine, signals } = yield* setUp(9)
      const { service } = engine
      const heartbeat = service.heartbeat
      Object.assign(service, {
        heartbeat: (owner: string, list: Parameters<typeof heartbeat>[1]) => {
          if (list.some(({ token }) => token.index === 5)) throw new TypeError("a bug")
          return heartbeat(owner, list)
        }
      })
      yield* signals.advanceUntil("a pass failed", "10 seconds", () => signals.all("failed").length > 0)
      assert.deepStrictEqual(engine.jobs.map(({ beatAt }) => beatAt > 0), engine.jobs.map(({ id }) => id !== 5))
    }))

  it.scoped("flushProgress stores at once, and not again", () =>
    Effect.gen(function*() {
      const flushed = yield* Deferred.make<void>()
      const report = Effect.gen(function*() {
        const context = yield* JobContext.JobContext
        yield* context.flushProgress
        yield* context.setProgress(50)
        yield* context.flushProgress
        yield* context.flushProgress
        yield* Deferred.succeed(flushed, undefined)
      })
      const { beats, engine } = yield* setUp(1, report)
      yield* Deferred.await(flushed)
      assert.deepStrictEqual(beats(), [1])
      assert.deepStrictEqual(engine.jobs[0]!.progress, { percent: 50 })
    }))

  it.scoped("an attempt that belongs to somebody else is interrupted, and nothing is written for it", () =>
    Effect.gen(function*() {
      const { awa, engine, interrupted, signals } = yield* setUp(2)
      Object.assign(engine.jobs[0]!, { lease: 2, owner: "somebody else" })
      yield* signals.advanceUntil("one is lost", "10 seconds", () => signals.all("beat").some(({ lost }) => lost === 1))
      assert.strictEqual(interrupted.length, 1)
      assert.strictEqual((yield* awa.healthCheck).queues["default"]!.inFlight, 1)
      assert.strictEqual(engine.count("complete"), 0)
    }))

  it.scoped("the jobs of a claim whose answer was lost are given back, unspent", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet, greet)
      engine.after(
        "claim",
        Effect.suspend(() => {
          engine.after("claim", Effect.void)
          return Effect.fail(lostConnection)
        })
      )
      const seen: Array<number> = []
      const { signals } = yield* start(
        worker.pipe(Awa.handle(Greet, (_, { attempt }) => Effect.sync(() => void seen.push(attempt)))),
        { engine }
      )
      yield* signals.advanceUntil(
        "both ran",
        "100 millis",
        () => engine.states().every((state) => state === "completed")
      )
      assert.deepStrictEqual(seen, [1, 1])
      assert.deepStrictEqual(signals.all("beat").map(({ returned }) => returned).filter((n) => n > 0), [2])
    }))

  it.scoped("a claim whose answer is under way is waited for", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      const gate = yield* Effect.makeLatch(false)
      engine.add(greet)
      engine.after("claim", gate.await)
      const { signals } = yield* start(worker.pipe(Awa.handle(Greet, () => Effect.void)), { engine })
      yield* signals.advanceUntil("passes went by", "30 seconds", () => signals.all("beat").length > 3)
      assert.strictEqual(engine.jobs[0]!.state, "running")
      yield* gate.open
      yield* signals.until("it is stored", () => signals.flushed().length === 1)
      assert.deepInclude(engine.jobs[0], { state: "completed", attempt: 1 })
    }))

  it.scoped("what runs here is never given back", () =>
    Effect.gen(function*() {
      const { engine, signals } = yield* setUp(3)
      yield* signals.advanceUntil("passes went by", "30 seconds", () => signals.all("beat").length > 5)
      assert.strictEqual(engine.count("complete"), 0)
      assert.isAbove(engine.count("openAttempts"), 3)
    }))

  it.scoped("a worker that has just started asks for no claims of its own", () =>
    Effect.gen(function*() {
      const { engine, signals } = yield* setUp(1)
      yield* signals.untilCount("beat", 1)
      assert.strictEqual(engine.count("openAttempts"), 0)
    }))
})
