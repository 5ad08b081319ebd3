/**
 * How a job is to be run: what an application may say when it enqueues one.
 *
 * @since 0.1.0
 */
import type * as DateTime from "effect/DateTime"
import type * as Duration from "effect/Duration"

/**
 * 1 is the most urgent, 4 the least.
 *
 * @since 0.1.0
 * @category models
 */
export type Priority = 1 | 2 | 3 | 4

/**
 * Every option may be left out; `Job.make` takes the same ones as defaults of a job. They are checked on every way a job
 * can be enqueued, before anything is sent.
 *
 * @since 0.1.0
 * @category models
 */
export interface InsertOptions {
  /** 1 to 200 characters. Default: `default`. */
  readonly queue?: string | undefined
  /** Default: 2. */
  readonly priority?: Priority | undefined
  /** How often the job may be tried, 1 to 1,000. Default: 25. */
  readonly maxAttempts?: number | undefined
  /** The job does not run before this instant. One that is past means now. Excludes `delay`. */
  readonly runAt?: Date | DateTime.DateTime | undefined
  /** The job does not run before this time has passed on the database's clock, at most 100 years. Excludes `runAt`. */
  readonly delay?: Duration.DurationInput | undefined
  /**
   * Any JSON object, stored beside the payload. Keys that begin with `awa:` or `_awa_` are reserved; `awa:traceparent`
   * may be given to continue a trace of one's own.
   */
  readonly metadata?: { readonly [key: string]: unknown } | undefined
  /** At most 20, each of 1 to 200 characters. */
  readonly tags?: ReadonlyArray<string> | undefined
  /**
   * Jobs of one queue, priority and ordering key are claimed in the order in which they were enqueued, also when the
   * queue has several shards: the key decides on the shard, for every attempt. 1 to 200 characters. A queue of one shard
   * keeps that order for all its jobs.
   */
  readonly orderingKey?: string | undefined
}
