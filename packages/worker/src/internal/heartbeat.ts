import type { AttemptToken, Beat, Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Arr from "effect/Array"
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { Attempt, Attempts } from "./attempts.js"
import type { Claims } from "./claims.js"
import { isAtFault } from "./fault.js"
import * as Loop from "./loop.js"
import * as Outcome from "./outcome.js"
import type { Snapshot } from "./progress.js"

/** So many attempts one statement speaks for. */
const chunkSize = 500

export interface Options {
  readonly engine: StorageEngine
  readonly owner: string
  readonly attempts: Attempts
  readonly claims: Claims
  readonly interval: Duration.Duration
  readonly signal: (signal: Signal) => void
}

export interface Heartbeat {
  readonly loop: Loop.Loop
  /** One pass more, for the end. */
  readonly lastPass: Effect.Effect<void, StorageError>
}

/**
 * Says for long attempts that they still run, and stores their progress. An attempt that is no longer ours is
 * interrupted. What the database holds open under our name although we know nothing of it is given back: the jobs of a
 * claim whose answer was lost.
 */
export const make = (options: Options): Effect.Effect<Heartbeat, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { attempts, claims, engine, interval, owner, signal } = options
    const intervalMillis = Duration.toMillis(interval)
    const startedAt = yield* Clock.currentTimeMillis

    const beat = Effect.flatMap(Clock.currentTimeMillis, (now) => {
      const due = Arr.filter(
        attempts.values(),
        (attempt) => attempt.pendingProgress !== undefined || now - attempt.startedAt >= intervalMillis
      )
      const faults: Array<Cause.Cause<StorageError>> = []
      return Effect.reduce(Arr.chunksOf(due, chunkSize), { count: 0, lost: 0 }, (sum, chunk) =>
        Effect.map(beatChunk(chunk, faults), (lost) => ({ count: sum.count + chunk.length, lost: sum.lost + lost })))
        .pipe(
          // Only when everybody had a turn.
          Effect.tap(() =>
            faults.length > 0 ? Effect.failCause(faults[0]!) : Effect.void
          )
        )
    })

    /**
     * Answers how many are lost. What the database refuses is cut in halves until the attempt at fault stands alone, so
     * that the others are renewed. That one beats without its progress, or becomes one of the faults.
     */
    const beatChunk = (
      chunk: ReadonlyArray<Attempt>,
      faults: Array<Cause.Cause<StorageError>>,
      withProgress = true
    ): Effect.Effect<number, StorageError> =>
      Effect.suspend(() => {
        const snapshots = chunk.map((attempt) =>
          withProgress ? attempt.pendingProgress : undefined
        )
        return Effect.suspend(() => engine.heartbeat(owner, chunk.map((attempt, i) => toBeat(attempt, snapshots[i]))))
          .pipe(
            Effect.map((held) => chunk.filter((attempt, i) => settle(attempt, snapshots[i], held[i] === true)).length),
            Effect.catchAllCause((cause) => {
              if (!isAtFault(cause)) return Effect.failCause(cause)
              if (chunk.length > 1) {
                const middle = chunk.length >> 1
                const [first, second] = [chunk.slice(0, middle), chunk.slice(middle)]
                return Effect.zipWith(beatChunk(first, faults), beatChunk(second, faults), (a, b) => a + b)
              }
              const snapshot = snapshots[0]
              if (snapshot !== undefined) return beatWithout(chunk[0]!, snapshot, faults, cause)
              faults.push(cause)
              return Effect.succeed(0)
            })
          )
      })

    /** Progress that alone is at fault is given up, lest the outcome be refused with it. */
    const beatWithout = (
      attempt: Attempt,
      snapshot: Snapshot,
      faults: Array<Cause.Cause<StorageError>>,
      cause: Cause.Cause<StorageError>
    ) =>
      Effect.suspend(() => {
        const known = faults.length
        return Effect.tap(beatChunk([attempt], faults, false), () => {
          if (faults.length > known) return Effect.void
          attempt.progress.acknowledge(snapshot.generation)
          const { id, kind } = attempt.claimed.job
          return Effect.logWarning("The progress a job reported cannot be stored and is dropped", cause).pipe(
            Effect.annotateLogs({ jobId: id, kind })
          )
        })
      })

    const returnForgotten = Effect.gen(function*() {
      const lostAnswer = claims.hasLost
      // No claim of this worker is older than the worker.
      if (!lostAnswer && (yield* Clock.currentTimeMillis) - startedAt < intervalMillis) return 0
      const open = yield* engine.openAttempts(owner, lostAnswer ? Duration.zero : interval)
      attempts.keepAbandoned(open.map((token) => token.fence))
      const known = attempts.known()
      const forgotten = open.filter((token) => !known.has(token.fence) && !claims.isOpen(token.nonce))
      const verdicts = yield* Effect.forEach(
        Arr.chunksOf(forgotten, chunkSize),
        (chunk) => engine.complete(owner, chunk.map(toReturn))
      )
      if (lostAnswer) claims.forgetLost()
      // An attempt that was acknowledged while we asked is refused.
      return verdicts.flat().filter((verdict) => verdict === "accepted").length
    })

    const pass = Effect.gen(function*() {
      const { count, lost } = yield* beat
      const returned = yield* returnForgotten
      if (returned > 0) {
        yield* Effect.logWarning(
          `Gave back ${returned} of this worker's claims whose answer never arrived`
        )
      }
      signal({ _tag: "beat", count, lost, returned })
      return count
    })

    const loop = yield* Loop.fork({
      name: "heartbeat",
      turn: pass,
      pause: () => Loop.intervalOrWake(interval, claims.lost),
      worked: (count) => count,
      signal
    })
    return { loop, lastPass: Effect.asVoid(beat) }
  })

/** Stores what one attempt reported, now. */
export const flushProgress = (
  engine: StorageEngine,
  owner: string,
  attempt: Attempt
): Effect.Effect<void, StorageError> =>
  Effect.suspend(() => {
    const snapshot = attempt.pendingProgress
    return snapshot === undefined
      ? Effect.void
      : Effect.map(
        engine.heartbeat(owner, [toBeat(attempt, snapshot)]),
        ([held]) => void settle(attempt, snapshot, held === true)
      )
  })

/** Takes the answer for one attempt. True if it was lost just now. */
const settle = (attempt: Attempt, snapshot: Snapshot | undefined, held: boolean): boolean => {
  if (held) {
    if (snapshot !== undefined) attempt.progress.acknowledge(snapshot.generation)
    return false
  }
  // Closed is not lost: the answer may have been overtaken by the acknowledgement of its outcome.
  if (attempt.closing || attempt.stop === "lost") return false
  attempt.interrupt("lost")
  return true
}

const toBeat = (attempt: Attempt, snapshot: Snapshot | undefined): Beat => {
  const { token } = attempt.claimed
  return snapshot === undefined ? { token } : { token, progress: snapshot.value }
}

const toReturn = (token: AttemptToken) => ({ token, outcome: Outcome.returned })
