/**
 * What an operator does with a queue: pause, resume, empty, tune and look at it.
 *
 * A queue is named exactly as its jobs name it, and needs no row anywhere before it is spoken of. What only writes down a
 * setting joins the caller's transaction; what must lock the queue's lanes (`pause`, `drain`) runs in short transactions
 * of its own.
 *
 * @example
 * ```ts
 * import { Queues } from "@awa/model"
 * import { Effect } from "effect"
 *
 * const maintenance = Effect.gen(function*() {
 *   yield* Queues.pause("email", { by: "ada" })
 *   const { counts, lag } = yield* Queues.depth("email")
 *   yield* Effect.log(`${counts.available} jobs wait, ${counts.running} still run`, lag)
 *   yield* Queues.resume("email")
 * })
 * ```
 *
 * @since 0.1.0
 */
import type * as SqlClient from "@effect/sql/SqlClient"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Database from "./Database.js"
import { type DatabaseFailure, type InvalidSetting, QueueBusy } from "./Errors.js"
import * as operator from "./internal/operator.js"
import * as queueOverrides from "./internal/queueOverrides.js"
import { JobState } from "./JobState.js"
import type { Schemas } from "./StorageSchemas.js"

/**
 * @since 0.1.0
 * @category errors
 */
export type QueueError = InvalidSetting | DatabaseFailure

type Operation<A, E = never> = Effect.Effect<A, QueueError | E, SqlClient.SqlClient>

// Pause and resume

/**
 * Stops a queue: nothing of it is claimed or promoted until `resume`. When this returns, the last claim that began before
 * it has been answered. Jobs that run go on, jobs that are enqueued wait, rescue and retries are as ever.
 *
 * Pausing a paused queue renews who did it and when. `by` has 1 to 200 characters. Always in a transaction of its own;
 * fails with `QueueBusy` when the queue's lanes cannot be had within two seconds.
 *
 * @since 0.1.0
 * @category control
 */
export const pause = (
  queue: string,
  options: { readonly by?: string | undefined } = {}
): Operation<void, QueueBusy> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    yield* operator.checkOptions("options", options, ["by"])
    if (options.by !== undefined) yield* operator.checkName("by", options.by)
    const now = yield* operator.now
    const [row] = yield* alone<{ lanes: string }>(
      { queue, operation: "pause", done: false },
      ({ engine }) => `select "${engine}".pause_queue($1, $2, $3::timestamptz)::text as lanes`,
      [queue, options.by ?? null, now]
    )
    yield* alone(
      { queue, operation: "pause", done: true },
      ({ engine }) => `select "${engine}".await_claims($1, $2::bigint[])`,
      [queue, row!.lanes]
    )
  })

/**
 * Lets a queue go on, and wakes its workers. Answers whether it was paused.
 *
 * @since 0.1.0
 * @category control
 */
export const resume = (queue: string): Operation<boolean> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    const [row] = yield* operator.select<{ paused: string }>(
      "resume",
      ({ engine }) => `select "${engine}".resume_queue($1)::text as paused`,
      [queue]
    )
    return row!.paused === "true"
  })

// Settings

/**
 * What workers do differently while they run: they look every ten seconds (`Awa.overrideRefresh`).
 *
 * @since 0.1.0
 * @category models
 */
export interface Overrides {
  /** 1 millisecond to 1 day. */
  readonly pollInterval?: Duration.DurationInput | undefined
  /** 1 to 10,000. */
  readonly claimBatchSize?: number | undefined
  /**
   * Of attempts that begin from now on, 1 millisecond to 100 years. A worker whose queue has no deadline at all ignores
   * it: what runs there is made to run for long.
   */
  readonly deadline?: Duration.DurationInput | undefined
}

/**
 * How long ended jobs are kept, each from 1 millisecond to 100 years. What is left out follows the workers' settings.
 *
 * @since 0.1.0
 * @category models
 */
export interface Retention {
  readonly completed?: Duration.DurationInput | undefined
  readonly failed?: Duration.DurationInput | undefined
  readonly cancelled?: Duration.DurationInput | undefined
}

/**
 * What becomes of jobs that fail for good. What is left out follows the workers' settings.
 *
 * @since 0.1.0
 * @category models
 */
export interface DeadLetters {
  /** Whether they are set aside as dead letters. */
  readonly enabled?: boolean | undefined
  /** How long dead letters are kept, 1 millisecond to 100 years. */
  readonly retention?: Duration.DurationInput | undefined
}

/**
 * Sets the overrides of a queue; those left out are cleared.
 *
 * @since 0.1.0
 * @category settings
 */
