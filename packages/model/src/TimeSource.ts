/**
 * Whose clock decides what is due.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

/**
 * The instant every time-dependent statement is given. `null`, the default, leaves the decision to the database, so
 * that processes with clocks of their own agree. Under `TimeSource.layerFromClock` Effect's `Clock` decides instead, and
 * a test that moves `TestClock` moves schedules, backoff, deadlines and rescue on a real database.
 *
 * @since 0.1.0
 * @category references
 */
export class TimeSource extends Context.Reference<TimeSource>()("@awa/model/TimeSource", {
  defaultValue: (): Effect.Effect<Date | null> => Effect.succeed(null)
}) {
  /**
   * The instant of Effect's `Clock`.
   *
   * @since 0.1.0
   */
  static readonly fromClock: Effect.Effect<Date> = Effect.map(Clock.currentTimeMillis, (millis) => new Date(millis))

  /**
   * Lets Effect's `Clock` decide instead of the database: for tests.
   *
   * @since 0.1.0
   */
  static readonly layerFromClock: Layer.Layer<TimeSource> = Layer.succeed(TimeSource, TimeSource.fromClock)
}
