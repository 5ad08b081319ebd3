/**
 * The states of a job.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"

/**
 * - `scheduled`: waits for its `runAt`
 * - `available`: waits for a worker
 * - `running`: an attempt is under way
 * - `retryable`: an attempt failed, the next one waits for its time
 * - `waiting_external`: an attempt handed over to something outside and waits for its callback
 * - `completed`, `failed`, `cancelled`: ended; nothing but an operator moves it again
 *
 * The labels are those of the database.
 *
 * @since 0.1.0
 * @category schemas
 */
export const JobState = Schema.Literal(
  "scheduled",
  "available",
  "running",
  "completed",
  "retryable",
  "failed",
  "cancelled",
  "waiting_external"
).annotations({ identifier: "JobState" })

/**
 * @since 0.1.0
 * @category models
 */
export type JobState = typeof JobState.Type

/**
 * Whether the job has ended: no worker and no clock moves it from here.
 *
 * @since 0.1.0
 * @category predicates
 */
export const isTerminal = (state: JobState): state is "completed" | "failed" | "cancelled" =>
  state === "completed" || state === "failed" || state === "cancelled"
