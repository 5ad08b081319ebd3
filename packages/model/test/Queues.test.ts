import { Database, Job, Queues, QueueStorage, TimeSource } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Duration, Effect, Exit, Fiber, Schema } from "effect"
import { MigratedLive } from "./support/database.js"

const Work = Job.make("work", { payload: Schema.Unknown })

const owner = "00000000-0000-4000-8000-000000000001"

const claim = (queue: string, limit = 100) =>
  Effect.flatMap(
    QueueStorage.make,
    (engine) => engine.claim({ queue, limit, owner, nonce: "1", deadline: null, durability: "async" })
  )

const claimed = (queue: string, limit?: number) => Effect.map(claim(queue, limit), (jobs) => jobs.length)

const end = (
  jobs: Effect.Effect.Success<ReturnType<typeof claim>>,
  outcome: "completed" | "retry" | "fail" | "cancel"
) =>
  Effect.flatMap(QueueStorage.make, (engine) =>
    engine.complete(
      owner,
      jobs.map(({ token }) => ({
        token,
        outcome: {
          completed: { _tag: "completed" as const },
          retry: { _tag: "retry" as const, delay: Duration.hours(1), error: "later" },
          fail: { _tag: "fail" as const, error: "never" },
          cancel: { _tag: "cancel" as const, reason: "no" }
        }[outcome]
      }))
    ))

const states = (queue: string) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    Effect.map(
      sql.unsafe<{ state: string; n: number }>(
        "select state::text, count(*)::int as n from awa.jobs where queue = $1 group by state order by state",
        [queue]
      ),
      (rows) => Object.fromEntries(rows.map(({ n, state }) => [state, n]))
    ))

const Live = MigratedLive()

