import { Dlq, type Errors, type JobRow, Queues } from "@awa/model"
import type { SqlClient } from "@effect/sql"
import type { Duration, Effect, Option } from "effect"
import { describe, expect, test } from "tstyche"

type Sql = SqlClient.SqlClient
type Failure = Errors.InvalidSetting | Errors.DatabaseFailure

declare const id: JobRow.JobId

const { retry: revive } = Dlq

describe("Queues", () => {
  test("what locks can find the queue busy", () => {
    expect(Queues.pause("q", { by: "ada" })).type.toBe<Effect.Effect<void, Failure | Errors.QueueBusy, Sql>>()
    expect(Queues.drain("q")).type.toBe<Effect.Effect<number, Failure | Errors.QueueBusy, Sql>>()
    expect(Queues.resume("q")).type.toBe<Effect.Effect<boolean, Failure, Sql>>()
    expect(Queues.pause).type.not.toBeCallableWith("q", { who: "ada" })
  })

  test("the depth of one queue or of all", () => {
    expect(Queues.depth("q")).type.toBe<Effect.Effect<Queues.QueueDepth, Failure, Sql>>()
    expect(Queues.depth()).type.toBe<Effect.Effect<ReadonlyArray<Queues.QueueDepth>, Errors.DatabaseFailure, Sql>>()
    expect<Queues.QueueDepth["lag"]>().type.toBe<Duration.Duration | undefined>()
    expect<Queues.QueueDepth["counts"]["waiting_external"]>().type.toBe<number>()
  })

  test("settings are named", () => {
    expect(Queues.setOverrides).type.toBeCallableWith("q", { pollInterval: "1 second", claimBatchSize: 3 })
    expect(Queues.setOverrides).type.not.toBeCallableWith("q", { rateLimit: 3 })
    expect(Queues.setOverrides).type.not.toBeCallableWith("q", { deadline: null })
    expect(Queues.setRetention).type.not.toBeCallableWith("q", { dlq: "1 day" })
  })
})

describe("Dlq", () => {
  test("one at a time", () => {
    expect(Dlq.get(id)).type.toBe<Effect.Effect<Option.Option<Dlq.DlqEntry>, Failure, Sql>>()
    expect(Dlq.move(id, "r")).type.toBe<Effect.Effect<Option.Option<Dlq.DlqEntry>, Failure, Sql>>()
    expect(revive(id, { priority: 1 })).type.toBe<
      Effect.Effect<Option.Option<JobRow.JobRow>, Failure | Errors.UniqueConflict | Errors.JobBusy, Sql>
    >()
    expect(revive).type.not.toBeCallableWith(id, { priority: 5 })
    expect(revive).type.not.toBeCallableWith(1n)
    expect<Dlq.DlqEntry>().type.toBeAssignableTo<JobRow.JobRow>()
  })

  test("everything at once is said explicitly", () => {
    expect(Dlq.bulkRetry).type.toBeCallableWith({ queue: "q" })
    expect(Dlq.bulkRetry).type.toBeCallableWith({ tag: "t", kind: "k" })
    expect(Dlq.purge).type.toBeCallableWith({ all: true }, { chunkSize: 10 })
    expect(Dlq.bulkRetry).type.not.toBeCallableWith()
    expect(Dlq.bulkRetry).type.not.toBeCallableWith({})
    expect(Dlq.purge).type.not.toBeCallableWith({ all: false })
    expect(Dlq.purge).type.not.toBeCallableWith({ queue: undefined })
    expect(Dlq.bulkMove).type.not.toBeCallableWith({ tag: "t" }, "r")
    expect(Dlq.bulkMove).type.not.toBeCallableWith({ queue: "q" })
  })

  test("a page continues where the last one ended", () => {
    expect(Dlq.list).type.toBeCallableWith({ before: null as unknown as Dlq.DlqEntry, limit: 5 })
    expect(Dlq.list).type.not.toBeCallableWith({ before: id })
  })
})
