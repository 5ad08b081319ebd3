import { type Errors, Job, JobAdmin, type JobRow } from "@awa/model"
import type { SqlClient } from "@effect/sql"
import { Context, type Effect, type Option, Schema } from "effect"
import { describe, expect, test } from "tstyche"

class Keys extends Context.Tag("Keys")<Keys, string>() {}
declare const Secret: Schema.Schema<string, string, Keys>
declare const id: JobRow.JobId

const Note = Job.make("note", { payload: { n: Schema.Number } })
const Sealed = Job.make("sealed", { payload: { text: Secret } })

describe("JobAdmin", () => {
  test("tells why a single job was not changed", () => {
    expect(JobAdmin.cancel(id)).type.toBe<Effect.Effect<void, JobAdmin.ChangeError, SqlClient.SqlClient>>()
    expect(JobAdmin.setPriority(id, 1)).type.toBe<
      Effect.Effect<void, JobAdmin.ChangeError, SqlClient.SqlClient>
    >()
    expect(JobAdmin.setPriority).type.not.toBeCallableWith(id, 5)
    expect(JobAdmin.cancel).type.not.toBeCallableWith(1)
    expect(JobAdmin.cancel).type.not.toBeCallableWith(1n)
  })

  test("answers for each of many", () => {
    expect(JobAdmin.cancelMany([id])).type.toBe<
      Effect.Effect<ReadonlyArray<JobAdmin.Answer>, Errors.InvalidSetting | Errors.DatabaseFailure, SqlClient.SqlClient>
    >()
  })

  test("takes the payload of the job and asks for what its encoding needs", () => {
    expect(JobAdmin.editPayload(Note, id, { n: 1 })).type.toBe<
      Effect.Effect<void, JobAdmin.ChangeError | Errors.InvalidJob, SqlClient.SqlClient>
    >()
    expect(JobAdmin.editPayload(Sealed, id, { text: "x" })).type.toBe<
      Effect.Effect<void, JobAdmin.ChangeError | Errors.InvalidJob, SqlClient.SqlClient | Keys>
    >()
    expect(JobAdmin.editPayload<typeof Note>).type.not.toBeCallableWith(Note, id, { n: "1" })
  })

  test("finds a job, or none", () => {
    expect(JobAdmin.get(id)).type.toBe<
      Effect.Effect<Option.Option<JobRow.JobRow>, Errors.InvalidSetting | Errors.DatabaseFailure, SqlClient.SqlClient>
    >()
    expect(JobAdmin.list).type.not.toBeCallableWith({ state: "done" })
  })
})