export const setOverrides = (queue: string, overrides: Overrides): Operation<void> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    yield* operator.checkOptions("overrides", overrides, ["pollInterval", "claimBatchSize", "deadline"])
    const { claimBatchSize, deadline, pollInterval } = overrides
    if (claimBatchSize !== undefined && !isBatchSize(claimBatchSize)) {
      return yield* operator.invalid(
        "overrides.claimBatchSize",
        claimBatchSize,
        `it must be a whole number from 1 to ${queueOverrides.maxClaimBatchSize}`
      )
    }
    const document = {
      poll_interval_ms: yield* operator.checkDuration(
        "overrides.pollInterval",
        pollInterval,
        queueOverrides.longestPoll
      ),
      claim_batch_size: claimBatchSize ?? null,
      deadline_ms: yield* operator.checkDuration("overrides.deadline", deadline)
    }
    yield* operator.select(
      "set overrides",
      ({ engine }) => `select "${engine}".set_queue_overrides($1, jsonb_strip_nulls($2::jsonb))`,
      [queue, JSON.stringify(document)]
    )
  })

const isBatchSize = (value: unknown): boolean =>
  Number.isInteger(value) && (value as number) >= 1 && (value as number) <= queueOverrides.maxClaimBatchSize

/**
 * Lets the workers' own settings hold again.
 *
 * @since 0.1.0
 * @category settings
 */
export const clearOverrides = (queue: string): Operation<void> => setOverrides(queue, {})

/**
 * The overrides of a queue; an empty object when there are none.
 *
 * @since 0.1.0
 * @category settings
 */
export const overrides = (queue: string): Operation<QueueSettings["overrides"]> =>
  Effect.map(settings(queue), ({ overrides }) => overrides)

/**
 * Sets how long ended jobs of a queue are kept; what is left out follows the workers' settings.
 *
 * @since 0.1.0
 * @category settings
 */
export const setRetention = (queue: string, retention: Retention): Operation<void> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    yield* operator.checkOptions("retention", retention, ["completed", "failed", "cancelled"])
    yield* operator.select(
      "set retention",
      ({ engine }) => `select "${engine}".set_queue_retention($1, $2::bigint, $3::bigint, $4::bigint)`,
      [
        queue,
        yield* operator.checkDuration("retention.completed", retention.completed),
        yield* operator.checkDuration("retention.failed", retention.failed),
        yield* operator.checkDuration("retention.cancelled", retention.cancelled)
      ]
    )
  })

/**
 * Sets whether a queue has dead letters, and how long they are kept; what is left out follows the workers' settings.
 *
 * @since 0.1.0
 * @category settings
 */
export const setDlq = (queue: string, { enabled, retention, ...others }: DeadLetters): Operation<void> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    yield* operator.checkOptions("dlq", others, [])
    if (enabled !== undefined && typeof enabled !== "boolean") {
      return yield* operator.invalid("dlq.enabled", enabled, "it must be true or false")
    }
    yield* operator.select(
      "set dlq",
      ({ engine }) => `select "${engine}".set_queue_dlq($1, $2::boolean, $3::bigint)`,
      [queue, enabled ?? null, yield* operator.checkDuration("dlq.retention", retention)]
    )
  })

const maxShards = 64

/**
 * Over how many lanes each priority of a queue is spread, 1 to 64. Takes effect with the transaction it is in. While it
 * spreads, jobs of one ordering key may be claimed out of order; none is lost or refused.
 *
 * @since 0.1.0
 * @category settings
 */
export const setShards = (queue: string, shards: number): Operation<void> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    if (!Number.isInteger(shards) || shards < 1 || shards > maxShards) {
      return yield* operator.invalid("shards", shards, `it must be a whole number from 1 to ${maxShards}`)
    }
    yield* operator.select(
      "set the number of shards",
      ({ engine }) => `select "${engine}".set_shards($1, $2::integer)`,
      [
        queue,
        shards
      ]
    )
  })

/**
 * What was said of a queue. What is absent follows the workers' settings.
 *
 * @since 0.1.0
 * @category models
 */
export class QueueSettings extends Schema.Class<QueueSettings>("@awa/model/Queues/QueueSettings")({
  queue: Schema.String,
  /** Paused since; absent when it is not. */
  pausedAt: Schema.optional(Schema.Date),
  pausedBy: Schema.optional(Schema.String),
  overrides: Schema.Struct({
    pollInterval: Schema.optional(Schema.DurationFromMillis),
    claimBatchSize: Schema.optional(Schema.Int),
    deadline: Schema.optional(Schema.DurationFromMillis)
  }),
  retention: Schema.Struct({
    completed: Schema.optional(Schema.DurationFromMillis),
    failed: Schema.optional(Schema.DurationFromMillis),
    cancelled: Schema.optional(Schema.DurationFromMillis)
  }),
  dlq: Schema.Struct({
    enabled: Schema.optional(Schema.Boolean),
    retention: Schema.optional(Schema.DurationFromMillis)
  }),
  /** Over how many lanes each priority is spread, 1 unless said. */
  shards: Schema.Int
}) {}

