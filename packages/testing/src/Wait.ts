/**
 * Waiting for what happens elsewhere: in the database, in a worker, in another process.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestServices from "effect/TestServices"

const live = TestServices.provideLive

/**
 * Repeats a check until it succeeds, whether it failed or threw an assertion, and fails like its last run when that has
 * taken too long.
 *
 * The pauses pass on the real clock while the check keeps the caller's: so a test under `TestClock` can wait for
 * PostgreSQL without moving its own time.
 *
 * @example
 * ```ts
 * import { Jobs, Wait } from "@awa/testing"
 * import { Effect } from "effect"
 * import * as assert from "node:assert"
 *
 * const drained = Wait.eventually(
 *   Effect.map(Jobs.countByState(), ({ available, running }) => assert.strictEqual(available + running, 0))
 * )
 * ```
 *
 * @since 0.1.0
 * @category waiting
 */
export const eventually = <A, E, R>(
  check: Effect.Effect<A, E, R>,
  options?: {
    /** Real time until the check must have succeeded. Default: 10 seconds. */
    readonly within?: Duration.DurationInput | undefined
    /** Real time between two runs. Default: 5 milliseconds. */
    readonly every?: Duration.DurationInput | undefined
  }
): Effect.Effect<A, E, R> =>
  Effect.gen(function*() {
    const pause = live(Effect.sleep(options?.every ?? "5 millis"))
    const now = live(Clock.currentTimeMillis)
    const end = (yield* now) + Duration.toMillis(options?.within ?? "10 seconds")
    const again: Effect.Effect<A, E, R> = Effect.catchAllCause(check, (cause) =>
      Effect.flatMap(now, (now) =>
        now > end || Cause.isInterrupted(cause) ? Effect.failCause(cause) : Effect.zipRight(pause, again)))
    return yield* again
  })
