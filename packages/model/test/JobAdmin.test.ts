import { Database, Dlq, type Errors, Job, JobAdmin, type JobRow, type JobState, QueueStorage } from "@awa/model"
import { Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Duration, Effect, Fiber, Option, Schema } from "effect"
import { MigratedLive } from "./support/database.js"

const Note = Job.make("note", { payload: { n: Schema.Number } })
const Other = Job.make("other", { payload: { text: Schema.String } })

const owner = "00000000-0000-4000-8000-000000000001"

const engine = QueueStorage.make

const claim = (limit = 100, queue = "default") =>
  Effect.flatMap(
    engine,
    (engine) => engine.claim({ queue, limit, owner, nonce: "7", deadline: null, durability: "async" })
  )

const claimedIds = (limit?: number, queue?: string) =>
  Effect.map(claim(limit, queue), (jobs) => jobs.map(({ job }) => job.id))

const found = (id: JobRow.JobId) => Effect.map(JobAdmin.get(id), Option.getOrThrow)

const { retry: retryJob } = JobAdmin
const { retry: revive } = Dlq

const state = (id: JobRow.JobId) => Effect.map(found(id), (job) => job.state)

/** A job in each state that a job can be in. */
const jobsInAllStates = Effect.gen(function*() {
  const { complete } = yield* engine
  const ids = yield* Note.enqueueMany([{ n: 1 }, { n: 2 }, { n: 3 }, { n: 4 }, { n: 5 }])
  const jobs = yield* claim()
  const end = ["completed", "fail", "cancel", "retry"] as const
  yield* complete(
    owner,
    jobs.slice(0, 4).map(({ token }, i) => {
      const tag = end[i]!
      const outcome = tag === "completed"
        ? { _tag: tag }
        : tag === "cancel"
        ? { _tag: tag, reason: "no" }
        : tag === "fail"
        ? { _tag: tag, error: "broken" }
        : { _tag: tag, delay: Duration.hours(1), error: "broken" }
      return { token, outcome }
    })
  )
  const scheduled = yield* Note.enqueue({ n: 6 }, { delay: "1 hour" })
  const available = yield* Note.enqueue({ n: 7 })
  return {
    completed: ids[0]!,
    failed: ids[1]!,
    cancelled: ids[2]!,
    retryable: ids[3]!,
    running: ids[4]!,
    scheduled: scheduled.id,
    available: available.id
  }
})

type States = Effect.Effect.Success<typeof jobsInAllStates>

/** What becomes of a job in each state. */
const outcomes = <E, R>(change: (id: JobRow.JobId) => Effect.Effect<void, E, R>) =>
  Effect.gen(function*() {
    const jobs = yield* jobsInAllStates
    const seen: Record<string, JobState.JobState | string> = {}
    for (const name of Object.keys(jobs) as ReadonlyArray<keyof States>) {
      const error = yield* Effect.flip(change(jobs[name])).pipe(Effect.option)
      const after = Option.map(yield* JobAdmin.get(jobs[name]), (job) => job.state)
      seen[name] = Option.isSome(error)
        ? String((error.value as { readonly _tag: string })._tag)
        : Option.getOrElse(after, () => "gone")
      if (Option.isSome(error)) assert.deepStrictEqual(after, Option.some(name))
    }
    return seen
  })

const refused = "JobNotInState"
const later = new Date("2999-01-01T00:00:00Z")
const past = new Date("2001-01-01T00:00:00Z")

