/**
 * What a handler can ask and tell about the attempt it runs: its second argument, and a tag for code deep inside.
 *
 * @since 0.1.0
 */
import type { JobRow } from "@awa/model/JobRow"
import type { StorageError } from "@awa/model/StorageEngine"
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"

/**
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** The job as it was claimed. `job.progress` is what the previous attempt reported last. */
  readonly job: JobRow
  /** The number of this attempt, from 1. */
  readonly attempt: number
  /** Whether a failure of this attempt ends the job. */
  readonly isLastAttempt: boolean
  /**
   * Names this attempt and no other: pass it to a system that must refuse a late writer. Compare it for equality only.
   */
  readonly fence: string
  /**
   * Reports how far the job is, in percent (clamped to 0–100), with an optional message. Kept in memory and stored with
   * the next heartbeat, or with the outcome if that is a retry, a snooze, a cancellation or a failure.
   *
   * All the progress of an attempt, with its metadata, takes at most 1 MiB of JSON. Going beyond is a defect, which is
   * retried like any other, and leaves the progress as it was. NUL characters and lone surrogates, which PostgreSQL
   * cannot store, are left out or replaced.
   */
  readonly setProgress: (percent: number, message?: string) => Effect.Effect<void>
  /**
   * Merges these keys into the `metadata` of the progress: a checkpoint the next attempt finds in
   * `job.progress.metadata`. Values must be JSON; anything else is a defect, as is exceeding the
   * limit that `setProgress` names.
   */
  readonly updateMetadata: (metadata: Readonly<Record<string, unknown>>) => Effect.Effect<void>
  /** Stores reported progress now. Does nothing when there is nothing new. */
  readonly flushProgress: Effect.Effect<void, StorageError>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class JobContext extends Context.Tag("@awa/worker/JobContext")<JobContext, Service>() {}
