/** What the checks are written with. */
import * as Database from "@awa/model/Database"
import type { DatabaseFailure, InvalidJob, InvalidSetting, UniqueConflict } from "@awa/model/Errors"
import type { InsertOptions } from "@awa/model/InsertOptions"
import * as Job from "@awa/model/Job"
import type { JobId } from "@awa/model/JobRow"
import {
  type ClaimedJob,
  type ClaimRequest,
  type Completion,
  type Outcome,
  type Service,
  StorageEngine,
  type StorageError,
  type Verdict
} from "@awa/model/StorageEngine"
import { TimeSource } from "@awa/model/TimeSource"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Clock from "effect/Clock"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as TestContext from "effect/TestContext"
import * as assert from "node:assert/strict"
import { randomBytes, randomUUID } from "node:crypto"
import * as Jobs from "../../Jobs.js"

/** Published as `Conformance.CheckFailed`. */
export class CheckFailed extends Data.TaggedError("CheckFailed")<{
  readonly check: string
  readonly actual: unknown
  readonly expected: unknown
  readonly cause: unknown
}> {
  override get message(): string {
    return `${this.check}: ${this.cause instanceof Error ? this.cause.message : String(this.cause)}`
  }
}

/** Published as `Conformance.CheckError`. */
export type CheckError = CheckFailed | StorageError | DatabaseFailure | InvalidJob | InvalidSetting | UniqueConflict

/** @internal */
export interface Check {
  readonly name: string
  readonly alone: boolean
  readonly run: Effect.Effect<void, CheckError, StorageEngine | SqlClient.SqlClient>
}

type Body = (harness: Harness) => Effect.Effect<void, CheckError, StorageEngine | SqlClient.SqlClient>

/** @internal Time passes only where the check moves `TestClock`. */
export const check = (name: string, body: Body): Check => make(name, false, body)

/** @internal For what is said of all jobs in a database: how many are promoted, which attempts are rescued. */
export const checkAlone = (name: string, body: Body): Check => make(name, true, body)

const make = (name: string, alone: boolean, body: Body): Check => ({
  name,
  alone,
  run: Effect.flatMap(harness, body).pipe(
    Effect.catchSomeDefect((defect) =>
      defect instanceof assert.AssertionError
        ? Option.some(
          new CheckFailed({ check: name, actual: defect.actual, expected: defect.expected, cause: defect })
        )
        : Option.none()
    ),
    Effect.provideService(TimeSource, TimeSource.fromClock),
    Effect.provide(TestContext.TestContext)
  )
})

/** @internal */
export interface EnqueueOptions extends InsertOptions<string> {
  readonly payload?: unknown
}

interface OpenTransaction<A> {
  readonly value: A
  readonly commit: Effect.Effect<void, CheckError>
  readonly rollback: Effect.Effect<void>
}

/** @internal */
export type Harness = Effect.Effect.Success<typeof harness>

/** @internal */
export const Unchecked = Job.make("conformance", { payload: Schema.Unknown })

class RolledBack extends Data.TaggedError("RolledBack") {}