describe("a paused queue", () => {
  it.effect("gives nothing out until it is resumed", () =>
    Effect.gen(function*() {
      yield* Work.enqueueMany([1, 2], { queue: "a" })
      yield* Work.enqueueMany([1], { queue: "b" })
      yield* Queues.pause("a", { by: "ada" })
      assert.strictEqual(yield* claimed("a"), 0)
      assert.strictEqual(yield* claimed("b"), 1)
      const { pausedAt, pausedBy } = yield* Queues.settings("a")
      assert.strictEqual(pausedBy, "ada")
      assert.isDefined(pausedAt)
      yield* Work.enqueue(3, { queue: "a" })
      assert.deepStrictEqual(yield* states("a"), { available: 3 })
      assert.isTrue(yield* Queues.resume("a"))
      assert.isFalse(yield* Queues.resume("a"))
      const resumed = yield* Queues.settings("a")
      assert.deepStrictEqual([resumed.pausedAt, resumed.pausedBy], [undefined, undefined])
      assert.strictEqual(yield* claimed("a"), 3)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("is not what a probe reports", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      yield* Work.enqueue(1, { queue: "a" })
      yield* Work.enqueue(1, { queue: "b" })
      yield* Queues.pause("a")
      assert.deepStrictEqual(yield* engine.probe(["a", "b"]), ["b"])
      yield* Queues.resume("a")
      assert.deepStrictEqual(yield* engine.probe(["a", "b"]), ["a", "b"])
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("keeps its due jobs where they are, and nobody else's", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const engine = yield* QueueStorage.make
      for (const queue of ["a", "b", "c"]) {
        yield* Work.enqueueMany([1, 2, 3], { queue, delay: "1 hour" })
      }
      yield* sql`update awa.deferred_jobs set run_at = now() - interval '1 second' * job_id`
      yield* Queues.pause("a")
      yield* Queues.pause("c")
      assert.strictEqual(yield* engine.promote(2), 2)
      assert.strictEqual(yield* engine.promote(10), 1)
      assert.deepStrictEqual(yield* states("a"), { scheduled: 3 })
      assert.deepStrictEqual(yield* states("b"), { available: 3 })
      yield* Queues.resume("a")
      yield* Queues.resume("c")
      assert.strictEqual(yield* engine.promote(10), 6)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("that had no jobs before is paused for those that come", () =>
    Effect.gen(function*() {
      yield* Queues.pause("new")
      yield* Work.enqueue(1, { queue: "new" })
      assert.strictEqual(yield* claimed("new"), 0)
    }).pipe(Effect.provide(MigratedLive())))
})

describe("pause", () => {
  /** Holds the lock of a lane, like a claim that is under way. */
  const holdingLane = <A, E, R>(queue: string, body: Effect.Effect<A, E, R>) =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const held = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const holder = yield* sql`
        select pg_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(awa.lane_id(${queue}, 2, 0)))`.pipe(
        Effect.zipRight(Deferred.succeed(held, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(held)
      const result = yield* Effect.exit(body)
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(holder)
      return yield* result
    })

  it.effect("fails when a lane cannot be had, and has changed nothing", () =>
    Effect.gen(function*() {
      yield* Work.enqueue(1, { queue: "a" })
      const error = yield* holdingLane("a", Effect.flip(Queues.pause("a")))
      assert.deepInclude(error, { _tag: "QueueBusy", queue: "a", operation: "pause", done: false })
      assert.match(error.message, /Try again/)
      assert.strictEqual(yield* claimed("a"), 1)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("does not depend on the caller's transaction, nor on its isolation", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* Work.enqueue(1, { queue: "a" })
      const exit = yield* Effect.exit(
        Database.transaction(Effect.zipRight(Queues.pause("a"), Effect.fail("rolled back")), {
          isolation: "serializable"
        })
      )
      assert.isTrue(Exit.isFailure(exit))
      assert.strictEqual(yield* claimed("a"), 0)
      assert.deepStrictEqual(
        yield* sql`select count(*)::int as n from pg_locks
          where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`,
        [{ n: 0 }]
      )
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("resume is part of the caller's transaction", () =>
    Effect.gen(function*() {
      yield* Work.enqueue(1, { queue: "a" })
      yield* Queues.pause("a")
      yield* Effect.exit(Database.transaction(Effect.zipRight(Queues.resume("a"), Effect.fail("rolled back"))))
      assert.strictEqual(yield* claimed("a"), 0)
    }).pipe(Effect.provide(MigratedLive())))
})

describe("settings of a queue", () => {
  it.effect("are kept, replaced and cleared", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(
        { ...(yield* Queues.settings("q")) },
        { queue: "q", overrides: {}, retention: {}, dlq: {}, shards: 1 } as never
      )
      yield* Queues.setOverrides("q", { pollInterval: "2 seconds", claimBatchSize: 7, deadline: "1 hour" })
      yield* Queues.setRetention("q", { completed: "1 minute", failed: "90 days" })
      yield* Queues.setDlq("q", { enabled: false, retention: "1 hour" })
      const { dlq, overrides, retention } = yield* Queues.settings("q")
      assert.deepStrictEqual(overrides, {
        pollInterval: Duration.seconds(2),
        claimBatchSize: 7,
        deadline: Duration.hours(1)
      })
      assert.deepStrictEqual(retention, {
        completed: Duration.minutes(1),
        failed: Duration.days(90),
        cancelled: undefined
      })
      assert.deepStrictEqual(dlq, { enabled: false, retention: Duration.hours(1) })
      yield* Queues.setOverrides("q", { claimBatchSize: 8 })
      assert.deepStrictEqual(yield* Queues.overrides("q"), { claimBatchSize: 8 })
      yield* Queues.clearOverrides("q")
      assert.deepStrictEqual(yield* Queues.overrides("q"), {})
      yield* Queues.setDlq("q", {})
      yield* Queues.setRetention("q", {})
      yield* Queues.pause("p")
      const all = yield* Queues.list
      assert.deepStrictEqual(all.map(({ queue }) => queue), ["p", "q"])
      assert.deepStrictEqual(all[1]!.dlq, { enabled: undefined, retention: undefined })
      assert.strictEqual(all[1]!.shards, 1)
      yield* Queues.setShards("q", 4)
      assert.strictEqual((yield* Queues.settings("q")).shards, 4)
    }).pipe(Effect.provide(Live)))

  it.effect("that make no sense are refused before anything is sent", () =>
    Effect.gen(function*() {
      const refused = [
        [Queues.pause(""), "queue"],
        [Queues.pause("q", { by: "x".repeat(201) }), "by"],
        [Queues.pause("q", { bye: "x" } as never), "options.bye"],
        [Queues.resume("a\0"), "queue"],
        [Queues.drain("q", { chunkSize: NaN }), "chunkSize"],
        [Queues.depth(""), "queue"],
        [Queues.setOverrides("q", { claimBatchSize: 0 }), "overrides.claimBatchSize"],
        [Queues.setOverrides("q", { claimBatchSize: 10_001 }), "overrides.claimBatchSize"],
        [Queues.setOverrides("q", { claimBatchSize: 1.5 }), "overrides.claimBatchSize"],
        [Queues.setOverrides("q", { pollInterval: 0 }), "overrides.pollInterval"],
        [Queues.setOverrides("q", { pollInterval: "2 days" }), "overrides.pollInterval"],
        [Queues.setOverrides("q", { deadline: "infinity" as never }), "overrides.deadline"],
        [Queues.setOverrides("q", { deadline: Duration.infinity }), "overrides.deadline"],
        [Queues.setOverrides("q", { deadline: "soon" as never }), "overrides.deadline"],
        [Queues.setOverrides("q", { deadlin: 1 } as never), "overrides.deadlin"],
        [Queues.setRetention("q", { failed: -1 }), "retention.failed"],
        [Queues.setRetention("q", { completed: "40000 days" }), "retention.completed"],
        [Queues.setDlq("q", { enabled: "yes" as never }), "dlq.enabled"],
        [Queues.setDlq("q", { retention: NaN }), "dlq.retention"]
      ] as const
      for (const [operation, setting] of refused) {
        const error = yield* Effect.flip(operation as Effect.Effect<unknown, Queues.QueueError, SqlClient.SqlClient>)
        assert.deepInclude(error, { _tag: "InvalidSetting", setting }, setting)
      }
      assert.deepStrictEqual(
        (yield* Queues.list).filter(({ queue }) => queue === "refused"),
        []
      )
    }).pipe(Effect.provide(Live)))

  it.effect("that make no sense are refused by the database too", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      for (
        const call of [
          `set_queue_overrides('refused', '[]')`,
          `set_queue_overrides('refused', 'null')`,
          `set_queue_overrides('refused', '{"claim_batch_size": 0}')`,
          `set_queue_overrides('refused', '{"claim_batch_size": 1.5}')`,
          `set_queue_overrides('refused', '{"poll_interval_ms": "1"}')`,
          `set_queue_overrides('refused', '{"deadline_ms": 0}')`,
          `set_queue_overrides('refused', '{"rate_limit": 1}')`,
          `set_queue_retention('refused', 0, null, null)`,
          `set_queue_dlq('refused', true, -1)`,
          `pause_queue('', null, null)`
        ]
      ) {
        const error = yield* Effect.flip(sql.unsafe(`select awa.${call}`))
        assert.strictEqual(error._tag, "SqlError", call)
      }
      assert.notInclude((yield* Queues.list).map(({ queue }) => queue), "refused")
    }).pipe(Effect.provide(Live)))

  it.effect("join the caller's transaction", () =>
    Effect.gen(function*() {
      yield* Effect.exit(
        Database.transaction(Effect.zipRight(Queues.setDlq("gone", { enabled: true }), Effect.fail("rolled back")))
      )
      assert.notInclude((yield* Queues.list).map(({ queue }) => queue), "gone")
    }).pipe(Effect.provide(Live)))
})

describe("depth", () => {
  it.effect("counts what the view shows, state by state, and knows every queue", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const queue = "deep"
      yield* Work.enqueueMany(Array.from({ length: 12 }, (_, i) => i), { queue })
      yield* end(yield* claim(queue, 3), "completed")
      yield* end(yield* claim(queue, 1), "retry")
      yield* end(yield* claim(queue, 1), "fail")
      yield* end(yield* claim(queue, 1), "cancel")
      yield* claim(queue, 2)
      yield* Work.enqueueMany([1, 2], { queue, delay: "1 day" })
      yield* Work.enqueueMany([1], { queue, priority: 1 })
      yield* Work.enqueueMany([1], { queue: "later", delay: "1 day" })
      yield* Queues.setDlq("said", {})
      yield* sql`update awa.finished_jobs set queue = 'ended' where state = 'cancelled'`
      const all = yield* Queues.depth()
      assert.deepStrictEqual(all.map(({ queue }) => queue), ["deep", "ended", "later", "said"])
      const one = yield* Queues.depth(queue)
      assert.deepStrictEqual({ ...one.counts }, {
        scheduled: 2,
        available: 5,
        running: 2,
        completed: 3,
        retryable: 1,
        failed: 1,
        cancelled: 0,
        waiting_external: 0
      })
      assert.deepStrictEqual(all[0]!.counts, one.counts)
      const shown = yield* states(queue)
      for (const [state, n] of Object.entries(shown)) assert.strictEqual(one.counts[state as "failed"], n, state)
      assert.strictEqual(all[1]!.counts.cancelled, 1)
      assert.strictEqual(all[2]!.counts.scheduled, 1)
      assert.isUndefined(all[2]!.lag)
      const nobody = yield* Queues.depth("nobody")
      assert.isTrue(Object.values(nobody.counts).every((n) => n === 0))
      assert.isUndefined(nobody.lag)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("counts rows that a cursor passed over, once they are there", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const written = yield* Deferred.make<void>()
      const gate = yield* Deferred.make<void>()
      const late = yield* Work.enqueueMany([1, 2], { queue: "q" }).pipe(
        Effect.zipRight(Deferred.succeed(written, undefined)),
        Effect.zipRight(Deferred.await(gate)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(written)
      yield* Work.enqueueMany([3, 4], { queue: "q" })
      yield* claim("q", 1)
      assert.strictEqual((yield* Queues.depth("q")).counts.available, 1)
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(late)
      assert.strictEqual((yield* Queues.depth("q")).counts.available, 3)
      assert.strictEqual(yield* claimed("q", 1), 1)
      assert.strictEqual((yield* Queues.depth("q")).counts.available, 2)
      // What stands for a row that is given up.
      yield* sql`insert into awa.tombstones (slot, lane_id, pos, written_at)
        select slot, lane_id, pos, now() from awa.ready_entries order by pos desc limit 1`
      assert.strictEqual((yield* Queues.depth("q")).counts.available, 1)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("tells how long the oldest job waits", () =>
    Effect.gen(function*() {
      yield* Work.enqueue(1, { queue: "q" })
      // Since then it could have run, not since the epoch.
      yield* Work.enqueue(2, { queue: "q", runAt: new Date(0) }).pipe(
        Effect.provideService(TimeSource.TimeSource, Effect.succeed(new Date(Date.now() - 3_600_000)))
      )
      const { lag } = yield* Queues.depth("q")
      assert.isAtLeast(Duration.toMillis(lag!), 3_600_000)
      assert.isAtMost(Duration.toMillis(lag!), 3_660_000)
    }).pipe(Effect.provide(MigratedLive())))
})

describe("drain", () => {
  it.effect("cancels scheduled and retryable jobs, of one queue, in chunks", () =>
    Effect.gen(function*() {
      yield* Work.enqueueMany([1, 2, 3, 4, 5], { queue: "q", delay: "1 hour" })
      yield* Work.enqueueMany([1], { queue: "other", delay: "1 hour" })
      yield* Work.enqueueMany([6], { queue: "q" })
      yield* end(yield* claim("q"), "retry")
      yield* Work.enqueueMany([7], { queue: "q" })
      const running = yield* claim("q")
      assert.strictEqual(yield* Queues.drain("q", { chunkSize: 2 }), 6)
      assert.deepStrictEqual(yield* states("q"), { cancelled: 6, running: 1 })
      assert.deepStrictEqual(yield* states("other"), { scheduled: 1 })
      assert.deepStrictEqual(yield* end(running, "completed"), ["accepted"])
      assert.strictEqual(yield* Queues.drain("q"), 0)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("cancels what waits in the log, whatever its priority, and none of it is ever given out", () =>
    Effect.gen(function*() {
      yield* Queues.pause("q")
      for (const priority of [1, 2, 4] as const) yield* Work.enqueueMany([1, 2, 3], { queue: "q", priority })
      yield* Work.enqueueMany([1], { queue: "other" })
      yield* Work.enqueueMany([1, 2], { queue: "q", delay: "1 hour" })
      assert.strictEqual(yield* Queues.drain("q", { chunkSize: 4 }), 11)
      assert.deepStrictEqual(yield* states("q"), { cancelled: 11 })
      yield* Queues.resume("q")
      assert.strictEqual(yield* claimed("q"), 0)
      const [later] = yield* Work.enqueueMany([4], { queue: "q" })
      assert.deepStrictEqual((yield* claim("q")).map(({ job }) => job.id), [later])
      assert.deepStrictEqual(yield* states("other"), { available: 1 })
      const { counts } = yield* Queues.depth("q")
      assert.deepStrictEqual([counts.available, counts.cancelled, counts.running], [0, 11, 1])
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("leaves alone what runs, and what was still being enqueued", () =>
    Effect.gen(function*() {
      const written = yield* Deferred.make<void>()
      const gate = yield* Deferred.make<void>()
      const late = yield* Work.enqueueMany([1, 2], { queue: "q" }).pipe(
        Effect.tap(() => Deferred.succeed(written, undefined)),
        Effect.tap(() => Deferred.await(gate)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(written)
      yield* Work.enqueueMany([3, 4, 5], { queue: "q" })
      const running = yield* claim("q", 1)
      assert.strictEqual(yield* Queues.drain("q"), 2)
      assert.deepStrictEqual(yield* states("q"), { cancelled: 2, running: 1 })
      yield* Deferred.succeed(gate, undefined)
      const ids = yield* Fiber.join(late)
      assert.deepStrictEqual(yield* end(running, "completed"), ["accepted"])
      assert.strictEqual((yield* Queues.depth("q")).counts.available, 2)
      // Rows that the cursor has passed over wait, too.
      assert.strictEqual(yield* Queues.drain("q", { chunkSize: 1 }), 2)
      assert.strictEqual(yield* claimed("q"), 0)
      assert.strictEqual(ids.length, 2)
      assert.deepStrictEqual(yield* states("q"), { cancelled: 4, completed: 1 })
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("waits for whoever changes a job, but not for long", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* Work.enqueueMany([1], { queue: "q", delay: "1 hour" })
      const locked = yield* Deferred.make<void>()
      const gate = yield* Deferred.make<void>()
      const other = yield* sql`select from awa.deferred_jobs for update`.pipe(
        Effect.zipRight(Deferred.succeed(locked, undefined)),
        Effect.zipRight(Deferred.await(gate)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(locked)
      const error = yield* Effect.flip(Queues.drain("q"))
      assert.deepInclude(error, { _tag: "QueueBusy", operation: "drain", done: false })
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(other)
      assert.strictEqual(yield* Queues.drain("q"), 1)
    }).pipe(Effect.provide(MigratedLive())))
})
