import { Database, Dlq, Job, JobRow, Queues, QueueStorage, type StorageEngine, TimeSource } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Option, Schema, TestClock } from "effect"
import { MigratedLive } from "./support/database.js"

const Work = Job.make("work", { payload: Schema.Unknown })
const Other = Job.make("other", { payload: Schema.Unknown })

const owner = "00000000-0000-4000-8000-000000000001"

const { retry: revive } = Dlq

const enabled: StorageEngine.DeadLetterPolicy = { enabled: true, queues: {} }

const claim = (queue = "default", limit = 1000) =>
  Effect.flatMap(
    QueueStorage.make,
    (engine) => engine.claim({ queue, limit, owner, nonce: "1", deadline: Duration.minutes(1), durability: "async" })
  )

const fail: StorageEngine.Outcome = { _tag: "fail", error: "beyond repair" }
const retry: StorageEngine.Outcome = { _tag: "retry", delay: Duration.zero, error: "it broke" }

const end = (
  jobs: ReadonlyArray<StorageEngine.ClaimedJob>,
  outcome: StorageEngine.Outcome,
  deadLetters?: StorageEngine.DeadLetterPolicy
) =>
  Effect.flatMap(
    QueueStorage.make,
    (engine) =>
      engine.complete(owner, jobs.map(({ token }) => ({ token, outcome, progress: { percent: 50 } })), deadLetters)
  )

/** So many jobs that failed and became dead letters. */
const deadLetters = (count: number, queue = "default", definition: typeof Work | typeof Other = Work) =>
  Effect.gen(function*() {
    const ids = yield* definition.enqueueMany(Array.from({ length: count }, (_, n) => ({ n })), {
      queue,
      tags: ["x", queue],
      metadata: { m: 1 }
    })
    yield* end(yield* claim(queue), fail, enabled)
    return ids
  })

const shown = (id: bigint) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    Effect.map(
      sql.unsafe<{ state: string; attempt: number; lease: string; progress: unknown; errors: ReadonlyArray<unknown> }>(
        "select state::text, attempt, run_lease::text as lease, progress, errors from awa.jobs where id = $1",
        [String(id)]
      ),
      (rows) => {
        assert.strictEqual(rows.length, 1, `job ${id} is in ${rows.length} places`)
        return rows[0]!
      }
    ))

const listed = (options?: Parameters<typeof Dlq.list>[0]) =>
  Effect.map(Dlq.list(options), (entries) => entries.map(({ id }) => id))

