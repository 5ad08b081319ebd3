/**
 * Time is `TestClock`'s, the database and the worker are real. What a test waits for are signals of the worker.
 */
import { Jobs, TestDatabase } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Awa, Dlq, Job, JobError, JobResult, Queues, StorageEngine, TimeSource } from "awa"
import { Clock, Duration, Effect, Layer, Option, TestClock, TestServices } from "effect"
import { start } from "../worker/support/worker.js"

type Started = Effect.Effect.Success<ReturnType<typeof start>>

const Tick = Job.make("tick", { payload: {} })

const TestLive = Layer.merge(TestDatabase.layerQueueStorage(), TimeSource.TimeSource.layerFromClock)

/**
 * The loops run so often that a step of five seconds makes each of them look once or twice, and so seldom that a minute
 * is quickly over.
 */
const worker = Awa.builder.pipe(
  Awa.queue("default", { pollInterval: "5 seconds", deadline: "2 minutes" }),
  Awa.heartbeat({ interval: "5 seconds", staleness: "1 minute", rescueInterval: "5 seconds" }),
  Awa.maintenance({
    promoteInterval: "5 seconds",
    deadlineRescueInterval: "5 seconds",
    leaderElectionInterval: "1 day",
    reclaimInterval: "1 hour",
    expireInterval: "1 hour",
    keySweepInterval: "1 hour"
  })
)

const seconds = 5

/** Moves the clock, and waits until maintenance has looked again. It may not have looked at the very last moment. */
const step = ({ signals }: Started, by = seconds) =>
  Effect.gen(function*() {
    const passed = signals.all("promoted").length
    yield* TestClock.adjust(Duration.seconds(by))
    yield* signals.until("maintenance has looked", () => signals.all("promoted").length > passed)
  })

/** In steps, until something is so. */
const stepUntil = (started: Started, accepts: () => boolean) =>
  Effect.gen(function*() {
    for (let i = 0; i < 30 && !accepts(); i++) yield* step(started)
    assert.isTrue(accepts(), "it took too long")
  })

const started = <E, R, Kinds extends string>(builder: Awa.Builder<E, R, Kinds>) =>
  Effect.tap(
    start(builder),
    ({ signals }) => signals.until("maintenance began", () => signals.all("promoted").length > 0)
  )

/**
 * Waits until something has happened. What is enqueued while a dispatcher goes to sleep is found by its poll, and that
 * waits for a clock that stands still: so the clock moves on when nothing happens for a while.
 */
const happened = (it: Started, what: string, accepts: () => boolean) =>
  Effect.gen(function*() {
    for (let i = 0; i < 5 && !accepts(); i++) {
      const waited = yield* it.signals.until(what, accepts).pipe(
        Effect.timeoutOption("3 seconds"),
        TestServices.provideLive
      )
      if (Option.isNone(waited)) yield* step(it)
    }
    yield* it.signals.until(what, accepts)
  })

const flushed = (it: Started, count: number) =>
  happened(it, `${count} attempts ended`, () => it.signals.flushed().length >= count)

const isClaimed = ({ signals }: Started) => signals.all("claimed").some(({ count }) => count === 1)

const promoted = ({ signals }: Started) => signals.all("promoted").reduce((sum, { count }) => sum + count, 0)

const rescued = ({ signals }: Started) => signals.all("rescued").flatMap(({ attempts }) => attempts)

/** It happened at this second or up to four looks of the loops later, which is no accident: the clock stood still besides. */
const assertSoonAfter = (at: Date | number | undefined, due: number) => {
  const late = new Date(at ?? NaN).getTime() / 1_000 - due
  assert.isTrue(late >= 0 && late <= 4 * seconds, `${late} seconds after it was due`)
}

