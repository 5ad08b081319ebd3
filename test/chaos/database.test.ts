/**
 * A database that fails under a worker that runs. `AWA_CHAOS_ROUNDS=20 npx vitest run test/chaos` is the long form.
 */
import { EmbeddedPostgres } from "@awa/embedded"
import { Jobs, TestDatabase, Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Awa, Database } from "awa"
import { Effect, Fiber } from "effect"
import { start } from "../worker/support/worker.js"
import * as Load from "./support/load.js"
import { rounds, seeded } from "./support/random.js"
import * as Server from "./support/server.js"
import * as Work from "./support/work.js"

/** Lets a worker work while something happens to the database again and again, and looks whether all is well. */
const endures = <E, R>(
  seed: number,
  options: { readonly times: number; readonly slots?: number },
  blow: (worker: Load.Started) => Effect.Effect<unknown, E, R>
) =>
  Effect.gen(function*() {
    const between = seeded(seed)
    const { runs, worker } = Load.makeRuns(options.slots)
    yield* Work.createLedger
    yield* Work.hurry
    const started = yield* start(worker)
    const { awa, signals } = started
    const acknowledged: Array<bigint> = []
    const producer = yield* Effect.fork(Load.produce(acknowledged, () => acknowledged.length - Load.endedBy(started)))
    for (let i = 0; i < options.times; i++) {
      const goal = Load.endedBy(started) + between(50, 400)
      yield* signals.until(`${goal} attempts ended`, () => Load.endedBy(started) >= goal)
      yield* blow(started)
    }
    const goal = Load.endedBy(started) + 50
    yield* signals.until("it works again", () => Load.endedBy(started) >= goal)
    yield* Fiber.interrupt(producer)
    yield* Work.allEnded

    const jobs = yield* Jobs.list()
    const ids = new Set<bigint>(jobs.map(({ id }) => id))
    assert.deepStrictEqual(acknowledged.filter((id) => !ids.has(id)), [], "jobs were lost")
    assert.strictEqual(ids.size, jobs.length)
    assert.isTrue(jobs.every(({ state }) => state === "completed"))
    assert.strictEqual(new Set(runs.map(({ fence }) => fence)).size, runs.length, "an attempt ran twice")
    yield* signals.until(
      "all is acknowledged",
      () =>
        signals.flushed().filter(({ outcome, verdict }) => outcome === "completed" && verdict !== "refused").length >=
          jobs.length
    )
    Load.assertStoredOnce(signals.flushed(), runs, jobs.length)
    yield* Wait.eventually(
      Effect.map(
        awa.healthCheck,
        (health) => assert.deepInclude(health, { healthy: true, leader: true, listening: true })
      )
    )
  })

describe("a worker under load", () => {
  for (const seed of rounds) {
    it.scopedLive(`survives crashes of the server, and loses nothing (seed ${seed})`, () =>
      Effect.gen(function*() {
        const { restart } = yield* EmbeddedPostgres.EmbeddedPostgres
        yield* endures(seed, { times: 2 }, () => restart("immediate"))
      }).pipe(Effect.scoped, Effect.provide(Server.layer)))

    it.scopedLive(`survives the end of every session, and loses nothing (seed ${seed})`, () =>
      Effect.gen(function*() {
        const { name } = yield* TestDatabase.TestDatabase
        const sql = yield* SqlClient.SqlClient
        yield* endures(seed, { times: 3 }, () =>
          Effect.ignore(sql`select pg_terminate_backend(pid) from pg_stat_activity
            where datname = ${name} and pid <> pg_backend_pid()`))
      }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

    it.scopedLive(`does so with one slot, whose claims take the ends of attempts along (seed ${seed})`, () =>
      Effect.gen(function*() {
        const { name } = yield* TestDatabase.TestDatabase
        const sql = yield* SqlClient.SqlClient
        yield* endures(
          seed,
          { times: 5, slots: 1 },
          () =>
            Effect.ignore(sql`select pg_terminate_backend(pid) from pg_stat_activity
            where datname = ${name} and pid <> pg_backend_pid()`)
        )
      }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))
  }
})

describe("handlers that use the database", () => {
  it.scopedLive("share one connection without a deadlock", () =>
    Effect.gen(function*() {
      yield* Work.createLedger
      const { signals } = yield* start(Awa.builder.pipe(
        Awa.queue("default", { maxWorkers: 20 }),
        Awa.handle(Work.Work, ({ n }, { attempt, fence, job }) =>
          Work.record({ jobId: job.id, attempt, fence }).pipe(
            Effect.zipRight(n > 0 ? Work.Work.enqueue({ n: n - 1 }) : Effect.void),
            Database.transaction,
            Effect.asVoid
          ))
      ))
      yield* Work.Work.enqueueMany(Array.from({ length: 50 }, () => ({ n: 3 })))
      yield* signals.until("all ended", () => signals.flushed().length === 200)
      Work.assertAccounted(yield* Jobs.list(), yield* Work.readLedger)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer({ maxConnections: 1 }))))
})

describe("two workers on one queue", () => {
  it.scopedLive("run each job once", () =>
    Effect.gen(function*() {
      const runs: Array<bigint> = []
      const worker = Awa.builder.pipe(
        Awa.queue("default", { maxWorkers: 7, claimBatchSize: 5 }),
        Awa.handle(Work.Work, (_, { job }) => Effect.sync(() => void runs.push(job.id)))
      )
      const one = yield* start(worker)
      const two = yield* start(worker)
      const batches = Array.from({ length: 20 }, () => Array.from({ length: 50 }, (_, n) => ({ n })))
      yield* Effect.forEach(batches, (batch) => Work.Work.enqueueMany(batch), { concurrency: 5 })
      yield* Work.allEnded
      assert.strictEqual(runs.length, 1_000)
      assert.strictEqual(new Set(runs).size, 1_000)
      assert.isTrue([one, two].every((worker) => Load.endedBy(worker) > 0))
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))
})

describe("a worker that is replaced under load", () => {
  it.scopedLive("leaves no job running, and none runs twice", () =>
    Effect.gen(function*() {
      const { runs, worker } = Load.makeRuns()
      yield* Work.createLedger
      const ids = yield* Work.Work.enqueueMany(Array.from({ length: 2_000 }, (_, n) => ({ n })))
      let stored = 0
      for (const goal of [1, 20, 300, 700]) {
        const started = yield* start(worker)
        yield* started.signals.until(`${goal} attempts ended`, () => Load.endedBy(started) >= goal)
        yield* started.awa.shutdown()
        assert.strictEqual((yield* Jobs.countByState()).running, 0)
        stored += started.signals.flushed().filter(({ outcome }) => outcome === "completed").length
        assert.strictEqual((yield* Jobs.countByState()).completed, stored)
      }
      yield* start(worker)
      yield* Work.allEnded
      assert.strictEqual(runs.length, ids.length)
      const jobs = yield* Jobs.list()
      assert.deepStrictEqual(jobs.map(({ attempt, id }) => [id, attempt]), ids.map((id) => [id, 1]))
      Work.assertAccounted(jobs, runs)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))
})
