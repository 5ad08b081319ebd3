import * as Database from "@awa/model/Database"
import type { JobId } from "@awa/model/JobRow"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import * as Jobs from "../../Jobs.js"
import { check, checkAlone, type CheckError, type Harness, idsOf, outcomes } from "./harness.js"
import { setShards } from "./order.js"

const sorted = (ids: ReadonlyArray<JobId>) => [...ids].sort((a, b) => (a < b ? -1 : 1))

/** Some claimers, each until a claim that began when `done` was true comes back empty. Answers all they got. */
const drain = (t: Harness, claimers: number, limit: number, done: () => boolean) =>
  Effect.gen(function*() {
    const seen = new Set<JobId>()
    const claimer = Effect.gen(function*() {
      const owner = randomUUID()
      for (;;) {
        const last = done()
        const ids = idsOf(yield* t.claim(limit, { owner }))
        for (const id of ids) assert.ok(!seen.has(id), `job ${id} was handed out twice`)
        for (const id of ids) seen.add(id)
        if (ids.length === 0 && last) return
      }
    })
    yield* Effect.all(Array.from({ length: claimers }, () => claimer), { concurrency: "unbounded" })
    return sorted([...seen])
  })

/** One after the other, as in one process, but each producer beside the others. */
const produce = (t: Harness, producer: number) =>
  Effect.forEach([1, 2, 3, 4, 5, 6, 7, 8], (n): Effect.Effect<ReadonlyArray<JobId>, CheckError, never> => {
    const priority = n % 2 === 0 ? 1 : 2
    const few = t.enqueueMany(1 + (n + producer) % 5, { priority })
    return n % 4 === 3
      ? Effect.flatMap(t.enqueueLate(3, { priority }), (late) => Effect.zipRight(few, Effect.as(late.rollback, [])))
      : Effect.flatMap(
        t.enqueueLate(2, { priority }),
        (late) => Effect.flatMap(few, (ids) => Effect.as(late.commit, [...late.ids, ...ids]))
      )
  })

/** @internal */
export const concurrently = [
  check("concurrent claimers get every job exactly once", (t) =>
    Effect.gen(function*() {
      const ids = [...(yield* t.enqueueMany(200)), ...(yield* t.enqueueMany(100, { priority: 1 }))]
      const claimed = yield* drain(t, 6, 7, () => true)
      assert.deepEqual(claimed, sorted(ids))
    })),

  check("concurrent claimers of several shards get every job exactly once", (t) =>
    Effect.gen(function*() {
      yield* setShards(t, 3)
      const ids = [...(yield* t.enqueueMany(60)), ...(yield* t.enqueueMany(20, { orderingKey: "a" }))]
      assert.deepEqual(yield* drain(t, 6, 2, () => true), sorted(ids), "few at a time")
      const more = [...(yield* t.enqueueMany(200)), ...(yield* t.enqueueMany(100, { priority: 1 }))]
      assert.deepEqual(yield* drain(t, 6, 7, () => true), sorted(more))
    })),

  check("claimers beside producers get every committed job exactly once", (t) =>
    Effect.gen(function*() {
      const producing = yield* Effect.fork(
        Effect.forEach([1, 2, 3], (producer) => produce(t, producer), { concurrency: "unbounded" })
      )
      const claimed = yield* drain(t, 3, 4, () => producing.unsafePoll() !== null)
      const committed = (yield* Fiber.join(producing)).flat(2)
      assert.deepEqual(claimed, (yield* Jobs.list({ queue: t.queue })).map(({ id }) => id))
      for (const id of committed) assert.ok(claimed.includes(id), `job ${id} was lost`)
    })),

  check("of two answers for one attempt given at the same time one is accepted", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(10)
      const claimed = yield* t.claim()
      const answers = yield* Effect.all(
        [outcomes.completed, outcomes.fail].map((outcome) =>
          Effect.forEach(claimed, (job) => t.end(job, outcome), { concurrency: 3 })
        ),
        { concurrency: "unbounded" }
      )
      for (const [i, id] of ids.entries()) {
        const [completed, failed] = answers.map((verdicts) => verdicts[i])
        const { state } = yield* t.job(id)
        assert.deepEqual(
          [completed, failed, state],
          completed === "accepted" ? ["accepted", "refused", "completed"] : ["refused", "accepted", "failed"]
        )
      }
    })),

  checkAlone("an attempt is either ended by its owner or rescued", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(20)
      const claimed = yield* t.claim()
      yield* TestClock.adjust("2 minutes")
      const [verdicts, rescued] = yield* Effect.all([
        Effect.forEach(claimed, (job) => t.end(job, outcomes.completed), { concurrency: 2 }),
        Effect.replicateEffect(t.engine.rescueStale({ staleness: Duration.minutes(1), limit: 3 }), 5)
      ], { concurrency: "unbounded" })
      const taken = new Set(rescued.flat().map(({ jobId }) => jobId))
      for (const [i, id] of ids.entries()) {
        const { state } = yield* t.job(id)
        assert.deepEqual(
          [verdicts[i], state],
          taken.has(id) ? ["refused", "retryable"] : ["accepted", "completed"],
          `job ${id}`
        )
      }
    })),

  check("readers see every job in exactly one state while workers run", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(60, { maxAttempts: 3 })
      const acts = [
        outcomes.completed,
        outcomes.retryNow,
        outcomes.return,
        outcomes.completed,
        outcomes.cancel,
        outcomes.retry,
        outcomes.snooze
      ]
      const worker = Effect.gen(function*() {
        for (const turn of Array.from({ length: 12 }, (_, n) => n)) {
          const claimed = yield* t.claim(5)
          yield* t.engine.complete(
            t.owner,
            claimed.map(({ token }, i) => ({ token, outcome: acts[(turn + i) % acts.length]! }))
          )
        }
      })
      const workers = yield* Effect.fork(Effect.all([worker, worker, worker], { concurrency: "unbounded" }))
      while (workers.unsafePoll() === null) {
        const seen = yield* Jobs.list({ queue: t.queue })
        assert.deepEqual(seen.map((job) => job.id), ids)
      }
      yield* Fiber.join(workers)
    })),

  check("a caller's transaction is left alone", (t) =>
    Effect.gen(function*() {
      const [id] = yield* t.enqueueMany(1)
      const claimed = yield* Database.transaction(Effect.gen(function*() {
        yield* t.enqueue()
        const claimed = yield* t.claimOne
        yield* t.accept(claimed, outcomes.completed)
        return yield* Effect.fail(claimed)
      })).pipe(Effect.flip)
      assert.ok("job" in claimed, "the transaction should have failed with the job")
      assert.equal(claimed.job.id, id)
      assert.deepEqual((yield* Jobs.list({ queue: t.queue })).map((job) => [job.id, job.state]), [[id, "completed"]])
    }))
]