describe("a change of a job", () => {
  const table = [
    ["cancel", (id: JobRow.JobId) => JobAdmin.cancel(id), {
      completed: refused,
      failed: refused,
      cancelled: refused,
      retryable: "cancelled",
      running: "cancelled",
      scheduled: "cancelled",
      available: "cancelled"
    }],
    ["retry", (id: JobRow.JobId) => retryJob(id), {
      completed: refused,
      failed: "available",
      cancelled: "available",
      retryable: refused,
      running: refused,
      scheduled: refused,
      available: refused
    }],
    ["setPriority", (id: JobRow.JobId) => JobAdmin.setPriority(id, 1), {
      completed: refused,
      failed: refused,
      cancelled: refused,
      retryable: "retryable",
      running: refused,
      scheduled: "scheduled",
      available: "available"
    }],
    ["moveQueue", (id: JobRow.JobId) => JobAdmin.moveQueue(id, "elsewhere"), {
      completed: refused,
      failed: refused,
      cancelled: refused,
      retryable: "retryable",
      running: refused,
      scheduled: "scheduled",
      available: "available"
    }],
    ["reschedule to later", (id: JobRow.JobId) => JobAdmin.reschedule(id, later), {
      completed: refused,
      failed: refused,
      cancelled: refused,
      retryable: "retryable",
      running: refused,
      scheduled: "scheduled",
      available: "scheduled"
    }],
    ["reschedule to now", (id: JobRow.JobId) => JobAdmin.reschedule(id, past), {
      completed: refused,
      failed: refused,
      cancelled: refused,
      retryable: "available",
      running: refused,
      scheduled: "available",
      available: "available"
    }],
    ["editPayload", (id: JobRow.JobId) => JobAdmin.editPayload(Note, id, { n: 100 }), {
      completed: refused,
      failed: refused,
      cancelled: refused,
      retryable: "retryable",
      running: refused,
      scheduled: "scheduled",
      available: "available"
    }],
    ["remove", (id: JobRow.JobId) => JobAdmin.remove(id), {
      completed: refused,
      failed: "gone",
      cancelled: "gone",
      retryable: "gone",
      running: refused,
      scheduled: "gone",
      available: "gone"
    }]
  ] as const

  for (const [name, change, expected] of table) {
    it.live(`${name}: in each state`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual<unknown>(
          yield* outcomes<JobAdmin.ChangeError | { _tag: string }, SqlClient.SqlClient>(change),
          expected
        )
      }).pipe(Effect.provide(MigratedLive())))
  }

  it.live("keeps what it does not change", () =>
    Effect.gen(function*() {
      const { complete } = yield* engine
      const { id } = yield* Note.enqueue({ n: 1 }, { metadata: { a: 1 }, tags: ["t"], maxAttempts: 5 })
      const [first] = yield* claim()
      yield* complete(owner, [{
        token: first!.token,
        outcome: { _tag: "retry", delay: Duration.zero, error: "broken" },
        progress: 50
      }])
      const before = yield* found(id)
      assert.deepInclude(before, { state: "available", attempt: 1, runLease: 1n })
      yield* JobAdmin.setPriority(id, 1)
      yield* JobAdmin.moveQueue(id, "elsewhere")
      yield* JobAdmin.reschedule(id, later)
      yield* JobAdmin.reschedule(id, past)
      yield* JobAdmin.editPayload(Note, id, { n: 2 })
      const after = yield* found(id)
      assert.deepStrictEqual({ ...after }, {
        ...before,
        queue: "elsewhere",
        priority: 1,
        args: { n: 2 },
        runAt: past
      })
      const [again] = yield* claim(1, "elsewhere")
      assert.deepInclude(again!.job, { id, attempt: 2, runLease: 2n, args: { n: 2 }, tags: ["t"], progress: 50 })
      assert.strictEqual(again!.job.errors.length, 1)
    }).pipe(Effect.provide(MigratedLive())))

  it.live("cancel says why; retry starts anew and keeps lease and errors", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      yield* claim()
      yield* JobAdmin.cancel(id, { reason: "not \u0000 wanted" })
      const cancelled = yield* found(id)
      assert.deepInclude(cancelled, { state: "cancelled", attempt: 1, runLease: 1n })
      assert.deepStrictEqual(cancelled.errors.map(({ error }) => error), ["cancelled: not \ufffd wanted"])
      assert.isDefined(cancelled.finalizedAt)
      yield* retryJob(id)
      assert.deepInclude(yield* found(id), { state: "available", attempt: 0, runLease: 1n, errors: cancelled.errors })
      const [again] = yield* claim()
      assert.deepInclude(again!.job, { id, attempt: 1, runLease: 2n })
    }).pipe(Effect.provide(MigratedLive())))

  it.live("of a running job that is cancelled refuses the worker's answer, and tells it", () =>
    Effect.gen(function*() {
      const { complete, heartbeat, openAttempts } = yield* engine
      const { id } = yield* Note.enqueue({ n: 1 })
      const [{ token }] = (yield* claim()) as [JobsOf]
      yield* JobAdmin.cancel(id)
      assert.deepStrictEqual(yield* heartbeat(owner, [{ token }]), [false])
      assert.deepStrictEqual(yield* openAttempts(owner, Duration.zero), [])
      assert.deepStrictEqual(yield* complete(owner, [{ token, outcome: { _tag: "completed" } }]), ["refused"])
      assert.strictEqual(yield* state(id), "cancelled")
    }).pipe(Effect.provide(MigratedLive())))

  it.live("of many answers for each, in their order", () =>
    Effect.gen(function*() {
      const ids = yield* Note.enqueueMany(Array.from({ length: 1200 }, (_, n) => ({ n })))
      const running = yield* claimedIds(3)
      const none = 999_999_999n as JobRow.JobId
      const asked = [...ids, none, ids[0]!]
      const answers = yield* JobAdmin.cancelMany(asked)
      assert.deepStrictEqual(answers.map(({ id }) => id), asked)
      assert.deepStrictEqual(answers[1200], { _tag: "NotFound", id: none })
      assert.deepStrictEqual(
        answers.slice(0, 1200).map((answer): string => answer._tag === "Changed" ? answer.from : answer._tag),
        ids.map((id) => running.includes(id) ? "running" : "available")
      )
      assert.deepStrictEqual(yield* claimedIds(), [])
      assert.deepStrictEqual(
        (yield* JobAdmin.cancelMany(ids)).map((answer) => answer._tag === "NotInState" ? answer.state : answer._tag),
        ids.map(() => "cancelled")
      )
      yield* JobAdmin.retryMany(ids)
      assert.strictEqual((yield* claimedIds(2000)).length, 1200)
    }).pipe(Effect.provide(MigratedLive())))

  it.live("is refused at the door when it makes no sense", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      const errors = yield* Effect.all([
        Effect.flip(JobAdmin.setPriority(id, 5 as never)),
        Effect.flip(JobAdmin.moveQueue(id, "")),
        Effect.flip(JobAdmin.reschedule(id, new Date(NaN))),
        Effect.flip(JobAdmin.editPayload(Note, id, { n: "x" as never })),
        Effect.flip(JobAdmin.editPayload(Other, id, { text: "x" })),
        Effect.flip(JobAdmin.cancel(12345n as JobRow.JobId))
      ])
      assert.deepStrictEqual(errors.map((error) => error._tag), [
        "InvalidSetting",
        "InvalidSetting",
        "InvalidSetting",
        "InvalidJob",
        "InvalidJob",
        "JobNotFound"
      ])
      assert.include(errors[3].message, "payload.n")
      assert.include(errors[4].message, "of the kind note")
      assert.deepInclude(yield* found(id), { args: { n: 1 }, priority: 2, queue: "default" })
    }).pipe(Effect.provide(MigratedLive())))

  it.live("takes no id but a bigint of 64 bits, and changes nothing of what a list held before", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      for (const wrong of [Number(id), 1.5, `${id}`, "1.5", "x", null, undefined, {}, 2n ** 63n] as Array<never>) {
        const operations: Record<string, ReadonlyArray<Effect.Effect<unknown, unknown, SqlClient.SqlClient>>> = {
          id: [
            JobAdmin.get(wrong),
            JobAdmin.cancel(wrong),
            retryJob(wrong),
            JobAdmin.remove(wrong),
            JobAdmin.setPriority(wrong, 1),
            JobAdmin.moveQueue(wrong, "q"),
            JobAdmin.reschedule(wrong, new Date(0)),
            JobAdmin.editPayload(Note, wrong, { n: 2 }),
            Dlq.get(wrong),
            Dlq.move(wrong, "r"),
            revive(wrong),
            Dlq.purgeOne(wrong)
          ],
          "ids[1]": [
            JobAdmin.cancelMany([id, wrong]),
            JobAdmin.retryMany([id, wrong]),
            JobAdmin.removeMany([id, wrong]),
            JobAdmin.requestCancel([id, wrong])
          ],
          before: wrong === undefined ? [] : [JobAdmin.list({ before: wrong })],
          "before.id": [Dlq.list({ before: { id: wrong, dlqAt: new Date(0) } })]
        }
        for (const [setting, refused] of Object.entries(operations)) {
          for (const operation of refused) {
            assert.deepInclude(yield* Effect.flip(operation), { _tag: "InvalidSetting", setting, value: wrong })
          }
        }
      }
      // Its digits would be ids.
      assert.deepInclude(yield* Effect.flip(JobAdmin.requestCancel(`${id}` as never)), { setting: "ids" })
      assert.deepInclude(yield* found(id), { state: "available", queue: "default", args: { n: 1 } })
    }).pipe(Effect.provide(MigratedLive())))

  it.live("looks for and cancels nothing by options that make no sense", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      const wrong: ReadonlyArray<readonly [string, unknown, RegExp]> = [
        ["filter.status", { status: "failed" }, /use state, kind, queue, tag, before, limit/],
        ["state", { state: "bogus" }, /it must be one of .*available/],
        ["kind", { kind: 1 }, /kind/],
        ["tag", { tag: "" }, /tag/],
        ["limit", { limit: "3" }, /it must be a number/],
        ["limit", { limit: Number.NaN }, /it must be a number/]
      ]
      for (const [setting, filter, message] of wrong) {
        const error = yield* Effect.flip(JobAdmin.list(filter as JobAdmin.Filter))
        assert.deepInclude(error, { _tag: "InvalidSetting", setting })
        assert.match(error.message, message)
      }
      for (const options of [{ reasson: "x" }, { reason: 1 }]) {
        for (
          const call of [
            JobAdmin.cancel(id, options as never),
            JobAdmin.cancelMany([id], options as never),
            JobAdmin.requestCancel(id, options as never)
          ] as ReadonlyArray<Effect.Effect<unknown, { readonly _tag: string }, SqlClient.SqlClient>>
        ) {
          assert.strictEqual((yield* Effect.flip(call))._tag, "InvalidSetting")
        }
      }
      assert.strictEqual(yield* state(id), "available")
    }).pipe(Effect.provide(MigratedLive())))

  it.live("gives up when somebody keeps the lane's lock", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      const sql = yield* SqlClient.SqlClient
      const held = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const holder = yield* sql`select awa.hold_lanes(array_agg(lane_id)) from awa.lanes`.pipe(
        Effect.zipRight(Deferred.succeed(held, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(held)
      const error = yield* Effect.flip(JobAdmin.cancel(id))
      assert.strictEqual(error._tag, "JobBusy")
      assert.strictEqual(yield* state(id), "available")
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(holder)
      yield* JobAdmin.cancel(id)
    }).pipe(Effect.provide(MigratedLive())))

  it.live("belongs to the caller's transaction", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      const within = (change: Effect.Effect<void, JobAdmin.ChangeError | Errors.UniqueConflict, SqlClient.SqlClient>) =>
        Effect.flip(Database.transaction(Effect.zipRight(change, Effect.fail("no"))))
      for (const change of [JobAdmin.cancel(id), JobAdmin.remove(id), JobAdmin.moveQueue(id, "other")]) {
        assert.strictEqual(yield* within(change), "no")
        assert.deepInclude(yield* found(id), { state: "available", queue: "default" })
      }
      yield* JobAdmin.cancel(id)
      assert.strictEqual(yield* within(retryJob(id)), "no")
      assert.strictEqual(yield* state(id), "cancelled")
    }).pipe(Effect.provide(MigratedLive())))

  it.live("changes jobs of the transaction it is made in", () =>
    Effect.gen(function*() {
      const [cancelled, moved, removed] = yield* Database.transaction(Effect.gen(function*() {
        const ids = yield* Note.enqueueMany([{ n: 1 }, { n: 2 }, { n: 3 }, { n: 4 }])
        yield* JobAdmin.cancel(ids[0]!)
        yield* JobAdmin.moveQueue(ids[1]!, "other")
        yield* JobAdmin.remove(ids[2]!)
        return ids
      }))
      assert.strictEqual(yield* state(cancelled!), "cancelled")
      assert.deepInclude(yield* found(moved!), { state: "available", queue: "other" })
      assert.isTrue(Option.isNone(yield* JobAdmin.get(removed!)))
      assert.deepStrictEqual((yield* claim(10)).map(({ job }) => job.args), [{ n: 4 }])
      assert.deepStrictEqual((yield* claim(10, "other")).map(({ job }) => job.id), [moved])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 2 }))))

  it.live("keeps claims waiting until that has ended", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const [first, second] = yield* Note.enqueueMany([{ n: 1 }, { n: 2 }])
      const changed = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const transaction = yield* JobAdmin.cancel(first!).pipe(
        Effect.zipRight(Deferred.succeed(changed, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(changed)
      const claiming = yield* Effect.fork(claim(10))
      yield* Wait.eventually(Effect.map(
        sql`select from pg_locks where locktype = 'advisory' and not granted
          and database = (select oid from pg_database where datname = current_database())`,
        (waiting) => assert.lengthOf(waiting, 1)
      ))
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(transaction)
      assert.deepStrictEqual((yield* Fiber.join(claiming)).map(({ job }) => job.id), [second])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("keeps nothing from jobs of other queues", () =>
    Effect.gen(function*() {
      const { cancelRequested } = yield* engine
      const held = yield* Note.enqueue({ n: 1 }, { queue: "held" })
      const [waiting, running, asked] = yield* Note.enqueueMany([{ n: 2 }, { n: 3 }, { n: 4 }])
      const changed = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const transaction = yield* JobAdmin.setPriority(held.id, 1).pipe(
        Effect.zipRight(Deferred.succeed(changed, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(changed)
      const answers = yield* JobAdmin.cancelMany([held.id, waiting!])
      assert.deepStrictEqual(answers, [
        { _tag: "Busy", id: held.id },
        { _tag: "Changed", id: waiting!, from: "available" }
      ])
      yield* JobAdmin.requestCancel([held.id, running!])
      const claimed = yield* claim(1)
      assert.deepStrictEqual(claimed.map(({ job }) => job.id), [asked])
      assert.strictEqual(yield* state(running!), "cancelled")
      yield* JobAdmin.requestCancel(asked!)
      assert.strictEqual(yield* cancelRequested(100), 1)
      assert.strictEqual(yield* state(asked!), "cancelled")
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(transaction)
      assert.strictEqual(yield* cancelRequested(100), 1)
      assert.strictEqual(yield* state(held.id), "cancelled")
    }).pipe(Effect.provide(MigratedLive())))

  it.live("keeps nothing from other jobs that are scheduled or have ended", () =>
    Effect.gen(function*() {
      const { cancelRequested } = yield* engine
      const jobs = yield* jobsInAllStates
      const other = yield* Note.enqueue({ n: 8 }, { delay: "1 hour" })
      const failed = yield* Note.enqueue({ n: 9 })
      yield* JobAdmin.cancel(failed.id)
      const changed = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const transaction = yield* JobAdmin.setPriority(jobs.scheduled, 1).pipe(
        Effect.zipRight(JobAdmin.remove(jobs.cancelled)),
        Effect.zipRight(Deferred.succeed(changed, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(changed)
      const tags = Effect.map((answers: ReadonlyArray<JobAdmin.Answer>) => answers.map(({ _tag }) => _tag))
      assert.deepStrictEqual(yield* tags(JobAdmin.setPriorityMany([jobs.scheduled, other.id], 3)), ["Busy", "Changed"])
      assert.deepStrictEqual(yield* tags(JobAdmin.removeMany([jobs.cancelled, failed.id])), ["Busy", "Changed"])
      yield* JobAdmin.requestCancel([jobs.scheduled, other.id])
      assert.strictEqual(yield* cancelRequested(100), 1)
      assert.strictEqual(yield* state(other.id), "cancelled")
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(transaction)
      assert.strictEqual(yield* cancelRequested(100), 1)
      assert.strictEqual(yield* state(jobs.scheduled), "cancelled")
    }).pipe(Effect.timeout("20 seconds"), Effect.provide(MigratedLive())))

  it.live("keeps no other worker's attempts from being rescued", () =>
    Effect.gen(function*() {
      const { claim, rescueStale } = yield* engine
      const [held, stale] = yield* Note.enqueueMany([{ n: 1 }, { n: 2 }])
      const request = { queue: "default", limit: 1, nonce: "1", deadline: null, durability: "async" } as const
      yield* claim({ ...request, owner })
      yield* claim({ ...request, owner: "00000000-0000-4000-8000-000000000002" })
      const changed = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const transaction = yield* JobAdmin.cancel(held!).pipe(
        Effect.zipRight(Deferred.succeed(changed, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(changed)
      const rescued = yield* rescueStale({ staleness: Duration.zero, limit: 100 })
      assert.deepStrictEqual(rescued.map(({ jobId }) => jobId), [stale])
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(transaction)
      assert.strictEqual(yield* state(held!), "cancelled")
      assert.deepStrictEqual(yield* rescueStale({ staleness: Duration.zero, limit: 100 }), [])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("that cannot be made leaves the transaction usable", () =>
    Effect.gen(function*() {
      const { id } = yield* Note.enqueue({ n: 1 })
      for (const isolation of ["repeatable read", "serializable"] as const) {
        const { id: other, error } = yield* Database.transaction(
          Effect.gen(function*() {
            const error = yield* Effect.flip(JobAdmin.cancel(id))
            return { error, id: (yield* Note.enqueue({ n: 2 })).id }
          }),
          { isolation }
        )
        assert.deepInclude(error, { _tag: "DatabaseError", sqlState: "AW002" })
        assert.match(error.message, /outside your transaction \(Database\.outsideTransaction\)/)
        assert.strictEqual(yield* state(id), "available")
        assert.strictEqual(yield* state(other), "available")
      }
      const held = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const holder = yield* JobAdmin.setPriority(id, 1).pipe(
        Effect.zipRight(Deferred.succeed(held, undefined)),
        Effect.zipRight(Deferred.await(release)),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(held)
      const third = yield* Database.transaction(Effect.gen(function*() {
        assert.strictEqual((yield* Effect.flip(JobAdmin.cancel(id)))._tag, "JobBusy")
        return (yield* Note.enqueue({ n: 3 }, { queue: "other" })).id
      }))
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(holder)
      assert.strictEqual(yield* state(third), "available")
      assert.deepInclude(yield* found(id), { state: "available", priority: 1 })
    }).pipe(Effect.provide(MigratedLive())))
})

type JobsOf = Effect.Effect.Success<ReturnType<typeof claim>>[number]

describe("a request to cancel", () => {
  it.live("belongs to the caller's transaction and holds nobody up", () =>
    Effect.gen(function*() {
      const { cancelRequested } = yield* engine
      const [kept, dropped, running] = yield* Note.enqueueMany([{ n: 1 }, { n: 2 }, { n: 3 }])
      yield* Database.transaction(Effect.zipRight(JobAdmin.requestCancel(kept!), Effect.fail("no"))).pipe(Effect.flip)
      const [first] = yield* claim(1)
      assert.strictEqual(first!.job.id, kept)
      yield* Database.transaction(Effect.gen(function*() {
        yield* JobAdmin.requestCancel([dropped!, running!], { reason: "asked" })
        // Others go on meanwhile, and see nothing of it.
        yield* Database.outsideTransaction(Effect.gen(function*() {
          assert.strictEqual(yield* cancelRequested(10), 0)
          assert.strictEqual(yield* state(dropped!), "available")
        }))
      }))
      assert.deepStrictEqual(yield* claimedIds(), [])
      assert.deepStrictEqual([yield* state(dropped!), yield* state(running!)], ["cancelled", "cancelled"])
      assert.deepStrictEqual((yield* found(dropped!)).errors.map(({ error }) => error), ["cancelled: asked"])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("reaches jobs in every state through the leader", () =>
    Effect.gen(function*() {
      const { cancelRequested } = yield* engine
      const jobs = yield* jobsInAllStates
      yield* JobAdmin.requestCancel(Object.values(jobs))
      assert.strictEqual(yield* cancelRequested(100), 7)
      assert.strictEqual(yield* cancelRequested(100), 0)
      const states = yield* Effect.all(Object.values(jobs).map(state))
      assert.deepStrictEqual(states, [
        "completed",
        "failed",
        "cancelled",
        "cancelled",
        "cancelled",
        "cancelled",
        "cancelled"
      ])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("leaves a claim what is behind the cancelled ones", () =>
    Effect.gen(function*() {
      const ids = yield* Note.enqueueMany(Array.from({ length: 6 }, (_, n) => ({ n })))
      yield* JobAdmin.requestCancel(ids.slice(0, 4))
      assert.deepStrictEqual(yield* claimedIds(2), ids.slice(4))
    }).pipe(Effect.provide(MigratedLive())))
})

describe("reading", () => {
  it.live("finds a job in each state, one by one and in pages", () =>
    Effect.gen(function*() {
      const jobs = yield* jobsInAllStates
      const names = Object.keys(jobs) as ReadonlyArray<keyof States>
      for (const name of names) {
        assert.strictEqual(yield* state(jobs[name]), name)
        assert.deepStrictEqual((yield* JobAdmin.list({ state: name })).map(({ id }) => id), [jobs[name]])
      }
      const all = names.map((name) => jobs[name]).sort((a, b) => a < b ? 1 : -1)
      assert.deepStrictEqual((yield* JobAdmin.list()).map(({ id }) => id), all)
      const pages = yield* Effect.iterate({ ids: [] as ReadonlyArray<JobRow.JobId>, more: true }, {
        while: ({ more }) => more,
        body: ({ ids }) =>
          Effect.map(JobAdmin.list({ limit: 2, before: ids.at(-1) }), (page) => ({
            ids: [...ids, ...page.map(({ id }) => id)],
            more: page.length === 2
          }))
      })
      assert.deepStrictEqual(pages.ids, all)
      assert.deepStrictEqual(yield* JobAdmin.get(99999n as JobRow.JobId), Option.none())
    }).pipe(Effect.provide(MigratedLive())))

  it.live("lists by queue, kind and tag, and clamps the limit", () =>
    Effect.gen(function*() {
      const a = yield* Note.enqueue({ n: 1 }, { queue: "a", tags: ["x"] })
      const b = yield* Other.enqueue({ text: "b" }, { queue: "b", tags: ["x", "y"], delay: "1 hour" })
      const c = yield* Note.enqueue({ n: 3 }, { queue: "b" })
      yield* JobAdmin.cancel(c.id)
      const ids = (filter: JobAdmin.Filter) => Effect.map(JobAdmin.list(filter), (jobs) => jobs.map(({ id }) => id))
      assert.deepStrictEqual(yield* ids({ queue: "b" }), [c.id, b.id])
      assert.deepStrictEqual(yield* ids({ kind: "note" }), [c.id, a.id])
      assert.deepStrictEqual(yield* ids({ tag: "x" }), [b.id, a.id])
      assert.deepStrictEqual(yield* ids({ tag: "x", queue: "a", kind: "note", state: "available" }), [a.id])
      assert.deepStrictEqual(yield* ids({ limit: -3 }), [c.id])
      assert.deepStrictEqual(yield* ids({ limit: 1e9 }), [c.id, b.id, a.id])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("lists what came back to the log under the id it had", () =>
    Effect.gen(function*() {
      const { complete } = yield* engine
      const ids = yield* Note.enqueueMany([{ n: 1 }, { n: 2 }, { n: 3 }, { n: 4 }])
      for (const turn of [1, 2, 3]) {
        const jobs = yield* claim(3)
        const outcome = { _tag: "retry", delay: Duration.zero, error: `no ${turn}` } as const
        yield* complete(owner, jobs.map(({ token }) => ({ token, outcome })))
      }
      const newestFirst = [...ids].reverse()
      const list = (filter: JobAdmin.Filter) => Effect.map(JobAdmin.list(filter), (jobs) => jobs.map(({ id }) => id))
      assert.deepStrictEqual(yield* list({ state: "available" }), newestFirst)
      assert.deepStrictEqual(yield* list({ state: "available", limit: 2 }), newestFirst.slice(0, 2))
      assert.deepStrictEqual(yield* list({}), newestFirst)
      const jobs = yield* claim()
      yield* complete(owner, jobs.map(({ token }) => ({ token, outcome: { _tag: "completed" } as const })))
      assert.deepStrictEqual(yield* list({ state: "completed" }), newestFirst)
      assert.deepStrictEqual(yield* list({ state: "completed", limit: 1, before: newestFirst[1]! }), [newestFirst[2]])
      assert.deepStrictEqual(yield* list({ state: "available" }), [])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("reads no more when ten times as many jobs are kept", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const { complete } = yield* engine
      const finish = (count: number) =>
        Effect.gen(function*() {
          yield* Note.enqueueMany(Array.from({ length: count }, (_, n) => ({ n })))
          for (let left = count; left > 0; left -= 500) {
            const jobs = yield* claim(500)
            yield* complete(owner, jobs.map(({ token }) => ({ token, outcome: { _tag: "completed" } as const })))
          }
        })
      const blocks = (call: string) =>
        Effect.map(
          sql.unsafe<{ "QUERY PLAN": ReadonlyArray<{ Plan: Record<string, number> }> }>(
            `explain (analyze, buffers, format json) select * from awa.${call}`
          ),
          ([row]) =>
            row!["QUERY PLAN"][0]!.Plan["Shared Hit Blocks"]! + row!["QUERY PLAN"][0]!.Plan["Shared Read Blocks"]!
        )
      const page = (state: string) => `list_jobs(${state}, null, null, null, null, 50)`
      const measure = Effect.gen(function*() {
        const [newest] = yield* JobAdmin.list({ limit: 1 })
        const calls = [
          `jobs where id = ${newest!.id}`,
          "jobs where id = 1",
          `job(${newest!.id})`,
          "job(1)",
          ...["'available'", "'completed'", "'scheduled'", "null"].map(page)
        ]
        // The least of three: to plan reads thousands of blocks of the catalogue, the first time, and again whenever
        // autovacuum has just been to one of the tables.
        const passes = yield* Effect.replicateEffect(Effect.forEach(calls, blocks), 3)
        return calls.map((_, i) => Math.min(...passes.map((pass) => pass[i]!)))
      })
      yield* finish(500)
      yield* Note.enqueueMany(Array.from({ length: 500 }, (_, n) => ({ n })))
      const before = yield* measure
      yield* finish(500) // takes those that waited
      yield* finish(9000)
      yield* Note.enqueueMany(Array.from({ length: 5000 }, (_, n) => ({ n })))
      yield* Note.enqueueMany(Array.from({ length: 5000 }, (_, n) => ({ n })), { delay: "1 day" })
      const after = yield* measure
      for (const [i, count] of after.entries()) {
        assert.isBelow(count, 2 * before[i]! + (i < 2 ? 100 : 300), `call ${i}: ${JSON.stringify({ before, after })}`)
      }
    }).pipe(Effect.provide(MigratedLive())))
})
