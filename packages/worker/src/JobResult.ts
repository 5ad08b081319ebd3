/**
 * What a handler may answer instead of plain success.
 *
 * Every value is also an effect that succeeds with itself, so it can be returned from a generator as well as from
 * `Effect.catchTag`.
 *
 * @since 0.1.0
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Effectable from "effect/Effectable"
import * as Predicate from "effect/Predicate"

const TypeId: unique symbol = Symbol.for("@awa/worker/JobResult")

abstract class Result extends Effectable.Class<JobResult> {
  readonly [TypeId] = TypeId
  override commit(): Effect.Effect<JobResult> {
    // The subclasses below are all the members of `JobResult` there are.
    return Effect.succeed(this as unknown as JobResult)
  }
}

/**
 * The job is done: the same as answering nothing.
 *
 * @since 0.1.0
 * @category models
 */
export class Completed extends Result {
  readonly _tag = "Completed"
}

/**
 * This attempt failed and the next one shall start after `delay`. The attempt counts: on the last one the job fails.
 *
 * @since 0.1.0
 * @category models
 */
export class RetryAfter extends Result {
  readonly _tag = "RetryAfter"
  constructor(readonly delay: Duration.Duration) {
    super()
  }
}

/**
 * Not yet: the job shall run again after `delay`. It is no failure and the attempt does not count.
 *
 * @since 0.1.0
 * @category models
 */
export class Snooze extends Result {
  readonly _tag = "Snooze"
  constructor(readonly delay: Duration.Duration) {
    super()
  }
}

/**
 * The job is given up cleanly, with a reason.
 *
 * @since 0.1.0
 * @category models
 */
export class Cancel extends Result {
  readonly _tag = "Cancel"
  constructor(readonly reason: string) {
    super()
  }
}

/**
 * @since 0.1.0
 * @category models
 */
export type JobResult = Completed | RetryAfter | Snooze | Cancel

/**
 * @since 0.1.0
 * @category guards
 */
export const isJobResult = (u: unknown): u is JobResult => Predicate.hasProperty(u, TypeId)

/**
 * Success.
 *
 * @since 0.1.0
 * @category constructors
 */
export const completed: JobResult = new Completed()

/**
 * Failed for now, try again after this time.
 *
 * @since 0.1.0
 * @category constructors
 */
export const retryAfter = (delay: Duration.DurationInput): JobResult => new RetryAfter(Duration.decode(delay))

/**
 * Not yet, run again after this time; the attempt does not count.
 *
 * @since 0.1.0
 * @category constructors
 */
export const snooze = (delay: Duration.DurationInput): JobResult => new Snooze(Duration.decode(delay))

/**
 * Given up, with a reason that is stored with the job.
 *
 * @since 0.1.0
 * @category constructors
 */
export const cancel = (reason: string): JobResult => new Cancel(reason)
