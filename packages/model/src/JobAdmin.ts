/**
 * Looks at jobs that exist, and changes them: cancel, retry, another priority, queue, time or payload, removal.
 *
 * Every change is decided where nobody else can decide otherwise at the same time, and is final when it is answered: a
 * job that was cancelled while it waited never runs.
 *
 * Within a transaction a change belongs to it, like an `enqueue`, and sees the jobs that were enqueued in it. It needs
 * READ COMMITTED (`DatabaseError` with the SQL state AW002 otherwise), and until the transaction ends nobody claims from
 * the queues of the changed jobs, and the workers of running jobs that were cancelled store nothing: keep it short, make
 * the change last, or use `requestCancel`, which takes no lock. Change several jobs in one bulk call rather than one by one:
 * that takes the locks in the order everybody else does. Changes of one transaction must follow each other, as all that
 * uses savepoints. `Database.outsideTransaction` keeps a change out of it; `Queues.pause` and `Queues.drain`, which always
 * are outside, wait in vain for a queue that the transaction they are called in has changed.
 *
 * @since 0.1.0
 */
import type * as SqlClient from "@effect/sql/SqlClient"
import type * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import {
  type DatabaseFailure,
  InvalidJob,
  type InvalidSetting,
  JobBusy,
  JobNotFound,
  JobNotInState,
  UniqueConflict
} from "./Errors.js"
import type { Priority } from "./InsertOptions.js"
import * as internal from "./internal/jobAdmin.js"
import * as operator from "./internal/operator.js"
import { type Any, type Context, type Job, type Payload, type Request, TypeId } from "./Job.js"
import type { JobId, JobRow } from "./JobRow.js"
import type { JobState } from "./JobState.js"
import * as Unique from "./Unique.js"

// Reading

/**
 * A job by its id; `None` when there is none, or none any more. Reads a handful of rows, however many are kept.
 *
 * @since 0.1.0
 * @category reading
 */
export const get = (
  id: JobId
): Effect.Effect<Option.Option<JobRow>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> => internal.get(id)

/**
 * Which jobs to list: those that match everything given.
 *
 * @since 0.1.0
 * @category models
 */
export interface Filter {
  readonly state?: JobState | undefined
  readonly kind?: string | undefined
  readonly queue?: string | undefined
  readonly tag?: string | undefined
  /** Only jobs with smaller ids: that of the last job of the page before. */
  readonly before?: JobId | undefined
  /** Jobs of a page, 1 to 1,000; what is below or above is taken for the nearest of these. Default: 100. */
  readonly limit?: number | undefined
}

/**
 * A page of jobs, the newest id first.
 *
 * Pages of a state, a queue or of everything read about as many rows as they answer. A kind or a tag is looked for from
 * the newest job down; one that is rare in a long history takes its time.
 *
 * @since 0.1.0
 * @category reading
 */
export const list = (
  filter: Filter = {}
): Effect.Effect<ReadonlyArray<JobRow>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> => internal.list(filter)

// Changing

/**
 * What became of one job of a change of several.
 *
 * - `Changed`: done. `from` is the state it was in.
 * - `NotFound`: no such job, or none any more.
 * - `NotInState`: it is in a state in which it cannot be changed like that. Nothing was done. A dead letter is changed
 *   with `Dlq`.
 * - `Busy`: it could not be decided in time, because somebody holds the lock of its queue or because it kept moving.
 *   Nothing was done; try again.
 * - `KeyTaken`: it was to run again, but `holder` has its unique key by now. Nothing was done.
 *
 * @since 0.1.0
 * @category models
 */
export type Answer =
  | { readonly _tag: "Changed"; readonly id: JobId; readonly from: JobState }
  | { readonly _tag: "NotFound"; readonly id: JobId }
  | { readonly _tag: "NotInState"; readonly id: JobId; readonly state: JobState; readonly isDeadLetter?: true }
  | { readonly _tag: "Busy"; readonly id: JobId }
  | { readonly _tag: "KeyTaken"; readonly id: JobId; readonly kind: string; readonly holder: JobId }

/**
 * Why a single job was not changed. `InvalidSetting`: the id is no `JobId`, or what the job was to get makes no sense.
 *
 * @since 0.1.0
 * @category errors
 */
export type ChangeError = JobNotFound | JobNotInState | JobBusy | InvalidSetting | DatabaseFailure

