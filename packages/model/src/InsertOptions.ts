/**
 * How a job is to be run: what an application may say when it enqueues one.
 *
 * @since 0.1.0
 */
import type * as DateTime from "effect/DateTime"
import type * as Duration from "effect/Duration"
import type { JobState } from "./JobState.js"

/**
 * 1 is the most urgent, 4 the least.
 *
 * @since 0.1.0
 * @category models
 */
export type Priority = 1 | 2 | 3 | 4

/**
 * What makes two jobs the same job, so that the second is not stored while the first is there. The kind is always part of
 * it. `{}`, or `true` in its place, means "the same payload"; a job that differs in anything named here is another one.
 *
 * `Field` are the names of the payload's fields as it is stored.
 *
 * @since 0.1.0
 * @category models
 */
export interface UniqueOptions<out Field extends string = string> {
  /** Whether jobs of different queues are different. Default: false. */
  readonly byQueue?: boolean | undefined
  /**
   * Whether jobs of different payloads are different; or the fields at its top that must differ. A field the payload
   * leaves out counts as left out. Default: true.
   */
  readonly byPayload?: boolean | ReadonlyArray<Field> | undefined
  /**
   * Jobs enqueued in different stretches of this length are different: with `"1 day"` there is one a day, by UTC. The
   * clock is that of `TimeSource`, or else this process'. Default: one for ever. Excludes `bucket`.
   */
  readonly period?: Duration.DurationInput | undefined
  /** The number of a stretch of one's own making, 64 bits, in place of `period`. */
  readonly bucket?: bigint | undefined
  /**
   * While the first job is in one of these states there is no second. All states that are not final must be among them:
   * a job that lets its key go could not have it back. Default: those, so that the key is free when the job has ended;
   * add `completed` for "once, until the success is forgotten".
   */
  readonly states?: ReadonlyArray<JobState> | undefined
}

/**
 * Every option may be left out; `Job.make` takes the same ones as defaults of a job. They are checked on every way a job
 * can be enqueued, before anything is sent.
 *
 * `Field` are the names of the payload's fields as it is stored, which `unique` may choose from.
 *
 * @since 0.1.0
 * @category models
 */
export interface InsertOptions<out Field extends string = never> {
  /** 1 to 200 characters. Default: `default`. */
  readonly queue?: string | undefined
  /** Default: 2. */
  readonly priority?: Priority | undefined
  /** How often the job may be tried, 1 to 1,000. Default: 25. */
  readonly maxAttempts?: number | undefined
  /** The job does not run before this instant. One that is past means now. Excludes `delay`. */
  readonly runAt?: Date | DateTime.DateTime | undefined
  /**
   * The job does not run before this time has passed on the database's clock, 0 to 100 years. Excludes `runAt`. What is
   * below 0 is refused as it is written here; a `Duration` made of it is 0 already.
   */
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
  /**
   * At most one job of a key at a time: what is enqueued beside it fails with `UniqueConflict`. Default: `false`, any
   * number.
   */
  readonly unique?: UniqueOptions<Field> | boolean | undefined
}
