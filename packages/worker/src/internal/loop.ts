import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import * as Backoff from "./backoff.js"
import { recordSpan } from "./tracing.js"

/** A background loop as the health check sees it. */
export interface Loop {
  readonly name: string
  readonly isAlive: () => boolean
  /** When a turn last succeeded, in milliseconds of the `Clock`. */
  readonly lastSuccess: () => number | null
  /** For how long it has only failed, in milliseconds; 0 while it works. */
  readonly failingFor: () => number
  readonly fiber: Fiber.RuntimeFiber<never>
}

export interface Options<A, E, R> {
  readonly name: string
  /** One round of work. */
  readonly turn: Effect.Effect<A, E, R>
  /** What to wait for before the first round; nothing by default. */
  readonly delay?: Effect.Effect<void>
  /** What to wait for after a round that succeeded. */
  readonly pause: (result: A) => Effect.Effect<void>
  /** How much a round did; one that did something is recorded as a span. */
  readonly worked?: (result: A) => number
  readonly signal: (signal: Signal) => void
}

const firstBackoff = Duration.millis(100)

const longestBackoff = Duration.seconds(2)

/**
 * Every background loop of a worker: turn, pause, for ever. A turn may fail or die as it likes: the loop says so once,
 * waits a little longer every time, and goes on. Its statements make no spans.
 */
export const fork = <A, E, R>(options: Options<A, E, R>): Effect.Effect<Loop, never, R | Scope.Scope> =>
  Effect.gen(function*() {
    const { delay = Effect.void, name, pause, signal, turn, worked } = options
    let alive = true
    let lastSuccess: number | null = null
    let failures = 0
    let firstFailure = 0
    let lastFailure = 0

    const once = Effect.gen(function*() {
      const startTime = yield* Clock.currentTimeNanos
      const result = yield* turn
      lastSuccess = yield* Clock.currentTimeMillis
      if (failures > 0) {
        failures = 0
        yield* Effect.logInfo(`${name} works again`)
      }
      const count = worked?.(result) ?? 0
      if (count > 0) yield* recordSpan(name, startTime, { "awa.count": count })
      yield* pause(result)
    })

    const failed = Effect.fnUntraced(function*(cause: Cause.Cause<E>) {
      lastFailure = yield* Clock.currentTimeMillis
      if (failures === 0) firstFailure = lastFailure
      failures += 1
      signal({ _tag: "failed", loop: name, failures })
      if (failures === 1) yield* Effect.logWarning(`${name} failed, trying again`, cause)
      yield* Effect.sleep(yield* Backoff.delay(failures, firstBackoff, longestBackoff))
    })

    const fiber = yield* once.pipe(
      Effect.catchAllCause(failed),
      // Saying that something failed may fail too.
      Effect.catchAllCause(() => Effect.sleep(longestBackoff)),
      Effect.forever,
      (rounds) => Effect.zipRight(delay, rounds),
      Effect.ensuring(Effect.sync(() => {
        alive = false
      })),
      Effect.withTracerEnabled(false),
      Effect.interruptible,
      Effect.forkScoped
    )
    return {
      name,
      fiber,
      isAlive: () => alive,
      lastSuccess: () => lastSuccess,
      failingFor: () => failures === 0 ? 0 : lastFailure - firstFailure
    }
  })

/**
 * A loop that opens something again and again: `open` is its turn, and it pauses for as long as `hold` says that what was
 * opened is good. Then that is closed.
 */
export const forkSessions = <A, E, R>(options: {
  readonly name: string
  readonly open: Effect.Effect<A, E, R | Scope.Scope>
  readonly hold: (opened: A) => Effect.Effect<void>
  readonly signal: (signal: Signal) => void
}): Effect.Effect<Loop, never, Exclude<R, Scope.Scope> | Scope.Scope> =>
  Effect.gen(function*() {
    // Made before the loop, closed after it: the end of the loop is no loss of its session.
    const sessions = yield* Scope.fork(yield* Effect.scope, ExecutionStrategy.sequential)
    const turn = Effect.flatMap(Scope.fork(sessions, ExecutionStrategy.sequential), (session) =>
      Scope.extend(options.open, session).pipe(
        Effect.onError((cause) =>
          Scope.close(session, Exit.failCause(cause))
        ),
        Effect.map((opened) => ({ opened, session }))
      ))
    return yield* fork({
      name: options.name,
      turn,
      pause: ({ opened, session }) => Effect.ensuring(options.hold(opened), Scope.close(session, Exit.void)),
      signal: options.signal
    })
  })

/** The pause of a loop that runs at an interval. */
export const interval = (length: Duration.Duration): Effect.Effect<void> =>
  Effect.flatMap(Backoff.jittered(length), Effect.sleep)

/** The pause of a loop that runs at an interval, or earlier when it is woken. */
export const intervalOrWake = (length: Duration.Duration, wake: Effect.Latch): Effect.Effect<void> =>
  Effect.flatMap(Backoff.jittered(length), (millis) => Effect.timeoutOption(wake.await, millis)).pipe(
    Effect.zipRight(Effect.sync(() => wake.unsafeClose()))
  )
