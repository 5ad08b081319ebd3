/**
 * Failures by which a handler says what shall happen to its job.
 *
 * Any other failure, and any defect, is retried with backoff as long as attempts are left.
 *
 * @since 0.1.0
 */
import * as Data from "effect/Data"
import * as Predicate from "effect/Predicate"

/**
 * The job failed for good: it is not tried again, whatever attempts are left.
 *
 * @since 0.1.0
 * @category errors
 */
export class TerminalJobError extends Data.TaggedError("TerminalJobError")<{
  readonly message: string
  readonly cause?: unknown
}> {}

/**
 * The attempt failed and may be tried again: what every other failure means too, with a message of its own.
 *
 * @since 0.1.0
 * @category errors
 */
export class RetryableJobError extends Data.TaggedError("RetryableJobError")<{
  readonly message: string
  readonly cause?: unknown
}> {}

/**
 * @since 0.1.0
 * @category errors
 */
export type JobError = TerminalJobError | RetryableJobError

/**
 * Fails the job for good. The value is an error and an effect that fails with itself:
 * `Effect.catchTag("MailboxGone", (e) => JobError.terminal(e.message))`.
 *
 * @since 0.1.0
 * @category constructors
 */
export const terminal = (message: string, cause?: unknown): TerminalJobError =>
  new TerminalJobError(cause === undefined ? { message } : { message, cause })

/**
 * Fails the attempt; the job is retried with backoff while attempts are left.
 *
 * @since 0.1.0
 * @category constructors
 */
export const retryable = (message: string, cause?: unknown): RetryableJobError =>
  new RetryableJobError(cause === undefined ? { message } : { message, cause })

/**
 * @since 0.1.0
 * @category guards
 */
export const isTerminal = (error: unknown): error is TerminalJobError => Predicate.isTagged(error, "TerminalJobError")
