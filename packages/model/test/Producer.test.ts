import { Database, type InsertOptions, Job, JobRow, Producer, TimeSource } from "@awa/model"
import { SqlClient, Statement } from "@effect/sql"
import { assert, layer } from "@effect/vitest"
import {
  Cause,
  ConfigProvider,
  Context,
  DateTime,
  Effect,
  Exit,
  FastCheck,
  Option,
  Schema,
  TestClock,
  TestContext,
  Tracer
} from "effect"
import { MigratedLive, stored } from "./support/database.js"

const SendEmail = Job.make("send_email", {
  payload: { to: Schema.String, subject: Schema.optional(Schema.String) },
  queue: "email",
  maxAttempts: 5
})
const Anything = Job.make("anything", { payload: Schema.Unknown })
const Dated = Job.make("dated", {
  payload: Schema.Struct({ at: Schema.Date, n: Schema.NumberFromString }),
  priority: 3
})

const count = Effect.map(
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql<{ n: number }>`select count(*)::int as n from awa.jobs`),
  ([row]) => row!.n
)

/** The values of every enqueue statement an effect sends. */
const statementsOf = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    const sent: Array<string> = []
    return effect.pipe(
      Statement.withTransformer((statement) => {
        const [text, values] = statement.compile()
        if (text.includes(".enqueue(")) sent.push(String(values[0]))
        if (text.includes(".enqueue_alike(")) sent.push(String(values[1]))
        return Effect.succeed(statement)
      }),
      Effect.exit,
      Effect.map((exit) => ({ exit, sent }))
    )
  })

