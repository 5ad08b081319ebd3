import { type Errors, type InsertOptions, Job, type JobRow, Producer, Unique } from "@awa/model"
import type { SqlClient } from "@effect/sql"
import { Context, type Effect, type Option, Schema } from "effect"
import { describe, expect, test } from "tstyche"

class Keys extends Context.Tag("Keys")<Keys, string>() {}
declare const Secret: Schema.Schema<string, string, Keys>

const SendEmail = Job.make("send_email", { payload: { to: Schema.String, at: Schema.Date }, queue: "email" })
const Count = Job.make("count", { payload: Schema.Struct({ n: Schema.NumberFromString }) })
const Sealed = Job.make("sealed", { payload: { text: Secret } })

type Failures = Errors.InvalidJob | Errors.UniqueConflict | Errors.DatabaseFailure

describe("Job.make", () => {
  test("takes fields or a schema and keeps kind, payload, encoding and requirements", () => {
    expect(SendEmail).type.toBe<
      Job.Job<
        "send_email",
        { readonly to: string; readonly at: Date },
        { readonly to: string; readonly at: string },
        never
      >
    >()
    expect(Count).type.toBe<Job.Job<"count", { readonly n: number }, { readonly n: string }, never>>()
    expect(Sealed).type.toBe<Job.Job<"sealed", { readonly text: string }, { readonly text: string }, Keys>>()
    expect<Job.Payload<typeof Count>>().type.toBe<{ readonly n: number }>()
    expect<Job.Encoded<typeof Count>>().type.toBe<{ readonly n: string }>()
    expect<Job.Context<typeof Sealed>>().type.toBe<Keys>()
    expect<Job.Context<typeof Count>>().type.toBe<never>()
  })

  test("every job is any job", () => {
    expect(SendEmail).type.toBeAssignableTo<Job.Any>()
    expect(Sealed).type.toBeAssignableTo<Job.Any>()
    expect({}).type.not.toBeAssignableTo<Job.Any>()
  })

  test("refuses options that are not", () => {
    expect(Job.make).type.not.toBeCallableWith("k", { payload: {}, priority: 5 })
    expect(Job.make).type.not.toBeCallableWith("k", { payload: {}, quue: "x" })
    expect(Job.make).type.not.toBeCallableWith("k", {})
  })
})

describe("enqueue", () => {
  test("requires a client and what the payload's schema requires", () => {
    expect(SendEmail.enqueue({ to: "a", at: new Date(0) }, { priority: 1 })).type.toBe<
      Effect.Effect<JobRow.JobRow, Failures, SqlClient.SqlClient>
    >()
    expect(Sealed.enqueueMany([{ text: "a" }])).type.toBe<
      Effect.Effect<ReadonlyArray<JobRow.JobId>, Failures, SqlClient.SqlClient | Keys>
    >()
    expect(SendEmail.enqueueMany).type.toBeCallableWith(
      new Set([{ to: "a", at: new Date(0) }]),
      ({ to }: { to: string }) => ({ queue: to })
    )
  })

  test("refuses other payloads and options", () => {
    expect(SendEmail.enqueue).type.not.toBeCallableWith({ to: 1, at: new Date(0) })
    expect(SendEmail.enqueue).type.not.toBeCallableWith({ to: "a" })
    expect(Count.enqueue).type.not.toBeCallableWith({ n: "1" })
    expect(Count.enqueue).type.not.toBeCallableWith({ n: 1 }, { priority: 0 })
    expect(Count.enqueue).type.not.toBeCallableWith({ n: 1 }, { runAt: "2030-01-01" })
    expect(Count.enqueue).type.toBeCallableWith({ n: 1 }, { queue: undefined } satisfies InsertOptions.InsertOptions)
  })
})

describe("Producer", () => {
  test("adds up what the requests require", () => {
    const count = Count.request({ n: 1 })
    const sealed = Sealed.request({ text: "a" })
    expect(count).type.toBe<Job.Request<"count", never>>()
    expect(Producer.enqueue(sealed)).type.toBe<Effect.Effect<JobRow.JobRow, Failures, SqlClient.SqlClient | Keys>>()
    expect(Producer.enqueueMany([count, count])).type.toBe<
      Effect.Effect<ReadonlyArray<JobRow.JobId>, Failures, SqlClient.SqlClient>
    >()
    expect(Producer.enqueueMany([count, sealed])).type.toBe<
      Effect.Effect<ReadonlyArray<JobRow.JobId>, Failures, SqlClient.SqlClient | Keys>
    >()
    expect(Producer.enqueueMany([])).type.toBe<
      Effect.Effect<ReadonlyArray<JobRow.JobId>, Failures, SqlClient.SqlClient>
    >()
    expect(Producer.insertStatement).type.toBeCallableWith(count)
    expect(Producer.insertStatement).type.toBeCallableWith([count, count])
    expect(Producer.insertStatement).type.not.toBeCallableWith(sealed)
  })
})

describe("unique", () => {
  test("chooses from the fields of the payload as it is stored", () => {
    const payload = { to: Schema.String, copy: Schema.optional(Schema.String) }
    expect(Job.make).type.toBeCallableWith("k", { payload, unique: { byPayload: ["to", "copy"], period: "1 day" } })
    expect(Job.make).type.not.toBeCallableWith("k", { payload, unique: { byPayload: ["too"] } })
    expect(Job.make).type.not.toBeCallableWith("k", { payload, unique: { byKind: false } })
    expect(Job.make).type.not.toBeCallableWith("k", { payload, unique: { bucket: 1 } })
    expect(Job.make).type.not.toBeCallableWith("k", { payload, unique: { states: ["done"] } })
    expect(Count.enqueue).type.toBeCallableWith({ n: 1 }, { unique: { byPayload: ["n"], bucket: 1n } })
    expect(Count.enqueue).type.toBeCallableWith({ n: 1 }, { unique: true })
    expect(Count.enqueue).type.not.toBeCallableWith({ n: 1 }, { unique: { byPayload: ["m"] } })
    expect(Count.request).type.not.toBeCallableWith({ n: 1 }, { unique: { byPayload: ["m"] } })
    expect<Job.Field<{ readonly a: 1 } | { readonly b: 2 }>>().type.toBe<"a" | "b">()
    expect<Job.Field<unknown>>().type.toBe<string>()
    expect<Job.Field<ReadonlyArray<string>>>().type.toBe<never>()
  })

  test("is answered job by job, without a conflict", () => {
    type Each = Effect.Effect<
      ReadonlyArray<Unique.Answer>,
      Errors.InvalidJob | Errors.DatabaseFailure,
      SqlClient.SqlClient
    >
    expect(Count.enqueueEach([{ n: 1 }], { unique: true })).type.toBe<Each>()
    expect(Producer.enqueueEach([Count.request({ n: 1 })])).type.toBe<Each>()
    expect<Unique.Answer>().type.toBe<
      | { readonly _tag: "Inserted"; readonly id: JobRow.JobId }
      | { readonly _tag: "Duplicate"; readonly holder: JobRow.JobId }
    >()
  })

  test("asks who holds a key", () => {
    expect(Unique.holder(Sealed.request({ text: "a" }))).type.toBe<
      Effect.Effect<
        Option.Option<JobRow.JobId>,
        Errors.InvalidJob | Errors.DatabaseFailure,
        SqlClient.SqlClient | Keys
      >
    >()
    expect(Unique.keyOf(Count.request({ n: 1 }))).type.toBe<Effect.Effect<Option.Option<string>, Errors.InvalidJob>>()
  })
})
