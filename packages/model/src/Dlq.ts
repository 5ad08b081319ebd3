/**
 * Dead letters: jobs that failed for good and were set aside, where a queue is set up that way (`Awa.dlq`,
 * `Queues.setDlq`), or were moved there by hand. They keep everything they had, and can run again.
 *
 * A dead letter is a job in state `failed`. Everything here joins the caller's transaction. Outside of one, what is done
 * in bulk is done in pieces, each in a transaction of its own, and what fails halfway stays done as far as it went.
 *
 * @example
 * ```ts
 * import { Dlq } from "@awa/model"
 * import { Effect } from "effect"
 *
 * const reviveInvoices = Effect.gen(function*() {
 *   for (const entry of yield* Dlq.list({ kind: "send_invoice", limit: 10 })) {
 *     yield* Effect.log(entry.reason, entry.errors.at(-1)?.error)
 *   }
 *   return yield* Dlq.bulkRetry({ kind: "send_invoice" })
 * })
 * ```
 *
 * @since 0.1.0
 */
import type * as SqlClient from "@effect/sql/SqlClient"
import type * as DateTime from "effect/DateTime"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { type DatabaseFailure, type InvalidSetting, JobBusy, UniqueConflict } from "./Errors.js"
import type { Priority } from "./InsertOptions.js"
import * as insertOptions from "./internal/insertOptions.js"
import * as jobRecord from "./internal/jobRecord.js"
import * as operator from "./internal/operator.js"
import { JobId, JobRow } from "./JobRow.js"
import type { Schemas } from "./StorageSchemas.js"

/**
 * Why the library made a job a dead letter. Who moves one by hand says what they like.
 *
 * - `max_attempts_exhausted`: its last attempt failed, or was taken back from a worker that was gone
 * - `terminal_error`: its handler said that trying again is of no use, or its payload could not be read
 * - `callback_timeout`: what it waited for never came (reserved)
 *
 * @since 0.1.0
 * @category models
 */
export type Reason = "max_attempts_exhausted" | "terminal_error" | "callback_timeout"

/**
 * A dead letter.
 *
 * @since 0.1.0
 * @category models
 */
export class DlqEntry extends JobRow.extend<DlqEntry>("@awa/model/Dlq/DlqEntry")({
  /** A `Reason`, or what somebody gave who moved it. */
  reason: Schema.String,
  /** Since when it is a dead letter. */
  dlqAt: Schema.Date
}) {}

/**
 * @since 0.1.0
 * @category errors
 */
export type DlqError = InvalidSetting | DatabaseFailure

type Operation<A> = Effect.Effect<A, DlqError, SqlClient.SqlClient>

/**
 * Dead letters that match everything given.
 *
 * @since 0.1.0
 * @category models
 */
export interface Filter {
  readonly kind?: string | undefined
  readonly queue?: string | undefined
  readonly tag?: string | undefined
}

/**
 * What a bulk operation is about: at least one condition, or explicitly everything.
 *
 * @since 0.1.0
 * @category models
 */
export type Scope =
  | Filter & ({ readonly kind: string } | { readonly queue: string } | { readonly tag: string })
  | { readonly all: true }

/**
 * What failed jobs a bulk move is about: at least one condition, or explicitly all.
 *
 * @since 0.1.0
 * @category models
 */
export type MoveScope =
  | Omit<Filter, "tag"> & ({ readonly kind: string } | { readonly queue: string })
  | { readonly all: true }

/**
 * @since 0.1.0
 * @category models
 */
export interface BulkOptions {
  /** How many jobs one transaction touches: what is not from 1 to 10,000 is brought there. Default 1,000. */
  readonly chunkSize?: number | undefined
}

// Looking

/**
 * Dead letters, the newest first. `before` continues after the last one of a page that was read; `limit` is brought to
 * 1 to 1,000, default 100.
 *
 * @since 0.1.0
 * @category inspecting
 */
