/**
 * Worker processes that end without a word. `AWA_CHAOS_ROUNDS=20 AWA_CHAOS_SEED=1 npx vitest run test/chaos` is the long
 * form: every round has other moments of death.
 */
import { Jobs, TestDatabase, Wait } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Database } from "awa"
import { Effect, Fiber, Schedule } from "effect"
import { start } from "../worker/support/worker.js"
import * as Process from "./support/process.js"
import { rounds, seeded } from "./support/random.js"
import * as Work from "./support/work.js"

const points: ReadonlyArray<Process.Point> = ["claimed", "before the effect", "after the effect", "stored"]

/** Keeps a backlog until it is interrupted: batches, single jobs, and transactions that roll back. */
const produce = (ids: Array<bigint>) => {
  const addMore = Effect.gen(function*() {
    ids.push(...(yield* Work.Work.enqueueMany(Array.from({ length: 30 }, (_, n) => ({ n })))))
    ids.push((yield* Database.transaction(Work.Work.enqueue({ n: -1 }))).id)
    yield* Effect.ignore(Database.transaction(Effect.zipRight(Work.Work.enqueue({ n: -2 }), Effect.fail("regret"))))
  })
  return Jobs.countByState().pipe(
    Effect.flatMap(({ available }) => Effect.when(addMore, () => available < 100)),
    Effect.uninterruptible,
    Effect.repeat(Schedule.spaced("20 millis"))
  )
}

describe("kill -9 of worker processes", () => {
  for (const seed of rounds) {
    it.scopedLive(`loses no job, wherever it hits (seed ${seed})`, () =>
      Effect.gen(function*() {
        const between = seeded(seed)
        const { url } = yield* TestDatabase.TestDatabase
        yield* Work.createLedger
        yield* Work.hurry
        const ids: Array<bigint> = []
        const producer = yield* Effect.fork(produce(ids))

        const dies = (point: Process.Point) =>
          Process.start({
            url,
            death: { point, after: between(1, point === "claimed" || point === "stored" ? 4 : 40) }
          })
        /** Dies between any two instructions: when the others have done so much more. */
        const isKilled = Effect.gen(function*() {
          const victim = yield* Process.start({ url })
          const goal = (yield* Work.countLedger) + between(5, 60)
          yield* Wait.eventually(Effect.map(Work.countLedger, (count) => assert.isAtLeast(count, goal)))
          yield* victim.signal("SIGKILL")
          return victim
        })
        const victims = [...points.map(dies), isKilled]
        const ends = yield* Effect.forEach(victims, Effect.flatMap(({ ended }) => ended), { concurrency: 2 })
        assert.deepStrictEqual(ends, victims.map(() => "SIGKILL"))

        yield* Fiber.interrupt(producer)
        yield* start(Work.worker(() => {}))
        yield* Work.allEnded
        const jobs = yield* Jobs.list()
        assert.deepStrictEqual(jobs.map(({ id }) => id as bigint), ids.toSorted((a, b) => Number(a - b)))
        Work.assertAccounted(jobs, yield* Work.readLedger)
        assert.isTrue(jobs.some(({ attempt }) => attempt > 1), "nothing was running when a worker died")
        const errors = jobs.flatMap((job) => job.errors.map(({ error }) => error))
        assert.deepStrictEqual([...new Set(errors)], ["heartbeat stale: the worker stopped answering"])
      }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))
  }
})

describe("SIGTERM", () => {
  it.scopedLive("lets jobs finish, gives back the others with the attempt unspent, in time; twice is no worse", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const finishing = yield* Work.Hold.enqueueMany([{ release: true }, { release: true }])
      const endless = yield* Work.Hold.enqueueMany([{ release: false }, { release: false }])
      const worker = yield* Process.start({ url, shutdown: "3 seconds" })
      yield* Wait.eventually(Effect.sync(() => assert.strictEqual(worker.holding(), 4)))
      const begin = performance.now()
      yield* worker.signal("SIGTERM")
      yield* worker.signal("SIGTERM")
      yield* worker.release
      assert.strictEqual(yield* worker.ended, "0")
      const took = performance.now() - begin
      assert.isAtLeast(took, 2_000)
      assert.isBelow(took, 15_000)

      const stateOf = (id: (typeof finishing)[number]) =>
        Effect.map(Jobs.get(id), ({ attempt, errors, state }) => ({ attempt, errors, state }))
      assert.deepStrictEqual(
        yield* Effect.forEach(finishing, stateOf),
        finishing.map(() => ({ attempt: 1, errors: [], state: "completed" as const }))
      )
      assert.deepStrictEqual(
        yield* Effect.forEach(endless, stateOf),
        endless.map(() => ({ attempt: 0, errors: [], state: "available" as const }))
      )
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))
})