type SettingsRow =
  & operator.TextRow<
    "paused_at" | "paused_by" | "completed_ms" | "failed_ms" | "cancelled_ms" | "dlq" | "dlq_ms" | "shards"
  >
  & { readonly queue: string; readonly overrides: string }

const selectSettings = (queues: ReadonlyArray<string> | null) =>
  Effect.map(
    operator.select<SettingsRow>(
      "look at settings",
      ({ engine }) =>
        `select queue, paused_by, overrides::text, ${operator.millis("paused_at")}, ${
          operator.columns(["completed_ms", "failed_ms", "cancelled_ms", "dlq", "dlq_ms", "shards"])
        } from "${engine}".queue_settings($1::text[])`,
      [queues]
    ),
    (rows) => rows.map(toSettings)
  )

const durationOf = (millis: string | null) => millis === null ? undefined : Duration.millis(Number(millis))

const toSettings = (row: SettingsRow): QueueSettings =>
  new QueueSettings({
    queue: row.queue,
    pausedAt: operator.dateOf(row.paused_at),
    pausedBy: row.paused_by ?? undefined,
    overrides: queueOverrides.fromJson(row.overrides).overrides,
    retention: {
      completed: durationOf(row.completed_ms),
      failed: durationOf(row.failed_ms),
      cancelled: durationOf(row.cancelled_ms)
    },
    dlq: { enabled: row.dlq === null ? undefined : row.dlq === "true", retention: durationOf(row.dlq_ms) },
    shards: Number(row.shards)
  })

/**
 * @since 0.1.0
 * @category settings
 */
export const settings = (queue: string): Operation<QueueSettings> =>
  Effect.zipRight(
    operator.checkName("queue", queue),
    Effect.map(
      selectSettings([queue]),
      ([found]) => found ?? new QueueSettings({ queue, overrides: {}, retention: {}, dlq: {}, shards: 1 })
    )
  )

/**
 * The settings of all queues of which something was said, by name.
 *
 * @since 0.1.0
 * @category settings
 */
export const list: Effect.Effect<ReadonlyArray<QueueSettings>, DatabaseFailure, SqlClient.SqlClient> = Effect.suspend(
  () => selectSettings(null)
)

// Drain

/**
 * Cancels what waits in a queue when this is called: available, scheduled and retryable jobs. Answers how many. Jobs that
 * run are left alone, and so is what is enqueued, or comes back to the queue, later.
 *
 * Always in transactions of its own, one for every `chunkSize` jobs (1 to 10,000, default 1,000): when it fails or is
 * interrupted, what was cancelled so far stays so, and calling it again goes on. Fails with `QueueBusy` when it has to
 * wait for a claim, or for somebody who changes a job, for more than two seconds.
 *
 * @since 0.1.0
 * @category control
 */
export const drain = (
  queue: string,
  options: { readonly chunkSize?: number | undefined } = {}
): Operation<number, QueueBusy> =>
  Effect.gen(function*() {
    yield* operator.checkName("queue", queue)
    yield* operator.checkOptions("options", options, ["chunkSize"])
    const limit = yield* operator.chunkSize("chunkSize", options.chunkSize)
    // What is promoted in between is found in the log.
    const deferred = yield* drainDeferred(queue, limit)
    return deferred + (yield* drainReady(queue, limit))
  })

interface Drained {
  readonly cancelled: string
  readonly bound: string
  /** The position where the next piece begins. */
  readonly last?: string | null
}

const drainDeferred = (queue: string, limit: number) =>
  Effect.gen(function*() {
    let bound: string | null = null
    let total = 0
    for (;;) {
      const now: string | null = yield* operator.now
      const [row]: ReadonlyArray<Drained> = yield* alone<Drained>(
        { queue, operation: "drain", done: false },
        ({ engine }) =>
          `select cancelled::text, bound::text from "${engine}".drain_deferred($1, $2::bigint, $3::integer, $4::timestamptz)`,
        [queue, bound, limit, now]
      )
      bound = row!.bound
      total += Number(row!.cancelled)
      if (Number(row!.cancelled) < limit) return total
    }
  })

