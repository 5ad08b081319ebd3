/**
 * The settings of one queue in one worker.
 *
 * @since 0.1.0
 */
import * as Duration from "effect/Duration"

/**
 * @since 0.1.0
 * @category models
 */
export interface QueueConfig {
  /** How many jobs of this queue run at once in this process. Default 50. */
  readonly maxWorkers?: number | undefined
  /**
   * How long a job may lie unnoticed when no notification arrives. Default 200 milliseconds. One read-only statement per
   * process looks at all queues, at the shortest interval among them.
   */
  readonly pollInterval?: Duration.DurationInput | undefined
  /**
   * Wall-clock bound of each attempt. Past it the handler is interrupted and the attempt counts as failed. Default 5
   * minutes; `"infinity"` or `null` for none.
   */
  readonly deadline?: Duration.DurationInput | "infinity" | null | undefined
  /**
   * For every such time that a job has waited, it counts as one priority more urgent, down to 1: so that no priority
   * starves. Default 1 minute; `"infinity"` or `null`: a job of a lower priority waits while there are others.
   */
  readonly priorityAging?: Duration.DurationInput | "infinity" | null | undefined
  /** The most jobs one claim takes, 1 to 10,000. Default 512. */
  readonly claimBatchSize?: number | undefined
  /**
   * Whether jobs that fail for good become dead letters. Default: what `Awa.dlq` says. What an operator says of the queue
   * (`Queues.setDlq`) comes before both.
   */
  readonly dlq?: boolean | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Resolved {
  readonly maxWorkers: number
  readonly pollInterval: Duration.Duration
  /** `null`: no bound. */
  readonly deadline: Duration.Duration | null
  /** `null`: priorities do not age. */
  readonly priorityAging: Duration.Duration | null
  readonly claimBatchSize: number
  /** `null`: like all queues of the worker. */
  readonly dlq: boolean | null
}

/**
 * @since 0.1.0
 * @category constants
 */
export const defaults = {
  maxWorkers: 50,
  pollInterval: Duration.millis(200),
  deadline: Duration.minutes(5),
  priorityAging: Duration.minutes(1),
  claimBatchSize: 512,
  dlq: null
} as const satisfies Resolved
