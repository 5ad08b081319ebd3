/**
 * The public package `awa`, used as an application would.
 */
import { TestDatabase, Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Awa, AwaLive, Database, Job, JobContext, JobError, JobResult, Migrations, Producer } from "awa"
import { Context, Data, Effect, Layer, ManagedRuntime, Ref, Schema } from "effect"

const ConfirmOrder = Job.make("confirm_order", {
  payload: { order: Schema.Int, placedAt: Schema.Date },
  queue: "mail"
})

/** The outside world of the program. */
class Mailer extends Context.Tag("Mailer")<Mailer, {
  readonly send: (text: string) => Effect.Effect<void, never, JobContext.JobContext>
  readonly sent: Effect.Effect<ReadonlyArray<string>>
}>() {}

const MailerLive = Layer.effect(
  Mailer,
  Effect.map(Ref.make<ReadonlyArray<string>>([]), (sent) => ({
    // A service that knows the job it works for, although nobody told it.
    send: (text: string) =>
      Effect.flatMap(
        JobContext.JobContext,
        ({ attempt, job }) => Ref.update(sent, (texts) => [...texts, `${text} (${job.kind}, attempt ${attempt})`])
      ),
    sent: Ref.get(sent)
  }))
)

const worker = Awa.builder.pipe(
  Awa.queue("mail", { maxWorkers: 5, deadline: "30 seconds" }),
  Awa.handle(ConfirmOrder, ({ order, placedAt }) =>
    Effect.gen(function*() {
      const mailer = yield* Mailer
      yield* mailer.send(`order ${order} of ${placedAt.getUTCFullYear()}`)
    }))
)

const placedAt = new Date("2024-02-29T12:00:00Z")

const placeOrder = (order: number) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    yield* sql`insert into orders (id) values (${order})`
    return yield* ConfirmOrder.enqueue({ order, placedAt })
  }).pipe(Database.transaction)

class PaymentRefused extends Data.TaggedError("PaymentRefused") {}

/** What is stored of a job, as an application can look at it. */
const stored = (id: bigint) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const [job] = yield* sql<{ state: string; attempt: number; errors: ReadonlyArray<Failure>; progress: unknown }>`
      select state::text, attempt, errors, progress from awa.jobs where id = ${String(id)}`
    return job
  })

interface Failure {
  readonly error: string
  readonly attempt: number
  readonly terminal?: boolean
}

type Stored = NonNullable<Effect.Effect.Success<ReturnType<typeof stored>>>

const eventually = (id: bigint, accepts: (job: Stored) => boolean) =>
  stored(id).pipe(
    Effect.filterOrFail(
      (job): job is Stored => job !== undefined && accepts(job),
      (job) => new Error(`job ${id} is ${JSON.stringify(job)}`)
    ),
    Wait.eventually
  )

const ended = (id: bigint) => eventually(id, ({ state }) => /completed|failed|cancelled/.test(state))

const failedOnce = (id: bigint) => eventually(id, ({ errors }) => errors.length > 0)