const drainReady = (queue: string, limit: number) =>
  Effect.gen(function*() {
    let bound: string | null = null
    let last: string | null = null
    let total = 0
    for (;;) {
      const now: string | null = yield* operator.now
      const rows: ReadonlyArray<Drained> = yield* alone<Drained>(
        { queue, operation: "drain", done: false },
        ({ engine }) =>
          `select ${operator.columns(["cancelled", "bound", "last"])} ` +
          `from "${engine}".drain_ready($1, $2::bigint, $3::bigint, $4::integer, $5::timestamptz)`,
        [queue, last, bound, limit, now]
      )
      const row: Drained = rows[0]!
      bound = row.bound
      last = row.last ?? null
      total += Number(row.cancelled)
      if (Number(row.cancelled) < limit) return total
    }
  })

// Depth

/**
 * How full a queue is, all of it at one moment.
 *
 * @since 0.1.0
 * @category models
 */
export class QueueDepth extends Schema.Class<QueueDepth>("@awa/model/Queues/QueueDepth")({
  queue: Schema.String,
  /** How many jobs are in each state, as far as they are kept. Dead letters have failed. */
  counts: Schema.Record({ key: JobState, value: Schema.Int }),
  /** How many of the failed jobs are dead letters. */
  deadLetters: Schema.Int,
  /**
   * How long the job waits that became available first, as seen from those next in line: the first thousand of each
   * priority and shard. Absent when nothing waits.
   */
  lag: Schema.optional(Schema.DurationFromMillis),
  pausedAt: Schema.optional(Schema.Date)
}) {}

type DepthRow =
  & operator.TextRow<"lag_ms" | "paused_at">
  & { readonly [K in "queue" | (typeof counted)[number] | "dead"]: string }

const counted = ["scheduled", "available", "running", "completed", "retryable", "failed", "cancelled"] as const

const toDepth = (row: DepthRow): QueueDepth => {
  const counts = Object.fromEntries(
    [["waiting_external", 0], ...counted.map((state) => [state, Number(row[state])])]
  ) as { readonly [K in JobState]: number } // every state is a key
  return new QueueDepth({
    queue: row.queue,
    counts,
    deadLetters: Number(row.dead),
    lag: durationOf(row.lag_ms),
    pausedAt: operator.dateOf(row.paused_at)
  })
}

const selectDepth = (queue: string | null) =>
  Effect.flatMap(operator.now, (now) =>
    operator.select<DepthRow>(
      "look at the depth",
      ({ engine }) =>
        `select queue, ${operator.columns([...counted, "dead", "lag_ms"])}, ${operator.millis("paused_at")} ` +
        `from "${engine}".queue_depths($1, $2::timestamptz)`,
      [queue, now]
    )).pipe(Effect.map((rows) => rows.map(toDepth)))

/**
 * Counts the jobs of one queue, or of every queue there is by name: those with jobs of any state, those that had some,
 * and those of which something was said. Exact, and read from one snapshot.
 *
 * @since 0.1.0
 * @category inspecting
 */
export const depth: {
  (): Effect.Effect<ReadonlyArray<QueueDepth>, DatabaseFailure, SqlClient.SqlClient>
  (queue: string): Effect.Effect<QueueDepth, QueueError, SqlClient.SqlClient>
} = ((...queue: readonly [queue?: string]): Operation<ReadonlyArray<QueueDepth> | QueueDepth> =>
  queue.length === 0
    ? selectDepth(null)
    : Effect.zipRight(
      operator.checkName("queue", queue[0]),
      Effect.map(selectDepth(queue[0]!), ([found]) => found!)
    )) as typeof depth // no argument, all queues

// A transaction of our own

const lockNotAvailable = "55P03"

/** The functions behind it wait for locks no longer than two seconds. */
const alone = <Row extends object>(
  busy: ConstructorParameters<typeof QueueBusy>[0],
  text: (schemas: Schemas) => string,
  values: ReadonlyArray<unknown>
): Effect.Effect<ReadonlyArray<Row>, DatabaseFailure | QueueBusy, SqlClient.SqlClient> =>
  operator.attempt<Row>(text, values).pipe(
    Effect.catchTag(
      "SqlError",
      (error): Effect.Effect<never, DatabaseFailure | QueueBusy> =>
        Option.contains(Database.sqlState(error), lockNotAvailable)
          ? Effect.fail(new QueueBusy(busy))
          : Database.fromSqlError(busy.operation)(error)
    ),
    (self) => Database.transaction(self, { isolation: "read committed" }),
    Database.outsideTransaction
  )
