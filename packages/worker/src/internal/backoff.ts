import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"

/**
 * How long to wait after so many failures in a row: doubling from `first` up to `most`, then somewhere in the upper half
 * of that, so that many workers do not come back at the same moment.
 */
export const delay = (failures: number, first: Duration.Duration, most: Duration.Duration) =>
  Effect.map(Random.next, (random) => {
    const full = Math.min(Duration.toMillis(most), Duration.toMillis(first) * 2 ** Math.max(0, failures - 1))
    return Duration.millis(Math.ceil(full * (0.5 + random / 2)))
  })

/** An interval, or up to a tenth less: what many workers do at the same interval spreads out. */
export const jittered = (interval: Duration.Duration) =>
  Effect.map(Random.next, (random) => Duration.millis(Math.ceil(Duration.toMillis(interval) * (1 - random / 10))))