describe("a job that fails for good", () => {
  it.effect("is a dead letter where the worker says so, with the reason", () =>
    Effect.gen(function*() {
      const [terminal] = yield* Work.enqueueMany([1], { tags: ["t"], metadata: { m: 1 } })
      yield* end(yield* claim(), fail, enabled)
      const [exhausted] = yield* Work.enqueueMany([2], { maxAttempts: 1 })
      yield* end(yield* claim(), retry, enabled)
      const [cancelled] = yield* Work.enqueueMany([3])
      yield* end(yield* claim(), { _tag: "cancel", reason: "no" }, enabled)
      const [again] = yield* Work.enqueueMany([4])
      yield* end(yield* claim(), { ...retry, delay: Duration.hours(1) }, enabled)

      const entry = Option.getOrThrow(yield* Dlq.get(terminal!))
      assert.deepInclude(entry, {
        id: terminal!,
        kind: "work",
        queue: "default",
        args: 1,
        state: "failed",
        attempt: 1,
        runLease: 1n,
        reason: "terminal_error",
        tags: ["t"],
        metadata: { m: 1 },
        progress: { percent: 50 }
      })
      assert.deepInclude(entry.errors[0], { error: "beyond repair", attempt: 1, terminal: true })
      assert.instanceOf(entry.finalizedAt, Date)
      assert.strictEqual(Option.getOrThrow(yield* Dlq.get(exhausted!)).reason, "max_attempts_exhausted")
      for (const id of [cancelled!, again!]) assert.isTrue(Option.isNone(yield* Dlq.get(id)))
      assert.deepStrictEqual(
        yield* Effect.forEach([terminal!, exhausted!, cancelled!, again!], (id) =>
          Effect.map(shown(id), ({ state }) => state)),
        ["failed", "failed", "cancelled", "retryable"]
      )
      const { counts, deadLetters } = yield* Queues.depth("default")
      assert.deepStrictEqual([counts.failed, deadLetters], [2, 2])
    }).pipe(Effect.provide(MigratedLive())))

  const cases: ReadonlyArray<
    readonly [what: string, column: boolean | undefined, StorageEngine.DeadLetterPolicy | undefined, dead: boolean]
  > = [
    ["nobody says anything", undefined, undefined, false],
    ["the worker says no", undefined, { enabled: false, queues: {} }, false],
    ["the worker says yes of the queue only", undefined, { enabled: false, queues: { default: true } }, true],
    ["the worker says no of the queue only", undefined, { enabled: true, queues: { default: false } }, false],
    ["the worker says yes of another queue", undefined, { enabled: false, queues: { elsewhere: true } }, false],
    ["the operator says yes and nobody else anything", true, undefined, true],
    ["the operator says yes and the worker no", true, { enabled: false, queues: { default: false } }, true],
    ["the operator says no and the worker yes", false, { enabled: true, queues: { default: true } }, false]
  ]
  it.effect("follows the operator, then what the worker says of the queue, then what it says of all", () =>
    Effect.gen(function*() {
      for (const [what, column, policy, dead] of cases) {
        yield* Queues.setDlq("default", { enabled: column })
        const [id] = yield* Work.enqueueMany([1])
        yield* end(yield* claim(), fail, policy)
        assert.strictEqual(Option.isSome(yield* Dlq.get(id!)), dead, what)
        assert.strictEqual((yield* shown(id!)).state, "failed")
      }
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("is judged alike when it is the leader who ends it", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      const rescueAll = (deadLetters?: StorageEngine.DeadLetterPolicy) =>
        Effect.gen(function*() {
          yield* TestClock.adjust("2 minutes")
          const stale = yield* engine.rescueStale({
            staleness: Duration.minutes(1),
            limit: 10,
            ...(deadLetters === undefined ? undefined : { deadLetters })
          })
          assert.deepStrictEqual(stale.map(({ state }) => state), ["failed"])
        })
      for (const [what, column, policy, dead] of cases) {
        yield* Queues.setDlq("default", { enabled: column })
        const [id] = yield* Work.enqueueMany([1], { maxAttempts: 1 })
        yield* claim()
        yield* rescueAll(policy)
        const entry = yield* Dlq.get(id!)
        assert.strictEqual(Option.isSome(entry), dead, what)
        if (dead) assert.strictEqual(Option.getOrThrow(entry).reason, "max_attempts_exhausted")
      }
      yield* Queues.setDlq("default", { enabled: true })
      const [id] = yield* Work.enqueueMany([1], { maxAttempts: 1 })
      yield* claim()
      yield* TestClock.adjust("2 minutes")
      yield* engine.rescueExpired({ limit: 10 })
      assert.isTrue(Option.isSome(yield* Dlq.get(id!)))
    }).pipe(
      Effect.provideService(TimeSource.TimeSource, TimeSource.TimeSource.fromClock),
      Effect.provide(MigratedLive())
    ))
})

describe("dead letters", () => {
  it.effect("are listed page by page, the newest first, none twice and none left out", () =>
    Effect.gen(function*() {
      const all: Array<bigint> = []
      for (let i = 0; i < 3; i++) all.push(...(yield* deadLetters(4, i === 1 ? "b" : "a", i === 2 ? Other : Work)))
      const newest = [...all].reverse()
      assert.sameMembers([...(yield* listed())], newest)
      const pages: Array<bigint> = []
      let before: Dlq.DlqEntry | undefined
      for (;;) {
        const page: ReadonlyArray<Dlq.DlqEntry> = yield* Dlq.list({ limit: 5, before })
        pages.push(...page.map(({ id }) => id))
        if (page.length === 0) break
        before = page.at(-1)
      }
      assert.deepStrictEqual(pages, [...(yield* listed())])
      assert.deepStrictEqual([...new Set(pages)].length, 12)
      assert.strictEqual((yield* listed({ queue: "b" })).length, 4)
      assert.strictEqual((yield* listed({ kind: "other" })).length, 4)
      assert.strictEqual((yield* listed({ kind: "other", queue: "b" })).length, 0)
      assert.strictEqual((yield* listed({ tag: "b" })).length, 4)
      assert.strictEqual((yield* listed({ tag: "none" })).length, 0)
      assert.strictEqual((yield* listed({ limit: -5 })).length, 1)
      assert.strictEqual((yield* listed({ limit: 1e9 })).length, 12)
      assert.deepStrictEqual([...(yield* Dlq.depthByQueue)], [{ queue: "a", count: 8 }, { queue: "b", count: 4 }])
      assert.deepStrictEqual([yield* Dlq.depth(), yield* Dlq.depth("b"), yield* Dlq.depth("c")], [12, 4, 0])
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("can be made of jobs that have failed, and of no others", () =>
    Effect.gen(function*() {
      const ids = yield* Work.enqueueMany([1, 2, 3], { queue: "q" })
      yield* end(yield* claim("q"), fail)
      const [waiting] = yield* Work.enqueueMany([4], { queue: "q" })
      const moved = Option.getOrThrow(yield* Dlq.move(ids[0]!, "looked at by hand"))
      assert.deepInclude(moved, { id: ids[0]!, reason: "looked at by hand", state: "failed", runLease: 1n })
      for (const id of [ids[0]!, waiting!, JobRow.JobId.make(999_999n)]) {
        assert.isTrue(Option.isNone(yield* Dlq.move(id, "again")))
      }
      assert.strictEqual(yield* Dlq.bulkMove({ queue: "elsewhere" }, "no"), 0)
      assert.strictEqual(yield* Dlq.bulkMove({ kind: "work", queue: "q" }, "all", { chunkSize: 1 }), 2)
      assert.strictEqual(yield* Dlq.depth("q"), 3)
      for (const id of ids) assert.strictEqual((yield* shown(id)).state, "failed")
      assert.strictEqual((yield* Queues.depth("q")).counts.failed, 3)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("run again from their first attempt, with their lease", () =>
    Effect.gen(function*() {
      const [id] = yield* deadLetters(1)
      const job = Option.getOrThrow(yield* revive(id!))
      assert.deepInclude(job, {
        id: id!,
        state: "available",
        attempt: 0,
        runLease: 1n,
        queue: "default",
        priority: 2,
        tags: ["x", "default"],
        metadata: { m: 1 },
        progress: undefined
      })
      assert.strictEqual(job.errors.length, 1)
      assert.deepInclude(yield* shown(id!), { state: "available", attempt: 0, lease: "1", progress: null })
      assert.isTrue(Option.isNone(yield* revive(id!)))
      assert.isTrue(Option.isNone(yield* Dlq.get(id!)))
      const [claimed] = yield* claim()
      assert.deepInclude(claimed!.job, { id: id!, attempt: 1, runLease: 2n })
      assert.isUndefined(claimed!.job.progress)
      yield* end([claimed!], fail, enabled)
      assert.deepInclude(Option.getOrThrow(yield* Dlq.get(id!)), { runLease: 2n, attempt: 1 })
      assert.strictEqual(Option.getOrThrow(yield* Dlq.get(id!)).errors.length, 2)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("run again in another queue, at another priority, at another time", () =>
    Effect.gen(function*() {
      const [now, later] = yield* deadLetters(2)
      Option.getOrThrow(yield* revive(now!, { queue: "q", priority: 1, runAt: new Date(0) }))
      const [claimed] = yield* claim("q")
      assert.deepInclude(claimed!.job, { id: now!, priority: 1, queue: "q" })
      const runAt = new Date("2100-01-01T00:00:00Z")
      const scheduled = Option.getOrThrow(yield* revive(later!, { runAt }))
      assert.deepInclude(scheduled, { state: "scheduled", runAt, attempt: 0, runLease: 1n })
      assert.strictEqual((yield* shown(later!)).state, "scheduled")
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("run again all together, piece by piece, but for what came later", () =>
    Effect.gen(function*() {
      const ids = yield* deadLetters(7, "a")
      yield* deadLetters(3, "b")
      assert.strictEqual(yield* Dlq.bulkRetry({ queue: "a", kind: "other" }), 0)
      assert.strictEqual(yield* Dlq.bulkRetry({ queue: "a" }, { chunkSize: 2 }), 7)
      const jobs = yield* claim("a")
      assert.deepStrictEqual(jobs.map(({ job }) => job.id), ids)
      assert.isTrue(jobs.every(({ job }) => job.attempt === 1 && job.runLease === 2n))
      assert.strictEqual(yield* Dlq.bulkRetry({ all: true }, { chunkSize: 0 }), 3)
      assert.strictEqual(yield* Dlq.depth(), 0)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("are thrown away one by one, or all together", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const [one, ...others] = yield* deadLetters(6)
      yield* deadLetters(2, "b")
      assert.isTrue(yield* Dlq.purgeOne(one!))
      assert.isFalse(yield* Dlq.purgeOne(one!))
      assert.strictEqual(yield* Dlq.purge({ tag: "nothing" }), 0)
      assert.strictEqual(yield* Dlq.purge({ queue: "default", kind: "work" }, { chunkSize: 2 }), others.length)
      assert.strictEqual(yield* Dlq.purge({ all: true }), 2)
      const rows = yield* sql`select from awa.jobs`
      assert.strictEqual(rows.length, 0)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("are kept as long as was said, of their queue or of all", () =>
    Effect.gen(function*() {
      yield* deadLetters(5, "a")
      yield* deadLetters(5, "b")
      yield* Queues.setDlq("b", { enabled: true, retention: "1 day" })
      const cleanup = Dlq.cleanup("30 days", { chunkSize: 2 })
      assert.strictEqual(yield* cleanup, 0)
      yield* TestClock.adjust("1 day")
      assert.strictEqual(yield* cleanup, 0)
      yield* TestClock.adjust("1 second")
      assert.strictEqual(yield* cleanup, 5)
      assert.deepStrictEqual([...(yield* Dlq.depthByQueue)], [{ queue: "a", count: 5 }])
      yield* TestClock.adjust("29 days")
      assert.strictEqual(yield* cleanup, 5)
    }).pipe(
      Effect.provideService(TimeSource.TimeSource, TimeSource.TimeSource.fromClock),
      Effect.provide(MigratedLive())
    ))

  it.effect("are left as they are when the caller's transaction is rolled back", () =>
    Effect.gen(function*() {
      const [id] = yield* deadLetters(3)
      for (
        const operation of [
          revive(id!),
          Dlq.bulkRetry({ all: true }, { chunkSize: 1 }),
          Dlq.purge({ all: true }, { chunkSize: 1 }),
          Dlq.purgeOne(id!)
        ] as ReadonlyArray<Effect.Effect<unknown, Dlq.DlqError, SqlClient.SqlClient>>
      ) {
        yield* Effect.exit(Database.transaction(Effect.zipRight(operation, Effect.fail("rolled back"))))
        assert.strictEqual(yield* Dlq.depth(), 3)
      }
      assert.strictEqual((yield* claim()).length, 0)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("move and retry at the same moment, and exactly one of the retries wins", () =>
    Effect.gen(function*() {
      const [id] = yield* deadLetters(1)
      const retried = yield* Effect.all([revive(id!), revive(id!), Dlq.bulkRetry({ all: true })], {
        concurrency: "unbounded"
      })
      const won = retried.filter((result) => typeof result === "number" ? result === 1 : Option.isSome(result))
      assert.strictEqual(won.length, 1)
      assert.strictEqual((yield* claim()).length, 1)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("refuse what makes no sense before anything is sent", () =>
    Effect.gen(function*() {
      const id = JobRow.JobId.make(1n)
      const refused = [
        [Dlq.list({ queue: "" }), "queue"],
        [Dlq.list({ limit: NaN }), "limit"],
        [Dlq.list({ kinds: "x" } as never), "options.kinds"],
        [Dlq.depth(""), "queue"],
        [Dlq.move(id, ""), "reason"],
        [Dlq.move(id, "x".repeat(201)), "reason"],
        [Dlq.bulkMove({} as never, "r"), "scope"],
        [Dlq.bulkMove({ tag: "x" } as never, "r"), "scope.tag"],
        [Dlq.bulkMove({ all: true }, "\0"), "reason"],
        [Dlq.bulkRetry({} as never), "scope"],
        [Dlq.bulkRetry({ queue: undefined } as never), "scope"],
        [Dlq.bulkRetry({ all: false } as never), "scope"],
        [Dlq.purge({ all: true, queue: "a" } as never), "scope"],
        [Dlq.purge({ queue: "a" }, { chunkSize: NaN }), "chunkSize"],
        [revive(id, { priority: 5 as never }), "priority"],
        [revive(id, { queue: "" }), "queue"],
        [revive(id, { runAt: new Date(NaN) }), "runAt"],
        [revive(id, { runat: new Date() } as never), "options.runat"],
        [Dlq.cleanup(0), "retention"],
        [Dlq.cleanup(Duration.infinity), "retention"]
      ] as const
      for (const [operation, setting] of refused) {
        const error = yield* Effect.flip(operation as Effect.Effect<unknown, Dlq.DlqError, SqlClient.SqlClient>)
        assert.deepInclude(error, { _tag: "InvalidSetting", setting }, setting)
      }
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("refuse it in the database, too", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      for (
        const call of [
          "dlq_retry(1, 'infinity', null, null, null)",
          "dlq_retry(1, null, 5, null, null)",
          "dlq_retry(1, null, null, '', null)",
          "dlq_move(1, null, null, '', null, 1, null)",
          "dlq_cleanup(0, 1, null)"
        ]
      ) {
        const error = yield* Effect.flip(sql.unsafe(`select * from awa.${call}`))
        assert.strictEqual(error._tag, "SqlError", call)
      }
    }).pipe(Effect.provide(MigratedLive())))
})
