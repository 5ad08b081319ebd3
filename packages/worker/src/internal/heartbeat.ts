import type { AttemptToken, Beat, Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Arr from "effect/Array"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { Attempt, Attempts } from "./attempts.js"
import type { Claims } from "./claims.js"
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

    const beat = Effect.flatMap(Clock.currentTimeMillis, (now) => {
      const due = Arr.filter(
        attempts.values(),
        (attempt) => attempt.pendingProgress !== undefined || now - attempt.startedAt >= intervalMillis
      )
      return Effect.reduce(Arr.chunksOf(due, chunkSize), { count: 0, lost: 0 }, (sum, chunk) =>
        Effect.map(beatChunk(chunk), (lost) => ({ count: sum.count + chunk.length, lost: sum.lost + lost })))
    })

    const beatChunk = (chunk: ReadonlyArray<Attempt>) => {
      const snapshots = chunk.map((attempt) =>
        attempt.pendingProgress
      )
      return Effect.map(
        engine.heartbeat(
          owner,
          chunk.map((attempt, i) =>
            toBeat(attempt, snapshots[i])
          )
        ),
        (held) => {
          let lost = 0
          chunk.forEach((attempt, i) => {
            if (settle(attempt, snapshots[i], held[i] === true)) lost += 1
          })
          return lost
        }
      )
    }

    const returnForgotten = Effect.gen(function*() {
      const lostAnswer = claims.hasLost
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