const harness = Effect.gen(function*() {
  const engine: Service = yield* StorageEngine
  const sql = yield* SqlClient.SqlClient
  const queue = `conformance-${randomUUID()}`
  const owner = randomUUID()

  /** Jobs numbered from 0 in their payloads. */
  const enqueueMany = (count: number, options?: InsertOptions<string>) =>
    Unchecked.enqueueMany(Array.from({ length: count }, (_, n) => ({ n })), { queue, ...options }).pipe(
      Effect.provideService(SqlClient.SqlClient, sql)
    )

  const enqueue = ({ payload = {}, ...options }: EnqueueOptions = {}) =>
    Unchecked.enqueue(payload, { queue, ...options }).pipe(
      Effect.map((row) => row.id),
      Effect.provideService(SqlClient.SqlClient, sql)
    )

  /** Does something in a transaction and leaves it open. */
  const inOpenTransaction = <A>(body: Effect.Effect<A, CheckError, SqlClient.SqlClient>) =>
    Effect.gen(function*() {
      const done = yield* Deferred.make<A>()
      const gate = yield* Deferred.make<void, RolledBack>()
      const fiber = yield* body.pipe(
        Effect.flatMap((value) => Deferred.succeed(done, value)),
        Effect.zipRight(Deferred.await(gate)),
        Database.transaction,
        Effect.catchTag("RolledBack", () => Effect.void),
        Effect.provideService(SqlClient.SqlClient, sql),
        Effect.fork
      )
      const value = yield* Effect.raceFirst(Deferred.await(done), Effect.zipRight(Fiber.join(fiber), Effect.never))
      const transaction: OpenTransaction<A> = {
        value,
        commit: Effect.zipRight(Deferred.succeed(gate, undefined), Fiber.join(fiber)),
        rollback: Effect.zipRight(Deferred.fail(gate, new RolledBack()), Effect.asVoid(Fiber.await(fiber)))
      }
      return transaction
    })

  /** Jobs of a transaction that is still open. */
  const enqueueLate = (count: number, options?: InsertOptions<string>) =>
    Effect.map(
      inOpenTransaction(enqueueMany(count, options)),
      ({ value, ...transaction }) => ({ ids: value, ...transaction })
    )

  const claim = (limit: number = 1000, request: Partial<ClaimRequest> = {}) =>
    Effect.suspend(() =>
      engine.claim({ queue, limit, owner, nonce: makeNonce(), deadline: null, durability: "async", ...request })
    )

  const completeAndClaim = (completions: ReadonlyArray<Completion>, limit: number = 1000) =>
    Effect.suspend(() =>
      engine.completeAndClaim(completions, {
        queue,
        limit,
        owner,
        nonce: makeNonce(),
        deadline: null,
        durability: "async"
      })
    )

  const claimOne = Effect.map(claim(1), (jobs) => {
    assert.equal(jobs.length, 1, `a job should be claimable, ${jobs.length} were claimed`)
    return jobs[0]!
  })

  const end = ({ token }: ClaimedJob, outcome: Outcome, progress?: unknown) =>
    Effect.map(engine.complete(owner, [{ token, outcome, progress }]), (verdicts) => {
      assert.equal(verdicts.length, 1, "one answer for one attempt")
      return verdicts[0]!
    })

  const accept = (job: ClaimedJob, outcome: Outcome, progress?: unknown) =>
    Effect.map(
      end(job, outcome, progress),
      (verdict) => assert.equal(verdict, "accepted" satisfies Verdict, `${outcome._tag} of the running attempt`)
    )

  const job = (id: JobId) => Effect.provideService(Jobs.get(id), SqlClient.SqlClient, sql)

  const expectState = (id: JobId, state: Jobs.StoredJob["state"]) =>
    Effect.map(job(id), (job) => {
      assert.equal(job.state, state, `state of job ${id}`)
      return job
    })

  return {
    engine,
    queue,
    owner,
    otherOwner: randomUUID(),
    enqueue,
    enqueueMany,
    enqueueLate,
    inOpenTransaction,
    claim,
    claimOne,
    completeAndClaim,
    end,
    accept,
    job,
    expectState
  } as const
})

/** @internal */
export const makeNonce = (): string => String(randomBytes(8).readBigInt64BE())

/** @internal */
export const idsOf = (jobs: ReadonlyArray<ClaimedJob>): ReadonlyArray<JobId> => jobs.map(({ job }) => job.id)

/** @internal What is added to this instant, by the clock of the check. */
export const after = (duration: Duration.DurationInput): Effect.Effect<Date> =>
  Effect.map(Clock.currentTimeMillis, (now) => new Date(now + Duration.toMillis(duration)))

/** @internal */
export const now: Effect.Effect<Date> = after(0)

/** @internal More than any check has jobs. */
export const all = 10_000

/** @internal */
export const outcomes = {
  completed: { _tag: "completed" },
  retry: { _tag: "retry", delay: null, error: "it broke" },
  retryNow: { _tag: "retry", delay: Duration.zero, error: "it broke" },
  snooze: { _tag: "snooze", delay: Duration.minutes(1) },
  return: { _tag: "return" },
  cancel: { _tag: "cancel", reason: "not wanted" },
  fail: { _tag: "fail", error: "beyond repair" }
} as const satisfies Record<string, Outcome>
