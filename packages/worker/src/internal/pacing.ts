import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

/**
 * Pauses of a few milliseconds between statements follow the real clock, also under `TestClock`: they are about how fast
 * the database answers, not about the time jobs live in.
 */
const clock = Clock.make()

export const now = (): number => clock.unsafeCurrentTimeMillis()

/** Waits for `self`, but no longer than this. */
export const atMost = <A, R>(self: Effect.Effect<A, never, R>, millis: number): Effect.Effect<void, never, R> =>
  Effect.withClock(Effect.asVoid(Effect.timeoutOption(self, millis)), clock)

export const sleep = (millis: number): Effect.Effect<void> => Effect.withClock(Effect.sleep(millis), clock)
