/**
 * A job as a value: its kind, the schema of its payload, its defaults.
 *
 * @since 0.1.0
 */
import type * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import * as ParseResult from "effect/ParseResult"
import { type Pipeable, Prototype } from "effect/Pipeable"
import * as Schema from "effect/Schema"
import type * as Types from "effect/Types"
import type { DatabaseFailure, InvalidJob, UniqueConflict } from "./Errors.js"
import type { InsertOptions } from "./InsertOptions.js"
import * as internal from "./internal/enqueue.js"
import * as PlainSchema from "./internal/plainSchema.js"
import { fieldsOf } from "./internal/unique/fields.js"
import type { JobId, JobRow } from "./JobRow.js"
import type { Answer } from "./Unique.js"

/**
 * @since 0.1.0
 * @category type ids
 */
export const TypeId: unique symbol = Symbol.for("@awa/model/Job")

/**
 * @since 0.1.0
 * @category type ids
 */
export type TypeId = typeof TypeId

/**
 * @since 0.1.0
 * @category type ids
 */
export const RequestTypeId: unique symbol = Symbol.for("@awa/model/Job/Request")

/**
 * @since 0.1.0
 * @category type ids
 */
export type RequestTypeId = typeof RequestTypeId

/**
 * @since 0.1.0
 * @category models
 */
export interface Variance<out R> {
  readonly _R: Types.Covariant<R>
}

/**
 * The names of the fields of a stored payload; any string where its type does not say.
 *
 * @since 0.1.0
 * @category type-level
 */
export type Field<I> = unknown extends I ? string
  : I extends ReadonlyArray<unknown> ? never
  : I extends object ? Extract<keyof I, string>
  : never

/**
 * A kind of job. `A` is what handlers receive, `I` the JSON that is stored, `R` what encoding and decoding require.
 *
 * @since 0.1.0
 * @category models
 */
export interface Job<out Kind extends string, in out A, in out I, out R> extends Pipeable {
  readonly [TypeId]: Variance<R>
  readonly kind: Kind
  readonly payload: Schema.Schema<A, I, R>
  /** What `Job.make` was given beside the payload. */
  readonly defaults: InsertOptions<string>

  /**
   * Stores a job, in the caller's transaction if there is one, with a single statement. The answer is the stored row.
   *
   * Options replace the defaults of the job one by one. A job with the option `unique` whose key another job has is a
   * `UniqueConflict`, which names that job and leaves the transaction as it is.
   */
  readonly enqueue: (
    payload: A,
    options?: InsertOptions<Field<I>>
  ) => Effect.Effect<JobRow, InvalidJob | UniqueConflict | DatabaseFailure, SqlClient.SqlClient | R>

  /**
   * Stores any number of jobs, all or none, with the same options or with those a function gives each of them. Answers
   * their ids in the order of the payloads. Up to 10,000 jobs travel in one statement; what needs several is one
   * transaction. One `UniqueConflict` keeps all of them out.
   */
  readonly enqueueMany: (
    payloads: Iterable<A>,
    options?: InsertOptions<Field<I>> | ((payload: A, index: number) => InsertOptions<Field<I>> | undefined)
  ) => Effect.Effect<
    ReadonlyArray<JobId>,
    InvalidJob | UniqueConflict | DatabaseFailure,
    SqlClient.SqlClient | R
  >

  /**
   * Stores those jobs whose unique keys are free, and answers for each of them, in the order of the payloads, whether it
   * was `Inserted` or is the `Duplicate` of another. Of two equal jobs of the call the first goes in.
   */
  readonly enqueueEach: (
    payloads: Iterable<A>,
    options?: InsertOptions<Field<I>> | ((payload: A, index: number) => InsertOptions<Field<I>> | undefined)
  ) => Effect.Effect<ReadonlyArray<Answer>, InvalidJob | DatabaseFailure, SqlClient.SqlClient | R>

  /**
   * The payload from the JSON of a stored job (`JobRow.args`). At run time an `Either`, unless the schema has effects.
   */
  readonly decode: (args: unknown) => Effect.Effect<A, ParseResult.ParseIssue, R>

  /** The wish to store a job, as a value: for `Producer`, and for whoever enqueues on your behalf. */
  readonly request: (payload: A, options?: InsertOptions<Field<I>>) => Request<Kind, R>
}

