/** What an operator says to running workers. */
import { Jobs, TestDatabase } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Awa, Dlq, JobError, Queues } from "awa"
import { Duration, Effect, Option } from "effect"
import { Greet, start } from "./support/worker.js"

/** Nothing but a notification makes it look for jobs in time. */
const lazy = Awa.builder.pipe(Awa.queue("default", { pollInterval: "1 hour", deadline: "1 hour" }))

const done = Awa.handle(Greet, () => Effect.void)

/** It may sleep before it listens, but not with a mark: then claims are still to come. */
const sleeps = ({ signals }: Effect.Effect.Success<ReturnType<typeof start>>, times = 1) =>
  signals.until(`it sleeps, ${times} times`, () => signals.all("asleep").filter(({ marked }) => marked).length >= times)

const Live = () => TestDatabase.layer()

describe("a worker", () => {
  it.scopedLive("takes nothing of a paused queue, and is woken when it is resumed", () =>
    Effect.gen(function*() {
      const worker = yield* start(lazy.pipe(done))
      const { signals } = worker
      yield* sleeps(worker)
      yield* Queues.pause("default", { by: "ada" })
      const { id } = yield* Greet.enqueue({ name: "Grace" })
      // Woken by the job, it claims in vain and goes back to sleep.
      yield* sleeps(worker, 2)
      assert.strictEqual((yield* Jobs.get(id)).state, "available")
      yield* Queues.resume("default")
      yield* signals.until("the job ran", () => signals.flushed().length === 1)
      assert.strictEqual((yield* Jobs.get(id)).state, "completed")
    }).pipe(Effect.scoped, Effect.provide(Live())))

  it.scopedLive("takes over what is overridden, and lets go of it", () =>
    Effect.gen(function*() {
      const worker = yield* start(
        lazy.pipe(
          Awa.overrideRefresh("50 millis"),
          Awa.shutdown({ timeout: "1 second" }),
          Awa.handle(Greet, (_, { job }) => job.attempt === 1 ? Effect.never : Effect.void)
        )
      )
      const { signals } = worker
      // A claim that is under way goes by what held when it began.
      yield* sleeps(worker)
      yield* Queues.setOverrides("default", { deadline: "300 millis" })
      yield* signals.until("it is overridden", () => signals.all("overridden").length === 1)
      const { id } = yield* Greet.enqueue({ name: "Grace" })
      yield* signals.until("the attempt was stopped", () => signals.flushed().length === 1)
      const job = yield* Jobs.get(id)
      assert.match(job.errors[0]!.error, /deadline exceeded/)
      yield* sleeps(worker, 2)
      yield* Queues.clearOverrides("default")
      yield* signals.until("it is not any more", () => signals.all("overridden").length === 2)
      const other = yield* Greet.enqueue({ name: "Ada" })
      yield* signals.until("it is claimed", () => signals.all("claimed").filter(({ count }) => count > 0).length >= 2)
      const { attemptedAt, deadlineAt } = yield* Jobs.get(other.id)
      assert.strictEqual(deadlineAt!.getTime() - attemptedAt!.getTime(), Duration.toMillis("1 hour"))
    }).pipe(Effect.scoped, Effect.provide(Live())))

  it.scopedLive("makes dead letters of what fails, where it is told to", () =>
    Effect.gen(function*() {
      const { signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("default"),
          Awa.queue("spared", { dlq: false }),
          Awa.queue("forced", { dlq: false }),
          Awa.dlq({ enabled: true }),
          Awa.handle(Greet, ({ name }): Effect.Effect<void, JobError.JobError | string> =>
            name === "terminal" ? Effect.fail(JobError.terminal("no")) : Effect.fail("again"))
        )
      )
      yield* Queues.setDlq("forced", { enabled: true })
      const terminal = yield* Greet.enqueue({ name: "terminal" })
      const exhausted = yield* Greet.enqueue({ name: "x" }, { maxAttempts: 1 })
      const spared = yield* Greet.enqueue({ name: "terminal" }, { queue: "spared" })
      const forced = yield* Greet.enqueue({ name: "terminal" }, { queue: "forced" })
      const again = yield* Greet.enqueue({ name: "x" }, { maxAttempts: 2 })
      yield* signals.until("all have failed once", () =>
        signals.flushed().length === 5)
      const reasons = yield* Effect.forEach([terminal, exhausted, spared, forced, again], ({ id }) =>
        Effect.map(
          Dlq.get(id),
          Option.match({
            onNone: () =>
              null,
            onSome: ({ reason }) => reason
          })
        ))
      assert.deepStrictEqual(reasons, ["terminal_error", "max_attempts_exhausted", null, "terminal_error", null])
      assert.strictEqual((yield* Jobs.get(spared.id)).state, "failed")
      assert.strictEqual((yield* Jobs.get(again.id)).state, "retryable")
    }).pipe(Effect.scoped, Effect.provide(Live())))

  it.scopedLive("runs a dead letter that is revived, at once", () =>
    Effect.gen(function*() {
      const { retry: revive } = Dlq
      const worker = yield* start(
        lazy.pipe(
          Awa.dlq({ enabled: true }),
          Awa.handle(
            Greet,
            (_, { job }) => job.runLease === 1n ? Effect.fail(JobError.terminal("not yet")) : Effect.void
          )
        )
      )
      const { signals } = worker
      const { id } = yield* Greet.enqueue({ name: "Grace" })
      yield* signals.until("it has failed", () => signals.flushed().length === 1)
      yield* sleeps(worker)
      yield* revive(id)
      yield* signals.until("it has run", () => signals.flushed().length === 2)
      assert.deepInclude(yield* Jobs.get(id), { state: "completed", attempt: 1, runLease: 2n })
    }).pipe(Effect.scoped, Effect.provide(Live())))
})
