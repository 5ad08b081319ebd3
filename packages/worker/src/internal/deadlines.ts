import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { Attempts } from "./attempts.js"
import * as Loop from "./loop.js"
import type { Queue } from "./settings.js"

/** Attempts whose deadlines lie this close together are interrupted in one go. */
const granularityMillis = 10

/**
 * Interrupts attempts that ran past their deadline, so that their slots come free. Where a whole worker is gone, the
 * leader's rescue does it.
 *
 * One watcher sleeps until the earliest deadline it knows of. An attempt that begins meanwhile cannot end earlier than
 * the shortest deadline of all queues from now, so it never sleeps longer than that.
 */
export const make = (options: {
  readonly queues: ReadonlyArray<Queue>
  readonly attempts: Attempts
  /** Opened when the deadline of a queue may have become shorter. */
  readonly changed: Effect.Latch
  readonly signal: (signal: Signal) => void
}): Effect.Effect<void, never, Scope.Scope> => {
  const { changed, queues } = options
  const deadlines = () => queues.flatMap(({ deadline }) => deadline === null ? [] : [Duration.toMillis(deadline)])
  if (deadlines().length === 0) return Effect.void

  const turn = Effect.flatMap(Clock.currentTimeMillis, (now) => {
    let next = now + Math.min(...deadlines())
    const expired: Array<string> = []
    for (const attempt of options.attempts.values()) {
      if (attempt.closing || attempt.stop !== null) continue
      if (attempt.deadlineAt <= now) {
        attempt.interrupt("deadline")
        expired.push(attempt.fence)
      } else {
        next = Math.min(next, attempt.deadlineAt)
      }
    }
    const wait = Math.max(next - now, granularityMillis)
    return expired.length === 0
      ? Effect.succeed(wait)
      : Effect.as(Effect.logWarning(`${expired.length} attempts ran past their deadline and were interrupted`), wait)
  })

  const pause = (millis: number) =>
    Effect.zipRight(Effect.timeoutOption(changed.await, millis), Effect.sync(() => changed.unsafeClose()))

  return Effect.asVoid(Loop.fork({ name: "deadline watcher", turn, pause, signal: options.signal }))
}
