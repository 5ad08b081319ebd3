import { Jobs, TestDatabase, Wait } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Awa, Database, JobAdmin } from "awa"
import { Deferred, Effect, Fiber, Queue } from "effect"
import { Greet, start } from "./support/worker.js"

/** A worker whose jobs run until they are interrupted, and say so. */
const endless = Effect.gen(function*() {
  const started = yield* Queue.unbounded<bigint>()
  const interrupted = yield* Deferred.make<void>()
  const builder = Awa.builder.pipe(
    Awa.queue("default", { deadline: null }),
    // Nobody hears of anything by a heartbeat.
    Awa.heartbeat({ interval: "1 hour", staleness: "10 hours" }),
    Awa.handle(Greet, (_, { job }) =>
      Effect.zipRight(Queue.offer(started, job.id), Effect.never).pipe(
        Effect.onInterrupt(() => Deferred.succeed(interrupted, undefined))
      ))
  )
  return { builder, started, interrupted }
})

const isCancelled = (id: Parameters<typeof JobAdmin.cancel>[0]) =>
  Wait.eventually(Effect.map(Jobs.get(id), ({ state }) => assert.strictEqual(state, "cancelled")))

describe("a job that is cancelled while it runs", () => {
  it.scopedLive("is interrupted at once", () =>
    Effect.gen(function*() {
      const { builder, interrupted, started } = yield* endless
      const { awa, signals } = yield* start(builder)
      yield* signals.until("it listens", () => signals.all("listening").some(({ up }) => up))
      const { id } = yield* Greet.enqueue({ name: "Ada" })
      yield* Queue.take(started)
      yield* JobAdmin.cancel(id, { reason: "not wanted" })
      yield* Deferred.await(interrupted)
      yield* isCancelled(id)
      // Its place is free again.
      const { id: next } = yield* Greet.enqueue({ name: "Grace" })
      assert.strictEqual(yield* Queue.take(started), next)
      yield* Wait.eventually(Effect.map(
        awa.healthCheck,
        ({ queues }) => assert.strictEqual(queues["default"]?.inFlight, 1)
      ))
      yield* JobAdmin.cancel(next)
      assert.deepStrictEqual(signals.flushed(), [])
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.scopedLive("is interrupted, too, when the request came with a transaction", () =>
    Effect.gen(function*() {
      const { builder, interrupted, started } = yield* endless
      const { signals } = yield* start(builder)
      yield* signals.until("it listens", () => signals.all("listening").some(({ up }) => up))
      yield* signals.until("it leads", () => signals.all("leader").some(({ leading }) => leading))
      const { id } = yield* Greet.enqueue({ name: "Ada" })
      yield* Queue.take(started)
      const gate = yield* Deferred.make<void>()
      const caller = yield* Effect.fork(
        Database.transaction(Effect.zipRight(JobAdmin.requestCancel(id), Deferred.await(gate)))
      )
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(caller)
      yield* Deferred.await(interrupted)
      yield* isCancelled(id)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))
})