describe("time", () => {
  it.scoped("a job that fails waits twice as long every time", () =>
    Effect.gen(function*() {
      const began: Array<number> = []
      const it = yield* started(worker.pipe(Awa.handle(Tick, (_, { attempt }) =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          began.push(now / 1_000)
          return attempt <= 5 ? Effect.fail(`failure ${attempt}`) : Effect.void
        }))))
      const { id } = yield* Tick.enqueue({})
      for (const attempt of [1, 2, 3, 4, 5]) {
        yield* flushed(it, attempt)
        assert.deepInclude(yield* Jobs.get(id), { state: "retryable", attempt })
        yield* stepUntil(it, () =>
          promoted(it) === attempt)
      }
      yield* flushed(it, 6)
      const job = yield* Jobs.get(id)
      assert.deepInclude(job, { state: "completed", attempt: 6 })
      assert.deepStrictEqual(job.errors.map(({ at }) => at.getTime() / 1_000), began.slice(0, 5))
      for (const attempt of [1, 2, 3, 4, 5]) {
        const waited = began[attempt]! - began[attempt - 1]!
        assert.isAtLeast(waited, 2 ** attempt)
        assert.isAtMost(waited, 1.25 * 2 ** attempt + 4 * seconds)
      }
    }).pipe(Effect.scoped, Effect.provide(TestLive)))

  it.scoped("a scheduled job runs when its time has come, and not before", () =>
    Effect.gen(function*() {
      const it = yield* started(worker.pipe(Awa.handle(Tick, () => Effect.void)))
      const delayed = yield* Tick.enqueue({}, { delay: "1 minute" })
      const dated = yield* Tick.enqueue({}, { runAt: new Date(150_000) })
      assert.deepStrictEqual([delayed, dated].map(({ runAt, state }) => [runAt.getTime(), state]), [
        [60_000, "scheduled"],
        [150_000, "scheduled"]
      ])
      yield* step(it, 59)
      assert.strictEqual(promoted(it), 0)
      yield* stepUntil(it, () => promoted(it) === 1)
      yield* flushed(it, 1)
      const first = yield* Jobs.get(delayed.id)
      assert.strictEqual(first.state, "completed")
      assertSoonAfter(first.attemptedAt, 60)
      assertSoonAfter(first.finalizedAt, 60)
      assert.strictEqual((yield* Jobs.get(dated.id)).state, "scheduled")
      yield* stepUntil(it, () => promoted(it) === 2)
      yield* flushed(it, 2)
      assertSoonAfter((yield* Jobs.get(dated.id)).attemptedAt, 150)
    }).pipe(Effect.scoped, Effect.provide(TestLive)))

  it.scoped("a handler that runs past its deadline is interrupted, and tried again", () =>
    Effect.gen(function*() {
      let interrupted = 0
      // The engine's own rescue is the fallback for dead workers: here it must not come first.
      const it = yield* started(
        worker.pipe(
          Awa.maintenance({ deadlineRescueInterval: "1 hour" }),
          Awa.handle(Tick, (_, { attempt }) =>
            attempt > 1 ? Effect.void : Effect.onInterrupt(Effect.never, () =>
              Effect.sync(() => void interrupted++)))
        )
      )
      const { id } = yield* Tick.enqueue({})
      yield* happened(it, "it runs", () =>
        isClaimed(it))
      assert.deepStrictEqual((yield* Jobs.get(id)).deadlineAt, new Date(120_000))
      yield* step(it, 119)
      assert.strictEqual(interrupted, 0)
      assert.strictEqual((yield* Jobs.get(id)).state, "running")
      yield* step(it)
      yield* flushed(it, 1)
      assert.strictEqual(interrupted, 1)
      yield* stepUntil(it, () => promoted(it) === 1)
      yield* flushed(it, 2)
      const { attempt, errors, state } = yield* Jobs.get(id)
      assert.deepStrictEqual({ attempt, state }, { attempt: 2, state: "completed" })
      assert.match(errors[0]!.error, /deadline exceeded/)
      assertSoonAfter(errors[0]!.at, 120)
    }).pipe(Effect.scoped, Effect.provide(TestLive)))

  const rescues = [
    { what: "gives no sign of life", deadline: null, due: 60, error: /heartbeat stale/ },
    { what: "is past its deadline", deadline: Duration.seconds(30), due: 30, error: /deadline exceeded/ }
  ] as const

  for (const { deadline, due, error, what } of rescues) {
    it.scoped(`an attempt of a dead worker that ${what} is taken back and run again`, () =>
      Effect.gen(function*() {
        const engine = yield* StorageEngine.StorageEngine
        const { id } = yield* Tick.enqueue({})
        const dead = { owner: "00000000-0000-4000-8000-000000000bad", nonce: "1" }
        const [claimed] = yield* engine.claim({ ...dead, queue: "default", limit: 1, deadline, durability: "async" })
        assert.strictEqual(claimed?.job.id, id)
        const it = yield* started(worker.pipe(Awa.handle(Tick, () => Effect.void)))
        yield* step(it, due - 1)
        assert.strictEqual((yield* Jobs.get(id)).state, "running")
        yield* stepUntil(it, () => rescued(it).length === 1)
        yield* stepUntil(it, () => promoted(it) === 1)
        yield* flushed(it, 1)
        const { attempt, errors, state } = yield* Jobs.get(id)
        assert.deepStrictEqual({ attempt, state }, { attempt: 2, state: "completed" })
        assert.match(errors[0]!.error, error)
        assertSoonAfter(errors[0]!.at, due)
        const late = [{ token: claimed!.token, outcome: { _tag: "completed" as const } }]
        assert.deepStrictEqual(yield* engine.complete(dead.owner, late), ["refused"])
      }).pipe(Effect.scoped, Effect.provide(TestLive)))
  }

  it.scoped("a long job of a live worker is left alone", () =>
    Effect.gen(function*() {
      const gate = yield* Effect.makeLatch(false)
      const endless = worker.pipe(Awa.queue("long", { deadline: null, pollInterval: "5 seconds" }))
      const it = yield* started(endless.pipe(Awa.handle(Tick, () => gate.await)))
      const { id } = yield* Tick.enqueue({}, { queue: "long" })
      yield* happened(it, "it runs", () => isClaimed(it))
      const beats = () => it.signals.all("beat").filter(({ count }) => count === 1).length
      // A quarter longer than silence is borne.
      for (let i = 0; i < 15; i++) {
        const beaten = beats()
        yield* step(it)
        // An attempt younger than the interval needs no sign of life.
        if (i > 1) yield* it.signals.until("it has said that it lives", () => beats() > beaten)
      }
      const { attempt, heartbeatAt, state } = yield* Jobs.get(id)
      assert.deepStrictEqual({ attempt, state }, { attempt: 1, state: "running" })
      assert.isAtLeast(heartbeatAt!.getTime(), 65_000)
      assert.deepStrictEqual(rescued(it), [])
      yield* gate.open
      yield* flushed(it, 1)
      assert.deepInclude(yield* Jobs.get(id), { state: "completed", attempt: 1, errors: [] })
    }).pipe(Effect.scoped, Effect.provide(TestLive)))

  it.scoped("a snoozed job sleeps for as long as it wanted, its attempt not counted", () =>
    Effect.gen(function*() {
      const began: Array<number> = []
      const it = yield* started(worker.pipe(Awa.handle(Tick, () =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          began.push(now / 1_000)
          return began.length <= 2 ? JobResult.snooze("1 minute") : Effect.void
        }))))
      const { id } = yield* Tick.enqueue({}, { maxAttempts: 1 })
      for (const nap of [1, 2]) {
        yield* flushed(it, nap)
        const job = yield* Jobs.get(id)
        assert.deepInclude(job, { state: "scheduled", attempt: 0, errors: [] })
        assert.strictEqual(job.runAt.getTime(), Math.round((began[nap - 1]! + 60) * 1_000))
        yield* step(it, 55)
        assert.strictEqual(promoted(it), nap - 1)
        yield* stepUntil(it, () => promoted(it) === nap)
      }
      yield* flushed(it, 3)
      assertSoonAfter(began[1]! * 1_000, 60)
      assertSoonAfter(began[2]! * 1_000, began[1]! + 60)
      assert.deepInclude(yield* Jobs.get(id), { state: "completed", attempt: 1 })
    }).pipe(Effect.scoped, Effect.provide(TestLive)))

  it.scoped("a job that asks for it is tried again after the time it named", () =>
    Effect.gen(function*() {
      const it = yield* started(worker.pipe(Awa.handle(Tick, (_, { attempt }) =>
        attempt === 1 ? JobResult.retryAfter("90 seconds") : Effect.void)))
      const { id } = yield* Tick.enqueue({})
      yield* flushed(it, 1)
      const waiting = yield* Jobs.get(id)
      assert.deepInclude(waiting, { state: "retryable", attempt: 1 })
      assert.strictEqual(waiting.runAt.getTime(), 90_000)
      yield* stepUntil(it, () =>
        promoted(it) === 1)
      yield* flushed(it, 2)
      const job = yield* Jobs.get(id)
      assert.deepInclude(job, { state: "completed", attempt: 2 })
      assertSoonAfter(job.attemptedAt, 90)
    }).pipe(Effect.scoped, Effect.provide(TestLive)))

  it.scoped("dead letters are kept as long as the worker, or the operator, said", () =>
    Effect.gen(function*() {
      const it = yield* started(worker.pipe(
        Awa.queue("brief", { pollInterval: "5 seconds" }),
        Awa.dlq({ enabled: true, retention: "2 minutes", cleanupInterval: "5 seconds" }),
        Awa.handle(Tick, () => Effect.fail(JobError.terminal("no")))
      ))
      yield* Queues.setDlq("brief", { retention: "30 seconds" })
      yield* Tick.enqueue({})
      yield* Tick.enqueue({}, { queue: "brief" })
      yield* stepUntil(it, () => it.signals.flushed().length === 2)
      const purged = () => it.signals.all("purged").reduce((sum, { count }) => sum + count, 0)
      assert.deepStrictEqual([yield* Dlq.depth(), purged()], [2, 0])
      const gone = (count: number) =>
        Effect.gen(function*() {
          for (let i = 0; i < 30 && purged() < count; i++) {
            const looks = it.signals.all("purged").length
            yield* step(it)
            yield* it.signals.until("dead letters were looked at", () => it.signals.all("purged").length > looks)
          }
          return (yield* Clock.currentTimeMillis) / 1_000
        })
      const brief = yield* gone(1)
      assert.isTrue(brief > 30 && brief <= 30 + 6 * seconds, `gone after ${brief} seconds`)
      assert.deepStrictEqual([...(yield* Dlq.depthByQueue)], [{ queue: "default", count: 1 }])
      const other = yield* gone(2)
      assert.isTrue(other > 120 && other <= 120 + 6 * seconds, `gone after ${other} seconds`)
      assert.strictEqual(yield* Dlq.depth(), 0)
    }).pipe(Effect.scoped, Effect.provide(TestLive)))
})
