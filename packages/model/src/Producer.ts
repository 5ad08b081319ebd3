/**
 * Enqueues jobs of any kind, together, and from programs without Effect.
 *
 * @since 0.1.0
 */
import type * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import type { DatabaseFailure, InvalidJob, UniqueConflict } from "./Errors.js"
import * as internal from "./internal/enqueue.js"
import { type Request, RequestTypeId } from "./Job.js"
import type { JobId, JobRow } from "./JobRow.js"
import type { Answer } from "./Unique.js"

const toItem = <R>({ [RequestTypeId]: definition, options, payload }: Request<string, R>): internal.Item<R> => (
  { definition: internal.reveal(definition), payload, options }
)

/**
 * Stores one job, in the caller's transaction if there is one. Outside of one, interruption waits for nothing and takes
 * nothing back that was sent.
 *
 * @since 0.1.0
 * @category producing
 */
export const enqueue = <R>(
  request: Request<string, R>
): Effect.Effect<JobRow, InvalidJob | UniqueConflict | DatabaseFailure, SqlClient.SqlClient | R> =>
  internal.enqueue(toItem(request))

/**
 * Stores jobs of any kinds, all or none, and answers their ids in the order of the requests. Up to 10,000 jobs travel in
 * one statement; what needs several is one transaction. A job whose unique key another has is a `UniqueConflict` of all.
 *
 * @since 0.1.0
 * @category producing
 */
export const enqueueMany = <R = never>(
  requests: Iterable<Request<string, R>>
): Effect.Effect<ReadonlyArray<JobId>, InvalidJob | UniqueConflict | DatabaseFailure, SqlClient.SqlClient | R> =>
  Effect.suspend(() => internal.enqueueMany(Array.from(requests, toItem)))

/**
 * Stores those jobs whose unique keys are free, and all that have none, and answers for each of them, in the order of the
 * requests, whether it was `Inserted` or is the `Duplicate` of another. Of two equal jobs of the call the first goes in.
 *
 * @example
 * ```ts
 * import { Job, Producer } from "@awa/model"
 * import { Effect, Schema } from "effect"
 *
 * const Resize = Job.make("resize", { payload: { image: Schema.String }, unique: true })
 *
 * const resize = (images: ReadonlyArray<string>) =>
 *   Producer.enqueueEach(images.map((image) => Resize.request({ image }))).pipe(
 *     Effect.map((answers) => answers.filter(({ _tag }) => _tag === "Inserted").length)
 *   )
 * ```
 *
 * @since 0.1.0
 * @category producing
 */
export const enqueueEach = <R = never>(
  requests: Iterable<Request<string, R>>
): Effect.Effect<ReadonlyArray<Answer>, InvalidJob | DatabaseFailure, SqlClient.SqlClient | R> =>
  Effect.suspend(() => internal.enqueueEach(Array.from(requests, toItem)))

/**
 * A statement with its values.
 *
 * @since 0.1.0
 * @category models
 */
export interface Statement {
  readonly text: string
  readonly values: readonly [jobs: string]
}

/**
 * The statement that enqueues one job or up to 10,000, for clients without Effect: node-postgres, Drizzle, Kysely,
 * Prisma, psql. Run it on the connection of your transaction. It answers one row with the text column `ids`, the ids in
 * the order of the requests, separated by commas.
 *
 * Nothing fails when unique keys are taken: those jobs are left out, like by `enqueueEach`. Their places in `ids` are
 * empty, and the JSON column `duplicates`, null when there are none, has an array for each: its index, the id (as text) of
 * the job that has its key, and the index of the job of this call which that is, or null.
 *
 * Checks and encodes like `enqueue`, and throws an `InvalidJob`. A trace is continued by giving the metadata
 * `awa:traceparent`.
 *
 * @example
 * ```ts
 * import { Job, Producer } from "@awa/model"
 * import { Schema } from "effect"
 * import type { PoolClient } from "pg"
 *
 * const SendEmail = Job.make("send_email", { payload: { to: Schema.String } })
 *
 * const enqueue = (client: PoolClient) => {
 *   const { text, values } = Producer.insertStatement(SendEmail.request({ to: "ada@example.com" }))
 *   return client.query(text, [...values])
 * }
 * ```
 *
 * @since 0.1.0
 * @category producing
 */
export const insertStatement = (
  requests: Request<string, never> | Iterable<Request<string, never>>,
  options?: { readonly engineSchema?: string | undefined }
): Statement =>
  internal.toStatement(
    RequestTypeId in requests ? [toItem(requests)] : Array.from(requests, toItem),
    options?.engineSchema ?? "awa"
  )