export const list = (
  options: Filter & {
    readonly before?: Pick<DlqEntry, "dlqAt" | "id"> | undefined
    readonly limit?: number | undefined
  } = {}
): Operation<ReadonlyArray<DlqEntry>> =>
  Effect.gen(function*() {
    yield* operator.checkOptions("options", options, [...filterNames, "before", "limit"])
    const filter = yield* checkFilter(options)
    const { before, limit = 100 } = options
    if (before !== undefined) yield* operator.checkId("before.id", before.id)
    if (typeof limit !== "number" || Number.isNaN(limit)) {
      return yield* operator.invalid("limit", limit, "it must be a number")
    }
    return yield* selectEntries(
      "list dead letters",
      "dlq_list($1, $2, $3, $4::timestamptz, $5::bigint, $6::integer)",
      [...filter, before?.dlqAt.toISOString() ?? null, before?.id.toString() ?? null, operator.clamp(limit, 1_000)]
    )
  })

/**
 * @since 0.1.0
 * @category inspecting
 */
export const get = (id: JobId): Operation<Option.Option<DlqEntry>> =>
  Effect.zipRight(
    operator.checkId("id", id),
    Effect.map(
      selectEntries("look at a dead letter", "dlq_get($1::bigint)", [String(id)]),
      ([entry]) => Option.fromNullable(entry)
    )
  )

/**
 * How many dead letters there are, in one queue or in all.
 *
 * @since 0.1.0
 * @category inspecting
 */
export const depth = (queue?: string): Operation<number> =>
  queue === undefined
    ? Effect.map(depthByQueue, (queues) => queues.reduce((sum, { count }) => sum + count, 0))
    : Effect.zipRight(
      operator.checkName("queue", queue),
      Effect.map(
        operator.select<{ n: string }>(
          "count dead letters",
          ({ engine }) => `select "${engine}".dlq_depth_of($1)::text as n`,
          [queue]
        ),
        ([row]) => Number(row!.n)
      )
    )

/**
 * How many dead letters there are in each queue that has some: the fullest first, then by name.
 *
 * @since 0.1.0
 * @category inspecting
 */
export const depthByQueue: Effect.Effect<
  ReadonlyArray<{ readonly queue: string; readonly count: number }>,
  DatabaseFailure,
  SqlClient.SqlClient
> = Effect.suspend(() =>
  Effect.map(
    operator.select<{ queue: string; n: string }>(
      "count dead letters",
      ({ engine }) => `select queue, n::text from "${engine}".dlq_depth()`
    ),
    (rows) => rows.map(({ n, queue }) => ({ queue, count: Number(n) }))
  )
)

// Moving there

/**
 * Makes a failed job a dead letter. `reason` has 1 to 200 characters. Answers nothing when there is no such job, or it
 * has not failed, or is one already.
 *
 * @since 0.1.0
 * @category moving
 */
export const move = (id: JobId, reason: string): Operation<Option.Option<DlqEntry>> =>
  Effect.gen(function*() {
    yield* operator.checkId("id", id)
    yield* operator.checkName("reason", reason)
    const [entry] = yield* selectEntries(
      "move to the dead letters",
      "dlq_move($1::bigint, null, null, $2, null, 1, $3::timestamptz)",
      [String(id), reason, yield* operator.now]
    )
    return Option.fromNullable(entry)
  })

/**
 * Makes dead letters of all jobs in a scope that have failed by now. Answers how many.
 *
 * @since 0.1.0
 * @category moving
 */
export const bulkMove = (scope: MoveScope, reason: string, options: BulkOptions = {}): Operation<number> =>
  Effect.gen(function*() {
    const [kind, queue] = yield* checkScope(scope, ["kind", "queue"])
    yield* operator.checkName("reason", reason)
    const limit = yield* limitOf(options)
    const until = yield* instant
    let total = 0
    for (;;) {
      const [row] = yield* operator.select<{ n: string }>(
        "move to the dead letters",
        ({ engine }) =>
          `select count(*)::text as n from "${engine}".dlq_move(null, $1, $2, $3, $4::timestamptz, $5::integer, $6::timestamptz)`,
        [kind, queue, reason, until, limit, yield* operator.now]
      )
      total += Number(row!.n)
      if (Number(row!.n) < limit) return total
    }
  })

// Running again

/**
 * How a dead letter runs again; what is left out is as it was.
 *
 * @since 0.1.0
 * @category models
 */
export interface RetryOptions {
  /** Not before this instant. Default: at once. */
  readonly runAt?: Date | DateTime.DateTime | undefined
  readonly priority?: Priority | undefined
  readonly queue?: string | undefined
}