/**
 * A job that is to be enqueued. It is checked and encoded when that happens.
 *
 * @since 0.1.0
 * @category models
 */
export interface Request<out Kind extends string = string, out R = unknown> {
  readonly [RequestTypeId]: Variance<R>
  readonly kind: Kind
  readonly payload: unknown
  readonly options: InsertOptions<string> | undefined
}

/**
 * @since 0.1.0
 * @category type-level
 */
// Any payload: a job both takes and gives it.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Any = Job<string, any, any, unknown>

/**
 * What the handlers of a job receive.
 *
 * @since 0.1.0
 * @category type-level
 */
export type Payload<J extends Any> = Schema.Schema.Type<J["payload"]>

/**
 * What is stored of a job's payload.
 *
 * @since 0.1.0
 * @category type-level
 */
export type Encoded<J extends Any> = Schema.Schema.Encoded<J["payload"]>

/**
 * What encoding and decoding a job's payload requires.
 *
 * @since 0.1.0
 * @category type-level
 */
export type Context<J extends Any> = Schema.Schema.Context<J["payload"]>

/**
 * Defines a job. The payload is a schema, or the fields of a struct; every other option is a default of `enqueue`.
 *
 * A kind or default that is wrong throws an `InvalidJob` here, when the program starts, and not at the first enqueue.
 *
 * @example
 * ```ts
 * import { Job } from "@awa/model"
 * import { Schema } from "effect"
 *
 * const SendEmail = Job.make("send_email", {
 *   payload: { to: Schema.String, subject: Schema.String },
 *   queue: "email",
 *   maxAttempts: 5
 * })
 *
 * const program = SendEmail.enqueue({ to: "ada@example.com", subject: "Hello" }, { priority: 1 })
 * ```
 *
 * @since 0.1.0
 * @category constructors
 */
export const make: {
  <const Kind extends string, Fields extends Schema.Struct.Fields>(
    kind: Kind,
    options: InsertOptions<Field<Schema.Struct.Encoded<Fields>>> & { readonly payload: Fields }
  ): Job<
    Kind,
    Types.Simplify<Schema.Struct.Type<Fields>>,
    Types.Simplify<Schema.Struct.Encoded<Fields>>,
    Schema.Struct.Context<Fields>
  >
  <const Kind extends string, A, I, R>(
    kind: Kind,
    options: InsertOptions<Field<I>> & { readonly payload: Schema.Schema<A, I, R> }
  ): Job<Kind, A, I, R>
} = <Kind extends string, A, I, R>(
  kind: Kind,
  { payload, ...defaults }: InsertOptions<string> & { readonly payload: Schema.Schema<A, I, R> | Schema.Struct.Fields }
): Job<Kind, A, I, R> => {
  // The overloads above say what fields mean.
  const schema = (
    Schema.isSchema(payload) ? payload : Schema.Struct(payload as Schema.Struct.Fields)
  ) as Schema.Schema<A, I, R>
  const plain = PlainSchema.check(schema)
  const definition = internal.define(
    kind,
    PlainSchema.shortCut(plain, ParseResult.encodeUnknown(schema)),
    fieldsOf(schema),
    defaults
  )
  const request = (payload: A, options?: InsertOptions<string>): Request<Kind, R> => (
    { [RequestTypeId]: definition, kind, payload, options }
  )
  const toItems = (
    payloads: Iterable<A>,
    options: InsertOptions<string> | ((payload: A, index: number) => InsertOptions<string> | undefined) | undefined
  ) =>
    Array.from(payloads, (payload, index) => ({
      definition,
      payload,
      options: typeof options === "function" ? options(payload, index) : options
    }))
  return {
    [TypeId]: definition,
    kind,
    payload: schema,
    defaults,
    decode: PlainSchema.shortCut(plain, ParseResult.decodeUnknown(schema)),
    request,
    enqueue: (payload, options) => internal.enqueue({ definition, payload, options }),
    enqueueMany: (payloads, options) => Effect.suspend(() => internal.enqueueMany(toItems(payloads, options))),
    enqueueEach: (payloads, options) => Effect.suspend(() => internal.enqueueEach(toItems(payloads, options))),
    pipe: Prototype.pipe
  }
}
