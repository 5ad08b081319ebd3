/**
 * A job as it is stored.
 *
 * @since 0.1.0
 */
import * as Predicate from "effect/Predicate"
import * as Schema from "effect/Schema"
import { JobState } from "./JobState.js"

/**
 * The number of a job: a bigint, because PostgreSQL counts further than a JavaScript number does. As JSON it is a
 * string of digits.
 *
 * @since 0.1.0
 * @category schemas
 */
export const JobId = Schema.BigInt.pipe(
  Schema.brand("JobId"),
  Schema.annotations({ identifier: "JobId" })
)

/**
 * @since 0.1.0
 * @category models
 */
export type JobId = typeof JobId.Type

/**
 * What an attempt that did not succeed left behind.
 *
 * @since 0.1.0
 * @category schemas
 */
export const JobFailure = Schema.Struct({
  error: Schema.String,
  /** The attempt that failed, counted from 1. */
  attempt: Schema.Int,
  at: Schema.Date,
  /** Whether this failure ended the job. */
  terminal: Schema.optional(Schema.Boolean)
}).annotations({ identifier: "JobFailure" })

/**
 * @since 0.1.0
 * @category models
 */
export interface JobFailure extends Schema.Schema.Type<typeof JobFailure> {}

/** Kept as it is, key by key: a record schema would lose the key `__proto__`. */
const JsonObject = Schema.declare(
  (u: unknown): u is { readonly [key: string]: unknown } => Predicate.isReadonlyRecord(u),
  {
    identifier: "JsonObject",
    jsonSchema: { type: "object" },
    arbitrary: () => (fc) => fc.dictionary(fc.string(), fc.jsonValue())
  }
)

/**
 * A job and everything that is known about its life so far. Encodes to JSON: ids and leases as strings of digits,
 * instants as ISO 8601.
 *
 * @since 0.1.0
 * @category models
 */
export class JobRow extends Schema.Class<JobRow>("@awa/model/JobRow")({
  id: JobId,
  kind: Schema.String,
  queue: Schema.String,
  /** The payload as JSON, not decoded by the job's schema. */
  args: Schema.Unknown,
  state: JobState,
  /** 1 is the most urgent, 4 the least. */
  priority: Schema.Int,
  /** How many attempts have begun: 0 until the first claim. */
  attempt: Schema.Int,
  maxAttempts: Schema.Int,
  /** Counts the claims of this job and never falls, not even when an operator lets it run again. */
  runLease: Schema.BigInt,
  /** The job does not run before this instant. */
  runAt: Schema.Date,
  createdAt: Schema.Date,
  /** When the latest attempt began. */
  attemptedAt: Schema.optional(Schema.Date),
  /** When the job ended. */
  finalizedAt: Schema.optional(Schema.Date),
  metadata: JsonObject,
  tags: Schema.Array(Schema.String),
  /** The failures of past attempts, oldest first. */
  errors: Schema.Array(JobFailure),
  /** What the running or the latest attempt reported last. */
  progress: Schema.optional(Schema.Unknown),
  /** What decides on its shard. */
  orderingKey: Schema.optional(Schema.String)
}) {
  /** For `JSON.stringify`: the encoded form, so that a row can be logged or sent as it is. */
  toJSON(): unknown {
    return { ...this, id: this.id.toString(), runLease: this.runLease.toString() }
  }
}
