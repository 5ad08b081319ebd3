/**
 * Jobs of which there is one at a time: their keys, and who holds them.
 *
 * A job is given a key by the option `unique` of `Job.make` or `enqueue`. It holds it from its enqueueing until it leaves
 * the states of the option: by default, until it has ended.
 *
 * @since 0.1.0
 */
import * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Database from "./Database.js"
import type { DatabaseFailure, InvalidJob } from "./Errors.js"
import * as enqueueing from "./internal/enqueue.js"
import * as json from "./internal/unique/canonicalJson.js"
import * as internal from "./internal/unique/key.js"
import * as states from "./internal/unique/states.js"
import { type Request, RequestTypeId } from "./Job.js"
import type { JobId } from "./JobRow.js"
import type { JobState } from "./JobState.js"
import { StorageSchemas } from "./StorageSchemas.js"

/**
 * The job was stored.
 *
 * @since 0.1.0
 * @category models
 */
export interface Inserted {
  readonly _tag: "Inserted"
  readonly id: JobId
}

/**
 * The job was not stored: the job `holder` has its key.
 *
 * @since 0.1.0
 * @category models
 */
export interface Duplicate {
  readonly _tag: "Duplicate"
  readonly holder: JobId
}

/**
 * What `enqueueEach` answers for each job.
 *
 * @since 0.1.0
 * @category models
 */
export type Answer = Inserted | Duplicate

/**
 * The states in which a job has not ended: in these it holds its key, whatever the option `states` adds.
 *
 * @example
 * ```ts
 * import { Job, Unique } from "@awa/model"
 * import { Schema } from "effect"
 *
 * // Once for each order, until the success is forgotten.
 * const Invoice = Job.make("invoice", {
 *   payload: { order: Schema.Int, copy: Schema.Boolean },
 *   unique: { byPayload: ["order"], states: [...Unique.liveStates, "completed"] }
 * })
 * ```
 *
 * @since 0.1.0
 * @category states
 */
export const liveStates: ReadonlyArray<JobState> = states.live

/**
 * What a key is made of. The parts are not tagged: kind `k` with queue `{}` has the same key as kind `k` with args `{}`.
 *
 * @since 0.1.0
 * @category models
 */
export interface Parts {
  readonly kind: string
  readonly queue?: string | undefined
  /** The payload as JSON, or a part of it. */
  readonly args?: unknown
  /** A number of 64 bits. */
  readonly bucket?: bigint | undefined
}

/**
 * The key of such a job: 32 hexadecimal digits, the first half of a BLAKE3 hash. For who computes keys elsewhere; jobs
 * get theirs by themselves.
 *
 * @since 0.1.0
 * @category keys
 */
export const key = (parts: Parts): string => internal.keyOf(parts)

/**
 * The JSON text that goes into a key: no white space, members sorted by the UTF-8 bytes of their keys at every level,
 * numbers as serde_json writes them. Of a value as `JSON.parse` answers it.
 *
 * @since 0.1.0
 * @category keys
 */
export const canonicalJson = (value: unknown): string => json.stringify(value)

/**
 * The key a job has that is enqueued now; none when it is not unique.
 *
 * @since 0.1.0
 * @category keys
 */
export const keyOf = <R>(request: Request<string, R>): Effect.Effect<Option.Option<string>, InvalidJob, R> =>
  Effect.map(
    enqueueing.keyOf({
      definition: enqueueing.reveal(request[RequestTypeId]),
      payload: request.payload,
      options: request.options
    }),
    Option.fromNullable
  )

/**
 * The job that holds the key this one would have, were it enqueued now: as of the caller's transaction, if there is one.
 *
 * @example
 * ```ts
 * import { Job, Unique } from "@awa/model"
 * import { Schema } from "effect"
 *
 * const Import = Job.make("import", { payload: { tenant: Schema.String }, unique: true })
 *
 * const underWay = Unique.holder(Import.request({ tenant: "acme" }))
 * ```
 *
 * @since 0.1.0
 * @category holders
 */
export const holder = <R>(
  request: Request<string, R>
): Effect.Effect<Option.Option<JobId>, InvalidJob | DatabaseFailure, SqlClient.SqlClient | R> =>
  Effect.flatMap(keyOf(request), Option.match({ onNone: () => Effect.succeedNone, onSome: holderOfKey }))

/**
 * The job that holds a key, given as 32 hexadecimal digits.
 *
 * @since 0.1.0
 * @category holders
 */
export const holderOfKey = (
  key: string
): Effect.Effect<Option.Option<JobId>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const { engine } = yield* StorageSchemas
    const [row] = yield* sql.unsafe<{ readonly id: string | null }>(
      `select "${engine}".unique_holder(decode($1, 'hex'))::text as id`,
      [key]
    ).withoutTransform
    return Option.map(Option.fromNullable(row?.id), (id) => BigInt(id) as JobId) // the database made it
  }).pipe(Effect.catchTag("SqlError", Database.fromSqlError("look for a unique key")))