layer(MigratedLive(), { excludeTestServices: true })("Producer", (it) => {
  it.effect("stores a job and answers its row", () =>
    Effect.gen(function*() {
      const job = yield* SendEmail.enqueue({ to: "ada@example.com" }, {
        priority: 1,
        tags: ["a", "b"],
        metadata: { x: 1 }
      })
      assert.instanceOf(job, JobRow.JobRow)
      const { createdAt, id, runAt, ...rest } = job
      assert.deepStrictEqual(runAt, createdAt)
      assert.deepStrictEqual(rest, {
        kind: "send_email",
        queue: "email",
        args: { to: "ada@example.com" },
        state: "available",
        priority: 1,
        attempt: 0,
        maxAttempts: 5,
        runLease: 0n,
        metadata: { x: 1 },
        tags: ["a", "b"],
        errors: []
      })
      assert.deepStrictEqual(yield* stored([id]), [{
        id: String(id),
        kind: "send_email",
        queue: "email",
        args: { to: "ada@example.com" },
        state: "available",
        priority: 1,
        max_attempts: 5,
        run_at: runAt,
        created_at: createdAt,
        metadata: { x: 1 },
        tags: ["a", "b"]
      }])
    }))

  it.effect("schedules what is to run later", () =>
    Effect.gen(function*() {
      const future = new Date("2100-01-02T03:04:05.678Z")
      const expected: ReadonlyArray<readonly [InsertOptions.InsertOptions, string]> = [
        [{ runAt: future }, "scheduled"],
        [{ runAt: DateTime.unsafeMake(future) }, "scheduled"],
        [{ runAt: new Date(0) }, "available"],
        [{ delay: "1 hour" }, "scheduled"],
        [{ delay: 0 }, "available"]
      ]
      for (const [options, state] of expected) {
        const job = yield* SendEmail.enqueue({ to: "x" }, options)
        const [row] = yield* stored([job.id])
        assert.strictEqual(job.state, state)
        assert.deepStrictEqual([row!.state, row!.run_at], [job.state, job.runAt])
        if (options.runAt !== undefined) {
          assert.strictEqual(job.runAt.getTime(), Number(DateTime.toEpochMillis(DateTime.unsafeMake(options.runAt))))
        }
        if (options.delay !== undefined) {
          assert.strictEqual(job.runAt.getTime() - job.createdAt.getTime(), options.delay === 0 ? 0 : 3_600_000)
        }
      }
    }))

  it.effect("delays jobs of a bulk call, each by its own time", () =>
    Effect.gen(function*() {
      const ids = yield* Anything.enqueueMany([0, 1, 2, 3], (n) =>
        n === 2 ? undefined : { delay: `${n as number} minutes` })
      const rows = yield* stored(ids)
      assert.deepStrictEqual(
        rows.map((row) => [row.args, row.state, row.run_at.getTime() - row.created_at.getTime()]),
        [[0, "available", 0], [1, "scheduled", 60_000], [2, "available", 0], [3, "scheduled", 180_000]]
      )
    }))

  it.effect("replaces defaults option by option", () =>
    Effect.gen(function*() {
      const Defaulted = Job.make("defaulted", {
        payload: Schema.Null,
        queue: "q",
        priority: 4,
        delay: "1 day",
        tags: ["t"],
        metadata: { a: 1 }
      })
      const plain = yield* Defaulted.enqueue(null)
      assert.deepInclude(plain, { queue: "q", priority: 4, state: "scheduled", tags: ["t"], metadata: { a: 1 } })
      const other = yield* Defaulted.enqueue(null, {
        queue: undefined,
        priority: 1,
        runAt: new Date(0),
        tags: [],
        metadata: { b: 2 }
      })
      assert.deepInclude(other, { queue: "q", priority: 1, state: "available", tags: [], metadata: { b: 2 } })
      assert.deepInclude((yield* stored([other.id]))[0], { queue: "q", priority: 1, tags: [], metadata: { b: 2 } })
    }))

  it.effect("stores payloads that come back deep-equal", () =>
    Effect.gen(function*() {
      const payloads = FastCheck.sample(FastCheck.jsonValue({ maxDepth: 5 }), { numRuns: 300, seed: 1 })
      payloads.push(JSON.parse("{\"__proto__\":{\"a\":[null]}}"), 5e-324, 1e308, "\u2028\\u0000", "x".repeat(1_000_000))
      const rows = yield* stored(yield* Anything.enqueueMany(payloads))
      rows.forEach((row, i) => assert.deepStrictEqual(row.args, JSON.parse(JSON.stringify(payloads[i]))))
    }))

  it.effect("encodes with the job's schema", () =>
    Effect.gen(function*() {
      const job = yield* Dated.enqueue({ at: new Date(0), n: 5 })
      assert.deepStrictEqual((yield* stored([job.id]))[0]!.args, { at: "1970-01-01T00:00:00.000Z", n: "5" })
      assert.deepStrictEqual(job.args, { at: "1970-01-01T00:00:00.000Z", n: "5" })
    }))

  class Prefix extends Context.Tag("Prefix")<Prefix, string>() {}
  const Prefixed = Job.make("prefixed", {
    payload: {
      name: Schema.transformOrFail(Schema.String, Schema.String, {
        strict: true,
        decode: (text) => Effect.map(Prefix, (prefix) => text.slice(prefix.length)),
        encode: (text) => Effect.map(Effect.zipLeft(Prefix, Effect.yieldNow()), (prefix) => prefix + text)
      })
    }
  })

  it.effect("encodes with services and asynchronously", () =>
    Effect.gen(function*() {
      const one = yield* Prefixed.enqueue({ name: "a" })
      const ids = yield* Producer.enqueueMany([
        Prefixed.request({ name: "b" }),
        SendEmail.request({ to: "c" }),
        Prefixed.request({ name: "d" })
      ])
      const rows = yield* stored([one.id, ...ids])
      assert.deepStrictEqual(rows.map(({ args }) => args), [{ name: "p-a" }, { name: "p-b" }, { to: "c" }, {
        name: "p-d"
      }])
    }).pipe(Effect.provideService(Prefix, "p-")))

  it.effect("refuses what is invalid and sends nothing", () =>
    Effect.gen(function*() {
      const before = yield* count
      const refused: ReadonlyArray<readonly [Effect.Effect<unknown, unknown, SqlClient.SqlClient>, object]> = [
        [SendEmail.enqueue({ to: 1 as never }), { kind: "send_email", field: "payload.to" }],
        [SendEmail.enqueue({ to: "a\0" }), { field: "payload.to" }],
        [SendEmail.enqueue({ to: "x" }, { priority: 9 as never }), { field: "priority" }],
        [SendEmail.enqueue({ to: "x" }, { run_at: 1 } as never), { field: "run_at" }],
        [Anything.enqueue(undefined), { kind: "anything", field: "payload" }],
        [Anything.enqueue({ a: [1n] }), { field: "payload.a[0]" }],
        [Anything.enqueueMany([1, 2, "\ud800", "\0"]), { field: "payload", index: 2 }],
        [Anything.enqueueMany([1, 2], (n) => ({ queue: n === 2 ? "" : "q" })), { field: "queue", index: 1 }],
        [
          Producer.enqueueMany([
            SendEmail.request({ to: "x" }),
            Anything.request(1),
            Anything.request({ b: () => 1, c: 1n })
          ]),
          { kind: "anything", field: "payload.c", index: 2 }
        ],
        [Producer.enqueue(Anything.request("\0")), { field: "payload" }]
      ]
      for (const [effect, expected] of refused) {
        const { exit, sent } = yield* statementsOf(effect)
        assert.strictEqual(sent.length, 0)
        const error = Option.getOrThrow(Option.flatMap(Exit.causeOption(exit), Cause.failureOption))
        assert.deepInclude(error, { _tag: "InvalidJob", ...expected })
      }
      assert.strictEqual(yield* count, before)
    }))

  it.effect("leaves the caller's transaction usable when it refuses", () =>
    Effect.gen(function*() {
      const id = yield* Database.transaction(Effect.gen(function*() {
        yield* Effect.flip(SendEmail.enqueue({ to: "\0" }))
        return (yield* SendEmail.enqueue({ to: "fine" })).id
      }))
      assert.strictEqual((yield* stored([id])).length, 1)
    }))

  it.effect("answers ids in the order of the input", () =>
    Effect.gen(function*() {
      const ids = yield* Producer.enqueueMany(Array.from({ length: 100 }, (_, i) =>
        i % 3 === 0
          ? SendEmail.request({ to: `${i}` }, { priority: 1 })
          : Anything.request(i, i % 3 === 1 ? { runAt: new Date("2100-01-01") } : { queue: `q${i % 5}` })))
      assert.deepStrictEqual(ids, [...ids].sort((a, b) => Number(a - b)))
      const rows = yield* stored(ids)
      rows.forEach((row, i) => assert.deepStrictEqual(row.args, i % 3 === 0 ? { to: `${i}` } : i))
    }))

  it.effect("needs no statement for no jobs", () =>
    Effect.gen(function*() {
      const { exit, sent } = yield* statementsOf(Effect.zip(Anything.enqueueMany([]), Producer.enqueueMany([])))
      assert.deepStrictEqual(exit, Exit.succeed([[], []]))
      assert.strictEqual(sent.length, 0)
    }))

  it.effect("puts 10,000 jobs in one statement", () =>
    Effect.gen(function*() {
      const { exit, sent } = yield* statementsOf(Anything.enqueueMany(Array.from({ length: 10_000 }, (_, i) => i)))
      assert.strictEqual(sent.length, 1)
      const rows = yield* stored(yield* exit)
      assert.deepStrictEqual(rows.map(({ args }) => args), Array.from({ length: 10_000 }, (_, i) => i))
    }))

  it.effect("splits a large call by number and by size", () =>
    Effect.gen(function*() {
      const many = yield* statementsOf(Anything.enqueueMany(Array.from({ length: 25_000 }, (_, i) => i)))
      assert.deepStrictEqual(many.sent.map((jobs) => jobs.split("\u001e").length), [10_000, 10_000, 5_000])
      const ids = yield* many.exit
      assert.strictEqual(new Set(ids).size, 25_000)
      assert.deepStrictEqual((yield* stored([ids[0]!, ids[24_999]!])).map(({ args }) => args), [0, 24_999])
      const large = yield* statementsOf(Anything.enqueueMany(Array.from({ length: 5 }, () => "x".repeat(3_000_000))))
      assert.deepStrictEqual(large.sent.map((jobs) => jobs.split("\u001e").length), [2, 2, 1])
      assert.isTrue(Exit.isSuccess(large.exit))
      const mixed = yield* statementsOf(
        Producer.enqueueMany(Array.from({ length: 12_000 }, (_, i) => Anything.request(i, { priority: i % 2 ? 1 : 3 })))
      )
      assert.deepStrictEqual(mixed.sent.map((jobs) => JSON.parse(jobs).length), [10_000, 2_000])
      assert.isTrue(Exit.isSuccess(mixed.exit))
    }))

  it.effect("stores all of a large call or nothing", () =>
    Effect.gen(function*() {
      const before = yield* count
      const sql = yield* SqlClient.SqlClient
      let statements = 0
      // The third statement finds its transaction aborted.
      const exit = yield* Anything.enqueueMany(Array.from({ length: 25_000 }, (_, i) => i)).pipe(
        Statement.withTransformer((statement) =>
          statement.compile()[0].includes(".enqueue_alike(") && ++statements === 3
            ? Effect.as(Effect.exit(Statement.withTransformerDisabled(sql`select 1/0`)), statement)
            : Effect.succeed(statement)
        ),
        Effect.exit
      )
      const error = Option.getOrThrow(Option.flatMap(Exit.causeOption(exit), Cause.failureOption))
      assert.deepInclude(error, { _tag: "DatabaseError", sqlState: "25P02" })
      assert.strictEqual(yield* count, before)
    }))

  for (const isolation of ["read committed", "repeatable read", "serializable"] as const) {
    it.effect(`joins the caller's transaction at ${isolation}`, () =>
      Effect.gen(function*() {
        const before = yield* count
        const both = Effect.zip(SendEmail.enqueue({ to: "x" }), Anything.enqueueMany([1, 2]))
        const [job, ids] = yield* Database.transaction(Effect.zipRight(count, both), { isolation })
        assert.strictEqual((yield* stored([job.id, ...ids])).length, 3)
        yield* Effect.flip(Database.transaction(Effect.zipRight(both, Effect.fail("no")), { isolation }))
        const kept = yield* Database.transaction(
          Effect.gen(function*() {
            yield* Effect.flip(Database.transaction(Effect.zipRight(both, Effect.fail("no"))))
            return yield* SendEmail.enqueue({ to: "y" })
          }),
          { isolation }
        )
        assert.strictEqual((yield* stored([kept.id])).length, 1)
        assert.strictEqual(yield* count, before + 4)
      }))
  }

  it.effect("lets the test clock decide", () =>
    Effect.gen(function*() {
      yield* TestClock.setTime(1_000_000)
      const job = yield* SendEmail.enqueue({ to: "x" }, { delay: "1 minute" })
      assert.deepInclude(job, { createdAt: new Date(1_000_000), runAt: new Date(1_060_000), state: "scheduled" })
      const due = yield* SendEmail.enqueue({ to: "x" }, { runAt: new Date(1_000_000) })
      assert.strictEqual(due.state, "available")
      assert.deepStrictEqual((yield* stored([job.id, due.id])).map((row) => [row.state, row.created_at.getTime()]), [
        ["scheduled", 1_000_000],
        ["available", 1_000_000]
      ])
    }).pipe(Effect.provide(TimeSource.TimeSource.layerFromClock), Effect.provide(TestContext.TestContext)))

  const traceparent = (job: JobRow.JobRow) => job.metadata["awa:traceparent"]

  it.effect("hands the trace on to the job", () =>
    Effect.gen(function*() {
      const [span, job] = yield* Effect.zip(Effect.currentSpan, SendEmail.enqueue({ to: "x" }, { metadata: { a: 1 } }))
        .pipe(
          Effect.withSpan("request")
        )
      assert.match(String(traceparent(job)), new RegExp(`^00-${span.traceId}-[0-9a-f]{16}-01$`))
      assert.deepStrictEqual((yield* stored([job.id]))[0]!.metadata, job.metadata)

      const ids = yield* Anything.enqueueMany([1, 2], { tags: ["t"] }).pipe(Effect.withSpan("request"))
      const [first, second] = yield* stored(ids)
      assert.deepStrictEqual(first!.metadata, second!.metadata)
      assert.hasAllKeys(first!.metadata, ["awa:traceparent"])

      const metadata = { "awa:traceparent": "00-11111111111111111111111111111111-2222222222222222-00" }
      const own = yield* SendEmail.enqueue({ to: "x" }, { metadata }).pipe(Effect.withSpan("request"))
      assert.deepStrictEqual(own.metadata, metadata)
    }))

  it.effect("hands on no trace where there is none", () =>
    Effect.gen(function*() {
      const untraced = yield* SendEmail.enqueue({ to: "x" })
      assert.isUndefined(traceparent(untraced))
      const transaction = Database.transaction(Database.transaction(SendEmail.enqueue({ to: "x" })))
      assert.isUndefined(traceparent(yield* transaction))
      assert.isString(traceparent(yield* Effect.withSpan(transaction, "request")))
      const disabled = yield* SendEmail.enqueue({ to: "x" }).pipe(
        Effect.withSpan("request"),
        Effect.withTracerEnabled(false)
      )
      assert.isUndefined(traceparent(disabled))
      for (const value of ["off", " FALSE ", "0", "on"]) {
        const job = yield* SendEmail.enqueue({ to: "x" }).pipe(
          Effect.withSpan("request"),
          Effect.withConfigProvider(ConfigProvider.fromMap(new Map([["AWA_TRACE_CAPTURE", value]])))
        )
        assert.strictEqual(traceparent(job) !== undefined, value === "on")
      }
    }))

  it.effect("opens a producer span under a tracer", () =>
    Effect.gen(function*() {
      const spans: Array<Tracer.Span> = []
      const ids = { traceId: "0af7651916cd43dd8448eb211c80319c", spanId: "b7ad6b7169203331" }
      const make = (over: object): Tracer.Tracer =>
        Tracer.make({
          span: (name, parent, context, links, _startTime, kind) => {
            const attributes = new Map<string, unknown>()
            const span: Tracer.Span = {
              _tag: "Span",
              ...ids,
              name,
              parent,
              context,
              links,
              kind,
              attributes,
              sampled: true,
              status: { _tag: "Started", startTime: 0n },
              attribute: (key, value) => void attributes.set(key, value),
              addLinks: () => {},
              event: () => {},
              end: () => {},
              ...over
            }
            spans.push(span)
            return span
          },
          context: (f) => f()
        })
      const job = yield* SendEmail.enqueue({ to: "x" }).pipe(Effect.withTracer(make({ sampled: false })))
      assert.strictEqual(traceparent(job), `00-${ids.traceId}-${ids.spanId}-00`)
      const span = spans.find(({ name }) => name === "send email")!
      assert.strictEqual(span.kind, "producer")
      assert.deepStrictEqual(Object.fromEntries(span.attributes), {
        "messaging.system": "awa",
        "messaging.operation.type": "send",
        "messaging.destination.name": "email",
        "job.kind": "send_email",
        "job.queue": "email",
        "job.count": 1
      })
      yield* Anything.enqueueMany([1, 2, 3]).pipe(Effect.withTracer(make({})))
      assert.deepInclude(Object.fromEntries(spans.find(({ name }) => name === "send")!.attributes), {
        "messaging.batch.message_count": 3,
        "job.count": 3
      })
      const odd = yield* SendEmail.enqueue({ to: "x" }).pipe(Effect.withTracer(make({ traceId: "odd" })))
      assert.isUndefined(traceparent(odd))
    }))
})