describe("a program", () => {
  it.live("enqueues in its own transaction, or not at all", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* sql`create table orders (id integer primary key)`
      const { id } = yield* placeOrder(1)
      const refused = yield* placeOrder(2).pipe(
        Effect.zipRight(new PaymentRefused()),
        Database.transaction,
        Effect.flip
      )
      assert.strictEqual(refused._tag, "PaymentRefused")
      const duplicate = yield* Effect.flip(placeOrder(1))
      assert.strictEqual(duplicate._tag, "SqlError")

      yield* ended(id)
      assert.deepStrictEqual(yield* Effect.flatMap(Mailer, ({ sent }) => sent), [
        "order 1 of 2024 (confirm_order, attempt 1)"
      ])
      const jobs = yield* sql<{ args: unknown; state: string }>`select args, state::text from awa.jobs`
      assert.deepStrictEqual(jobs, [{ args: { order: 1, placedAt: "2024-02-29T12:00:00.000Z" }, state: "completed" }])
    }).pipe(
      Effect.provide(AwaLive(worker)),
      Effect.provide(MailerLive),
      Effect.provide(TestDatabase.layer())
    ))

  it.live("needs no Effect at its edges: a managed runtime, and promises", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const run = async () => {
        const runtime = ManagedRuntime.make(
          AwaLive(worker).pipe(Layer.provideMerge(Layer.merge(MailerLive, Database.layer({ url }))))
        )
        try {
          assert.deepStrictEqual(await runtime.runPromise(Migrations.run()), [])
          const ids = await runtime.runPromise(Producer.enqueueMany(
            [1, 2, 3].map((order) => ConfirmOrder.request({ order, placedAt }))
          ))
          await Promise.all(ids.map((id) => runtime.runPromise(ended(id))))
          return await runtime.runPromise(Effect.flatMap(Mailer, ({ sent }) => sent))
        } finally {
          await runtime.dispose()
        }
      }
      assert.lengthOf(yield* Effect.promise(run), 3)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.live("sees how its worker is", () =>
    Effect.gen(function*() {
      const Busy = Job.make("busy", { payload: {} })
      const gate = yield* Effect.makeLatch(false)
      yield* Effect.gen(function*() {
        const awa = yield* Awa.Awa
        const { id } = yield* Busy.enqueue({})
        yield* Wait.eventually(Effect.map(awa.healthCheck, (health) =>
          assert.deepStrictEqual(health, {
            healthy: true,
            postgresConnected: true,
            pollLoopAlive: true,
            heartbeatAlive: true,
            maintenanceAlive: true,
            shuttingDown: false,
            leader: true,
            listening: true,
            queues: { default: { inFlight: 1, maxWorkers: 3 }, other: { inFlight: 0, maxWorkers: 50 } }
          })))
        yield* gate.open
        yield* ended(id)
        yield* awa.shutdown()
        const { healthy, leader, pollLoopAlive, shuttingDown } = yield* awa.healthCheck
        assert.deepStrictEqual([healthy, leader, pollLoopAlive, shuttingDown], [false, false, false, true])
      }).pipe(Effect.provide(AwaLive(Awa.builder.pipe(
        Awa.queue("default", { maxWorkers: 3 }),
        Awa.queue("other"),
        Awa.handle(Busy, () => gate.await)
      ))))
    }).pipe(Effect.provide(TestDatabase.layer())))
})