/** `KeyTaken` is an answer to `retry` alone. */
const one = (operation: string, id: JobId, change: internal.Change) =>
  Effect.catchTag(oneOrTaken(operation, id, change), "UniqueConflict", Effect.die)

const oneOrTaken = (operation: string, id: JobId, change: internal.Change) =>
  Effect.zipRight(operator.checkId("id", id), internal.change([id], change)).pipe(
    Effect.flatMap(([answer]): Effect.Effect<void, ChangeError | UniqueConflict> => {
      switch (answer?._tag) {
        case "Changed":
          return Effect.void
        case "KeyTaken":
          return Effect.fail(new UniqueConflict({ kind: answer.kind, jobId: answer.holder }))
        case "NotInState":
          return Effect.fail(
            new JobNotInState({ operation, id, state: answer.state, isDeadLetter: answer.isDeadLetter })
          )
        case "Busy":
          return Effect.fail(new JobBusy({ operation, id }))
        default:
          return Effect.fail(new JobNotFound({ operation, id }))
      }
    })
  )

const many = (ids: Iterable<JobId>, change: internal.Change) =>
  Effect.flatMap(operator.checkIds(ids), (ids) => internal.change(ids, change))

/**
 * @since 0.1.0
 * @category models
 */
export interface CancelOptions {
  /** Goes into the job's error history as `cancelled: <reason>`. Default: no entry. */
  readonly reason?: string | undefined
}

/**
 * Cancels a job that waits, is scheduled, is to be retried, or runs. A running attempt loses its job: its worker is told
 * at once and interrupts it, and whatever it still answers is refused.
 *
 * @since 0.1.0
 * @category changing
 */
export const cancel = (
  id: JobId,
  options: CancelOptions = {}
): Effect.Effect<void, ChangeError, SqlClient.SqlClient> =>
  Effect.zipRight(
    internal.checkCancelOptions(options),
    Effect.suspend(() => one("cancel", id, internal.cancel(options)))
  )

/**
 * `cancel` of many jobs, in chunks. Answers in the order of the ids.
 *
 * @since 0.1.0
 * @category changing
 */
export const cancelMany = (
  ids: Iterable<JobId>,
  options: CancelOptions = {}
): Effect.Effect<ReadonlyArray<Answer>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  Effect.zipRight(internal.checkCancelOptions(options), Effect.suspend(() => many(ids, internal.cancel(options))))

/**
 * `cancel` of the job that has the unique key of a request. Answers its id, or nothing when no job has that key, or had
 * it no more when it was to be cancelled.
 *
 * @example
 * ```ts
 * import { Job, JobAdmin } from "@awa/model"
 * import { Schema } from "effect"
 *
 * const Import = Job.make("import", { payload: { tenant: Schema.String }, unique: true })
 *
 * const stop = JobAdmin.cancelByUniqueKey(Import.request({ tenant: "acme" }), { reason: "the tenant has left" })
 * ```
 *
 * @since 0.1.0
 * @category changing
 */
export const cancelByUniqueKey = <R>(
  request: Request<string, R>,
  options?: CancelOptions
): Effect.Effect<Option.Option<JobId>, InvalidJob | JobBusy | DatabaseFailure, SqlClient.SqlClient | R> =>
  Effect.flatMap(
    Unique.holder(request),
    Option.match({
      onNone: () => Effect.succeedNone,
      onSome: (id) =>
        cancel(id, options).pipe(
          Effect.as(Option.some(id)),
          Effect.catchTags({
            InvalidSetting: Effect.die, // the id is one of ours
            JobNotFound: () => Effect.succeedNone,
            JobNotInState: () => Effect.succeedNone
          })
        )
    })
  )

/**
 * Asks for jobs to be cancelled, as part of the caller's transaction: nothing happens if that is rolled back. Takes no
 * lock, so that an open transaction holds up neither a queue nor a worker.
 *
 * After the commit a job that waits is cancelled by the claim that would take it or by the leader, whichever comes first;
 * one that runs already is cancelled like by `cancel`, within the leader's `promoteInterval`. A job that has ended by then
 * stays as it is.
 *
 * @since 0.1.0
 * @category changing
 */
export const requestCancel = (
  ids: JobId | Iterable<JobId>,
  options: CancelOptions = {}
): Effect.Effect<void, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  Effect.zipRight(
    internal.checkCancelOptions(options),
    Effect.flatMap(
      operator.checkIds(typeof ids === "bigint" ? [ids] : ids),
      (ids) => internal.requestCancel(ids, options.reason)
    )
  )

