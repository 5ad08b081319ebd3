import type { Errors } from "@awa/model"
import { Job, PartitionedQueue } from "@awa/model"
import type { StorageEngine } from "@awa/model/StorageEngine"
import { Awa, type BuildError, JobContext, JobError, JobResult } from "@awa/worker"
import type { SqlClient } from "@effect/sql"
import type { PgClient } from "@effect/sql-pg"
import { Context, Data, Effect, type Layer, Schema } from "effect"
import { describe, expect, test } from "tstyche"

class Mailer extends Context.Tag("Mailer")<Mailer, { readonly send: (to: string) => Effect.Effect<void, Gone> }>() {}
class Metrics extends Context.Tag("Metrics")<Metrics, { readonly hit: Effect.Effect<void> }>() {}
class Cipher extends Context.Tag("Cipher")<Cipher, { readonly decode: (text: string) => string }>() {}
class Gone extends Data.TaggedError("Gone") {}

const SendEmail = Job.make("send_email", { payload: { to: Schema.String, at: Schema.Date } })
const Count = Job.make("count", { payload: Schema.Struct({ n: Schema.NumberFromString }) })
const Secret = Job.make("secret", {
  payload: Schema.transformOrFail(Schema.String, Schema.String, {
    strict: true,
    decode: (text) => Effect.map(Cipher, ({ decode }) => decode(text)),
    encode: Effect.succeed
  })
})

type Database = SqlClient.SqlClient | PgClient.PgClient
type Failure = BuildError.BuildError | Awa.StartError

describe("builder", () => {
  test("what handlers require adds up, without what an attempt brings", () => {
    const worker = Awa.builder.pipe(
      Awa.queue("email", { maxWorkers: 20, deadline: "30 seconds" }),
      Awa.handle(SendEmail, ({ at, to }, context) =>
        Effect.gen(function*() {
          const mailer = yield* Mailer
          yield* mailer.send(to + at.getTime())
          yield* context.setProgress(100)
          yield* (yield* JobContext.JobContext).updateMetadata({ page: 1 })
          yield* Effect.addFinalizer(() => Effect.void)
        })),
      Awa.handle(Count, ({ n }) => Effect.flatMap(Metrics, ({ hit }) => Effect.as(hit, JobResult.snooze(n)))),
      Awa.handle(Secret, () => Effect.void)
    )
    expect(worker).type.toBe<Awa.Builder<never, Mailer | Metrics | Cipher, "send_email" | "count" | "secret">>()
    expect(Awa.layer(worker)).type.toBe<Layer.Layer<Awa.Awa, Failure, Mailer | Metrics | Cipher | Database>>()
  })

  test("a partitioned queue changes nothing of the type", () => {
    const worker = Awa.builder.pipe(Awa.partitionedQueue(PartitionedQueue.unsafeMake("email", 2), { maxWorkers: 1 }))
    expect(worker).type.toBe<Awa.Builder<never, never>>()
    expect(Awa.partitionedQueue).type.not.toBeCallableWith("email")
    expect(Awa.partitionedQueue).type.not.toBeCallableWith(PartitionedQueue.make("email", 2))
  })

  test("a storage engine brings its own failures and requirements", () => {
    const storage = null as unknown as Layer.Layer<StorageEngine, "broken", SqlClient.SqlClient | Metrics>
    const worker = Awa.builder.pipe(Awa.queue("email"), Awa.storage(storage))
    expect(worker).type.toBe<Awa.Builder<"broken", Metrics>>()
    expect(Awa.layer(worker)).type.toBe<Layer.Layer<Awa.Awa, Failure | "broken", Metrics | Database>>()
  })

  test("a layer that lacks a service does not pass for one that has it", () => {
    const live = Awa.layer(Awa.builder.pipe(Awa.handle(Count, () => Effect.asVoid(Metrics))))
    expect<Layer.Layer<Awa.Awa, Failure, Database>>().type.not.toBeAssignableFrom(live)
  })
})

describe("handler", () => {
  test("gets the decoded payload", () => {
    Awa.handle(SendEmail, (payload) => {
      expect(payload).type.toBe<{ readonly to: string; readonly at: Date }>()
      return Effect.void
    })
    expect(Awa.handle).type.not.toBeCallableWith(Count, ({ n }: { readonly n: string }) => Effect.succeed(void n))
  })

  test("answers nothing or a JobResult", () => {
    expect(Awa.handle).type.toBeCallableWith(Count, () => Effect.void)
    expect(Awa.handle).type.toBeCallableWith(Count, () => Effect.succeed(JobResult.completed))
    expect(Awa.handle).type.toBeCallableWith(Count, () => JobResult.retryAfter("1 second"))
    expect(Awa.handle).type.toBeCallableWith(Count, () => JobError.terminal("no"))
    expect(Awa.handle).type.not.toBeCallableWith(Count, () => Effect.succeed(42))
    expect(Awa.handle).type.not.toBeCallableWith(Count, async () => {})
  })

  test("may turn failures into results and results into failures", () => {
    const handler = (error: Effect.Effect<void, Gone>) =>
      error.pipe(Effect.catchTag("Gone", () => JobResult.retryAfter("1 minute")))
    expect(handler).type.toBe<
      (error: Effect.Effect<void, Gone>) => Effect.Effect<void | JobResult.JobResult>
    >()
  })
})

describe("options", () => {
  test("have known names and types", () => {
    expect(Awa.queue).type.not.toBeCallableWith("email", { maxWorker: 1 })
    expect(Awa.queue).type.not.toBeCallableWith("email", { maxWorkers: "1" })
    expect(Awa.queue).type.toBeCallableWith("email", { priorityAging: null })
    expect(Awa.queue).type.not.toBeCallableWith("email", { priorityAging: "soon" })
    expect(Awa.heartbeat).type.not.toBeCallableWith({ interval: "soon" })
    expect(Awa.claimDurability).type.not.toBeCallableWith("maybe")
    expect(Awa.unknownKinds).type.not.toBeCallableWith("ignore")
  })
})

describe("errors", () => {
  test("of starting are those of the schema, the connection and the storage", () => {
    expect<Awa.StartError["_tag"]>().type.toBe<
      | Errors.DatabaseFailure["_tag"]
      | "InvalidSetting"
      | "SchemaOutdated"
      | "SchemaTooNew"
      | "MigrationChanged"
      | "ForeignDatabase"
      | "StorageInconsistent"
    >()
  })
})