/**
 * Lets a dead letter run again, with all its attempts before it and without its progress. Its id, payload, metadata,
 * tags and errors stay, and so does its run lease. Answers the job, or nothing when there is no such dead letter. One
 * whose unique key another job has by now stays where it is: `UniqueConflict`; or `JobBusy`, when an open transaction may
 * come to have it, or one has taken it since the caller's snapshot. Both leave the caller's transaction usable.
 *
 * @since 0.1.0
 * @category retrying
 */
export const retry = (
  id: JobId,
  options: RetryOptions = {}
): Effect.Effect<Option.Option<JobRow>, DlqError | UniqueConflict | JobBusy, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    yield* operator.checkId("id", id)
    yield* operator.checkOptions("options", options, ["runAt", "priority", "queue"])
    const checked = insertOptions.validate(options)
    if (checked._tag === "Left") {
      const { field, reason } = checked.left
      return yield* operator.invalid(field, options[field as keyof RetryOptions], reason)
    }
    const [row] = yield* operator.select<
      jobRecord.Row & {
        readonly state: "available" | "scheduled" | null
        readonly holder: string | null
        readonly of: string
      }
    >(
      "retry a dead letter",
      ({ engine }) =>
        `select r.holder::text, r.kind as "of", j.* ` +
        `from "${engine}".dlq_retry($1::bigint, $2::timestamptz, $3::integer, $4, $5::timestamptz) r ` +
        `cross join lateral (select (r.job).state::text, ${jobRecord.columns} from (select (r.job).*) s) j`,
      [
        String(id),
        checked.right.runAt?.toISOString() ?? null,
        options.priority ?? null,
        options.queue ?? null,
        yield* operator.now
      ]
    )
    if (row === undefined) return Option.none()
    if (row.holder !== null) {
      return yield* new UniqueConflict({ kind: row.of, jobId: JobId.make(BigInt(row.holder)) })
    }
    if (row.state === null) return yield* new JobBusy({ operation: "retry", id })
    return Option.some(new JobRow({ ...jobRecord.fields(row), state: row.state }))
  })

/**
 * Lets all dead letters of a scope that are there now run again, at once and as they were. Answers how many. Those whose
 * unique key another job has by now, or may come to have, stay.
 *
 * @since 0.1.0
 * @category retrying
 */
export const bulkRetry = (scope: Scope, options: BulkOptions = {}): Operation<number> =>
  inPieces("retry dead letters", scope, options, (piece) => `dlq_retry_chunk(${piece}, $8::timestamptz)`, operator.now)

// Throwing away

/**
 * Throws all dead letters of a scope away that are there now. Answers how many.
 *
 * @since 0.1.0
 * @category purging
 */
export const purge = (scope: Scope, options: BulkOptions = {}): Operation<number> =>
  inPieces("purge dead letters", scope, options, (piece) => `dlq_purge_chunk(${piece})`)

/**
 * Throws a dead letter away. Answers whether it was there.
 *
 * @since 0.1.0
 * @category purging
 */
export const purgeOne = (id: JobId): Operation<boolean> =>
  Effect.zipRight(
    operator.checkId("id", id),
    Effect.map(
      operator.select<{ purged: string }>(
        "purge a dead letter",
        ({ engine }) => `select "${engine}".dlq_purge($1::bigint)::text as purged`,
        [String(id)]
      ),
      ([row]) => row!.purged === "true"
    )
  )

/**
 * Throws away what was kept for longer than `retention`, or than was said of its queue (`Queues.setDlq`). Answers how
 * many. The worker that leads does this by itself, see `Awa.dlq`.
 *
 * @since 0.1.0
 * @category purging
 */
export const cleanup = (retention: Duration.DurationInput, options: BulkOptions = {}): Operation<number> =>
  Effect.gen(function*() {
    const millis = yield* operator.checkDuration("retention", retention)
    const limit = yield* limitOf(options)
    let total = 0
    for (;;) {
      const [row] = yield* operator.select<{ n: string }>(
        "clean up dead letters",
        ({ engine }) => `select "${engine}".dlq_cleanup($1::bigint, $2::integer, $3::timestamptz)::text as n`,
        [millis, limit, yield* operator.now]
      )
      total += Number(row!.n)
      if (Number(row!.n) < limit) return total
    }
  })