/**
 * Lets a failed or cancelled job run again, now, with all its attempts. Its run lease and its error history are kept.
 * One whose unique key another job has by now stays as it is: `UniqueConflict`.
 *
 * @since 0.1.0
 * @category changing
 */
export const retry = (id: JobId): Effect.Effect<void, ChangeError | UniqueConflict, SqlClient.SqlClient> =>
  oneOrTaken("retry", id, internal.retry)

/**
 * @since 0.1.0
 * @category changing
 */
export const retryMany = (
  ids: Iterable<JobId>
): Effect.Effect<ReadonlyArray<Answer>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  many(ids, internal.retry)

/**
 * Gives a job that waits, is scheduled or is to be retried another priority. A waiting one goes behind those that wait
 * with it already.
 *
 * @since 0.1.0
 * @category changing
 */
export const setPriority = (
  id: JobId,
  priority: Priority
): Effect.Effect<void, ChangeError, SqlClient.SqlClient> =>
  Effect.flatMap(internal.priority(priority), (change) => one("change the priority of", id, change))

/**
 * @since 0.1.0
 * @category changing
 */
export const setPriorityMany = (
  ids: Iterable<JobId>,
  priority: Priority
): Effect.Effect<ReadonlyArray<Answer>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  Effect.flatMap(internal.priority(priority), (change) => many(ids, change))

/**
 * Moves a job that waits, is scheduled or is to be retried to another queue, where it goes behind those that wait there.
 *
 * @since 0.1.0
 * @category changing
 */
export const moveQueue = (
  id: JobId,
  queue: string
): Effect.Effect<void, ChangeError, SqlClient.SqlClient> =>
  Effect.flatMap(internal.queue(queue), (change) => one("move", id, change))

/**
 * @since 0.1.0
 * @category changing
 */
export const moveQueueMany = (
  ids: Iterable<JobId>,
  queue: string
): Effect.Effect<ReadonlyArray<Answer>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  Effect.flatMap(internal.queue(queue), (change) => many(ids, change))

/**
 * Lets a job that waits, is scheduled or is to be retried run at another time. An instant that is past means now.
 *
 * @since 0.1.0
 * @category changing
 */
export const reschedule = (
  id: JobId,
  runAt: Date | DateTime.DateTime
): Effect.Effect<void, ChangeError, SqlClient.SqlClient> =>
  Effect.flatMap(internal.runAt(runAt), (change) => one("reschedule", id, change))

/**
 * @since 0.1.0
 * @category changing
 */
export const rescheduleMany = (
  ids: Iterable<JobId>,
  runAt: Date | DateTime.DateTime
): Effect.Effect<ReadonlyArray<Answer>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  Effect.flatMap(internal.runAt(runAt), (change) => many(ids, change))

/**
 * Replaces the payload of a job that does not run. It is checked and encoded as when the job was enqueued, and refused
 * with `InvalidJob` for a job of another kind. A waiting job goes behind those that wait with it.
 *
 * @since 0.1.0
 * @category changing
 */
export const editPayload = <J extends Any>(
  job: J,
  id: JobId,
  payload: Payload<J>
): Effect.Effect<void, ChangeError | InvalidJob, SqlClient.SqlClient | Context<J>> =>
  Effect.gen(function*() {
    // What `Any` hides of a job's requirements.
    const change = yield* internal.payload((job as Job<string, unknown, unknown, Context<J>>)[TypeId], payload)
    const kind = Option.map(yield* get(id), (found) => found.kind)
    if (Option.isSome(kind) && kind.value !== job.kind) {
      const reason = `job ${id} is of the kind ${kind.value}`
      return yield* Effect.fail(new InvalidJob({ kind: job.kind, field: "kind", reason }))
    }
    yield* one("change the payload of", id, change)
  })

/**
 * Removes a job that waits, is scheduled or is to be retried, or that failed or was cancelled. A running one must be
 * cancelled first; one that succeeded goes when its retention is over, or can be removed where it has outlived its slot of
 * the log.
 *
 * @since 0.1.0
 * @category changing
 */
export const remove = (id: JobId): Effect.Effect<void, ChangeError, SqlClient.SqlClient> =>
  one("remove", id, internal.remove)

/**
 * @since 0.1.0
 * @category changing
 */
export const removeMany = (
  ids: Iterable<JobId>
): Effect.Effect<ReadonlyArray<Answer>, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  many(ids, internal.remove)