describe("a handler", () => {
  it.live("keeps a checkpoint that the next attempt finds", () =>
    Effect.gen(function*() {
      const Import = Job.make("import", { payload: { rows: Schema.Int } })
      const Checkpoint = Schema.Struct({ metadata: Schema.Struct({ rowsDone: Schema.Int }) })
      const gate = yield* Effect.makeLatch(false)
      const began: Array<unknown> = []
      const importer = Awa.builder.pipe(
        Awa.queue("default"),
        Awa.handle(Import, ({ rows }, { attempt, flushProgress, job, setProgress, updateMetadata }) =>
          Effect.gen(function*() {
            began.push(job.progress)
            if (attempt === 1) {
              yield* setProgress(40, "reading")
              yield* updateMetadata({ rowsDone: 4, file: "a.csv" })
              yield* flushProgress
              yield* gate.await
              yield* updateMetadata({ rowsDone: 5 })
              return JobResult.retryAfter("10 millis")
            }
            const { metadata } = yield* Schema.decodeUnknown(Checkpoint)(job.progress)
            assert.strictEqual(metadata.rowsDone, 5)
            yield* setProgress(100 * rows)
            return JobResult.completed
          }))
      )
      yield* Effect.gen(function*() {
        const { id } = yield* Import.enqueue({ rows: 10 })
        const running = yield* eventually(id, ({ progress }) =>
          progress !== null)
        assert.deepStrictEqual(running.progress, {
          percent: 40,
          message: "reading",
          metadata: { rowsDone: 4, file: "a.csv" }
        })
        yield* gate.open
        const { attempt, state } = yield* ended(id)
        assert.deepStrictEqual({ attempt, state }, { attempt: 2, state: "completed" })
        assert.deepStrictEqual(began, [
          undefined,
          { percent: 40, message: "reading", metadata: { rowsDone: 5, file: "a.csv" } }
        ])
      }).pipe(Effect.provide(AwaLive(importer)))
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.live("decides how its job goes on", () =>
    Effect.gen(function*() {
      class NoSuchAddress extends Data.TaggedError("NoSuchAddress")<{ readonly to: string }> {}
      const Send = Job.make("send", { payload: { to: Schema.String } })
      const Told = Schema.Literal("cancel", "terminal", "mapped", "die", "fail", "throw", "interrupt", "snooze", "last")
      const Do = Job.make("do", { payload: { what: Told } })
      const doer = Awa.builder.pipe(
        Awa.queue("default"),
        Awa.handle(Send, ({ to }) => Effect.fail(new NoSuchAddress({ to }))),
        Awa.handle(Do, ({ what }): Effect.Effect<JobResult.JobResult, JobError.JobError | string> => {
          switch (what) {
            case "cancel":
              return JobResult.cancel("not wanted any more")
            case "terminal":
              return JobError.terminal("gone for good")
            case "mapped":
              return Effect.catchTag(
                Effect.fail(new NoSuchAddress({ to: "ada" })),
                "NoSuchAddress",
                ({ to }) => JobError.terminal(`no mailbox ${to}`)
              )
            case "die":
              return Effect.die(new TypeError("a bug"))
            case "throw":
              throw new RangeError("thrown before there was an effect")
            case "interrupt":
              return Effect.interrupt
            case "snooze":
              return JobResult.snooze("1 hour")
            default:
              return Effect.fail("just so")
          }
        })
      )
      yield* Effect.gen(function*() {
        const start = (what: typeof Told.Type, maxAttempts = 25) =>
          Effect.map(Do.enqueue({ what }, { maxAttempts }), ({ id }) => id)

        const cancelled = yield* Effect.flatMap(start("cancel"), ended)
        assert.strictEqual(cancelled.state, "cancelled")
        assert.match(cancelled.errors[0]!.error, /not wanted any more/)

        for (const [what, message] of [["terminal", /gone for good/], ["mapped", /no mailbox ada/]] as const) {
          const { attempt, errors, state } = yield* Effect.flatMap(start(what), ended)
          assert.deepStrictEqual({ attempt, state }, { attempt: 1, state: "failed" })
          assert.match(errors[0]!.error, message)
          assert.isTrue(errors[0]!.terminal)
        }

        const failures = [
          ["die", /TypeError: a bug/],
          ["throw", /RangeError: thrown before/],
          ["interrupt", /interrupted itself/],
          ["fail", /just so/]
        ] as const
        for (const [what, message] of failures) {
          const { attempt, errors, state } = yield* Effect.flatMap(start(what), failedOnce)
          assert.deepStrictEqual({ attempt, state }, { attempt: 1, state: "retryable" }, what)
          assert.match(errors[0]!.error, message)
        }

        const unsent = yield* Effect.flatMap(Send.enqueue({ to: "ada@example.com" }), ({ id }) => failedOnce(id))
        assert.match(unsent.errors[0]!.error, /NoSuchAddress/)
        assert.match(unsent.errors[0]!.error, /ada@example.com/)

        const exhausted = yield* Effect.flatMap(start("last", 1), ended)
        assert.deepInclude(exhausted, { attempt: 1, state: "failed" })

        const snoozed = yield* Effect.flatMap(start("snooze"), (id) =>
          eventually(id, ({ state }) => state === "scheduled"))
        assert.deepInclude(snoozed, { attempt: 0, errors: [] })
      }).pipe(Effect.provide(AwaLive(doer)))
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.live("is spared jobs it cannot read, and kinds nobody knows", () =>
    Effect.gen(function*() {
      const Strict = Job.make("resize", { payload: { width: Schema.Int } })
      const Loose = Job.make("resize", { payload: { width: Schema.String } })
      const Unknown = Job.make("unknown", { payload: {} })
      let ran = 0
      const resizer = Awa.builder.pipe(
        Awa.queue("default"),
        Awa.handle(Strict, () => Effect.sync(() => void ran++))
      )
      const bad = yield* Loose.enqueue({ width: "wide" })
      const unknown = yield* Unknown.enqueue({})
      yield* Effect.gen(function*() {
        const undecodable = yield* ended(bad.id)
        assert.deepInclude(undecodable, { attempt: 1, state: "failed" })
        assert.match(undecodable.errors[0]!.error, /does not fit the job's schema[\s\S]*width/)
        assert.isTrue(undecodable.errors[0]!.terminal)
        const waiting = yield* failedOnce(unknown.id)
        assert.deepInclude(waiting, { attempt: 1, state: "retryable" })
        assert.match(waiting.errors[0]!.error, /unknown job kind/)
      }).pipe(Effect.provide(AwaLive(resizer)))
      yield* Effect.gen(function*() {
        const { id } = yield* Unknown.enqueue({})
        const failed = yield* ended(id)
        assert.deepInclude(failed, { attempt: 1, state: "failed" })
        assert.match(failed.errors[0]!.error, /unknown job kind/)
      }).pipe(Effect.provide(AwaLive(resizer.pipe(Awa.unknownKinds("fail")))))
      assert.strictEqual(ran, 0)
    }).pipe(Effect.provide(TestDatabase.layer())))
})