// How

type EntryRow = jobRecord.Row & {
  readonly reason: string
  readonly dlq_at: string
  readonly finished_at: string
}

const toEntry = (row: EntryRow): DlqEntry =>
  new DlqEntry({
    ...jobRecord.fields(row),
    state: "failed",
    finalizedAt: operator.dateOf(row.finished_at),
    reason: row.reason,
    dlqAt: operator.dateOf(row.dlq_at)!
  })

const selectEntries = (operation: string, call: string, values: ReadonlyArray<unknown>) =>
  Effect.map(
    operator.select<EntryRow>(
      operation,
      ({ engine }) =>
        `select reason, ${operator.millis("dlq_at")}, ${operator.millis("finished_at")}, ${jobRecord.columns} ` +
        `from "${engine}".${call}`,
      values
    ),
    (rows) => rows.map(toEntry)
  )

const filterNames = ["kind", "queue", "tag"] as const

type Checked = readonly [kind: string | null, queue: string | null, tag: string | null]

const checkFilter = ({ kind, queue, tag }: Filter): Effect.Effect<Checked, InvalidSetting> =>
  Effect.all([checkCondition("kind", kind), checkCondition("queue", queue), checkCondition("tag", tag)])

const checkCondition = (name: string, value: string | undefined): Effect.Effect<string | null, InvalidSetting> =>
  value === undefined ? Effect.succeed(null) : Effect.as(operator.checkName(name, value), value)

/** TypeScript asks for a scope; this is for code without types, where leaving one out must not mean everything. */
const checkScope = (
  scope: Filter | { readonly all: true },
  names: ReadonlyArray<(typeof filterNames)[number]>
): Effect.Effect<Checked, InvalidSetting> =>
  Effect.gen(function*() {
    yield* operator.checkOptions("scope", scope, [...names, "all"])
    const filter = yield* checkFilter("all" in scope ? {} : scope)
    const isAll = "all" in scope && scope.all === true && Object.keys(scope).length === 1
    if (!isAll && filter.every((value) => value === null)) {
      return yield* operator.invalid("scope", scope, `name a ${names.join(" or a ")}, or say { all: true } and no more`)
    }
    return filter
  })

const limitOf = (options: BulkOptions): Effect.Effect<number, InvalidSetting> =>
  Effect.zipRight(
    operator.checkOptions("options", options, ["chunkSize"]),
    operator.chunkSize("chunkSize", options.chunkSize)
  )

/** What comes later is not part of a bulk operation. */
const instant = Effect.flatMap(operator.now, (now) =>
  Effect.map(
    operator.select<{ at: string }>(
      "look at the clock",
      () => "select ceil(date_part('epoch', coalesce($1::timestamptz, clock_timestamp())) * 1000)::bigint::text as at",
      [now]
    ),
    ([row]) => new Date(Number(row!.at)).toISOString()
  ))

interface Piece {
  readonly seen: string
  readonly done: string
  readonly last_at: string | null
  readonly last_id: string | null
}

/** Each piece tells where the next begins, so that what one has to leave behind holds up nothing. */
const inPieces = (
  operation: string,
  scope: Scope,
  options: BulkOptions,
  call: (piece: string) => string,
  more?: Effect.Effect<string | null>
): Operation<number> =>
  Effect.gen(function*() {
    const filter = yield* checkScope(scope, filterNames)
    const limit = yield* limitOf(options)
    const until = yield* instant
    const text = ({ engine }: Schemas) =>
      `select ${operator.columns(["seen", "done", "last_id"])}, ${operator.millis("last_at")} from "${engine}".` +
      call("$1, $2, $3, $4::timestamptz, $5::bigint, $6::timestamptz, $7::integer")
    let last: readonly [at: string | null, id: string | null] = [null, null]
    let total = 0
    for (;;) {
      const [row]: ReadonlyArray<Piece> = yield* operator.select<Piece>(
        operation,
        text,
        [...filter, ...last, until, limit, ...(more === undefined ? [] : [yield* more])]
      )
      total += Number(row!.done)
      if (Number(row!.seen) < limit) return total
      last = [operator.dateOf(row!.last_at)!.toISOString(), row!.last_id]
    }
  })
