/**
 * @since 0.1.0
 */
import * as Data from "effect/Data"

/**
 * Why an embedded server could not do what was asked. The message says what to do about it.
 *
 * @since 0.1.0
 * @category errors
 */
export class EmbeddedPostgresError extends Data.TaggedError("EmbeddedPostgresError")<{
  readonly reason: Reason
  readonly message: string
  readonly cause?: unknown
}> {}

/**
 * @since 0.1.0
 * @category errors
 */
export type Reason =
  | "unsupported-platform"
  | "not-installed"
  | "copy-failed"
  | "folder-failed"
  | "initdb-failed"
  | "port-taken"
  | "start-failed"
  | "not-running"
  | "query-failed"
