import type { Completion, Outcome, Service as StorageEngine, StorageError, Verdict } from "@awa/model/StorageEngine"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { Attempt, Attempts } from "./attempts.js"
import * as Backoff from "./backoff.js"

export interface Completer {
  /** Hands over the end of an attempt. Takes no time and never fails; the registry forgets the attempt once it is stored. */
  readonly submit: (attempt: Attempt, outcome: Outcome) => void
  /** Waits until there is little enough to store that more jobs may be claimed. */
  readonly roomForMore: Effect.Effect<void>
  /** Waits until everything handed over so far is stored. */
  readonly drained: Effect.Effect<void>
  /** How many outcomes are not stored yet. */
  readonly backlog: () => number
}

export interface Options {
  readonly engine: StorageEngine
  readonly owner: string
  readonly batchSize: number
  readonly attempts: Attempts
  readonly signal: (signal: Signal) => void
}

interface Entry {
  readonly attempt: Attempt
  readonly outcome: Outcome
}

/** Above so many batches of unstored outcomes nothing more is claimed. */
const batchesOfRoom = 4

const firstDelay = Duration.millis(50)

const longestDelay = Duration.seconds(1)

/**
 * Stores outcomes in batches. What arrives while one batch is being stored forms the next: no timer, and no waiting when
 * there is little to do.
 *
 * A batch that fails for a reason that may pass is tried until it does not. One that the database refuses is cut in
 * halves until the outcome at fault stands alone; that one is given up and its job left to rescue.
 */
export const make = (options: Options): Effect.Effect<Completer, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { attempts, batchSize, engine, owner, signal } = options
    const pending: Array<Entry> = []
    let storing = 0
    const work = Effect.unsafeMakeLatch(false)
    const room = Effect.unsafeMakeLatch(true)
    const empty = Effect.unsafeMakeLatch(true)

    const backlog = () => pending.length + storing

    const acknowledge = (batch: ReadonlyArray<Entry>, verdicts: ReadonlyArray<Verdict>) =>
      Effect.suspend(() => {
        let refused = 0
        batch.forEach(({ attempt }, i) => {
          attempts.forget(attempt.fence)
          if (verdicts[i] === "refused") refused += 1
        })
        signal({
          _tag: "flushed",
          results: batch.map(({ attempt, outcome }, i) => ({
            fence: attempt.fence,
            outcome: outcome._tag,
            verdict: verdicts[i]!
          }))
        })
        return refused === 0
          ? Effect.void
          : Effect.logWarning(`${refused} attempts had been taken from this worker; their results are ignored`)
      })

    const giveUp = ({ attempt }: Entry, cause: Cause.Cause<StorageError>) => {
      attempts.abandon(attempt.fence)
      return Effect.logError("The result of a job cannot be stored; the job is left to rescue", cause).pipe(
        Effect.annotateLogs({ jobId: attempt.claimed.job.id, kind: attempt.claimed.job.kind })
      )
    }

    const store = (batch: ReadonlyArray<Entry>, failures: number): Effect.Effect<void> =>
      engine.complete(owner, batch.map(toCompletion)).pipe(
        Effect.matchCauseEffect({
          onSuccess: (verdicts) => acknowledge(batch, verdicts),
          onFailure: (cause) => {
            if (!isAtFault(cause)) return storeAgain(batch, failures + 1, cause)
            if (batch.length === 1) return giveUp(batch[0]!, cause)
            const middle = batch.length >> 1
            return Effect.zipRight(store(batch.slice(0, middle), 0), store(batch.slice(middle), 0))
          }
        })
      )

    const storeAgain = (batch: ReadonlyArray<Entry>, failures: number, cause: Cause.Cause<StorageError>) =>
      Effect.gen(function*() {
        signal({ _tag: "failed", loop: "completion", failures })
        if (failures === 1) {
          yield* Effect.logWarning(`Storing ${batch.length} results failed, trying again until it works`, cause)
        }
        yield* Effect.sleep(yield* Backoff.delay(failures, firstDelay, longestDelay))
        yield* store(batch, failures)
      })

    const storeNext = Effect.suspend(() => {
      const batch = pending.splice(0, batchSize)
      storing = batch.length
      return Effect.ensuring(
        store(batch, 0),
        Effect.sync(() => {
          storing = 0
          if (backlog() <= batchesOfRoom * batchSize) room.unsafeOpen()
          if (pending.length > 0) return
          work.unsafeClose()
          empty.unsafeOpen()
        })
      )
    })

    yield* work.await.pipe(Effect.zipRight(storeNext), Effect.forever, Effect.forkScoped)

    return {
      submit: (attempt, outcome) => {
        pending.push({ attempt, outcome })
        if (backlog() > batchesOfRoom * batchSize) room.unsafeClose()
        empty.unsafeClose()
        work.unsafeOpen()
      },
      roomForMore: room.await,
      drained: empty.await,
      backlog
    }
  })

const toCompletion = ({ attempt, outcome }: Entry): Completion => {
  const progress = attempt.pendingProgress
  const { token } = attempt.claimed
  return progress === undefined ? { token, outcome } : { token, outcome, progress: progress.value }
}

/** SQLSTATE classes that blame the data of the statement: then one of the batch's outcomes is at fault. */
const blamesData = /^(2[0-3]|P0|XX)/

/** Whether trying the same batch again is pointless. Everything else passes, or an operator sees to it. */
const isAtFault = (cause: Cause.Cause<StorageError>): boolean => {
  const failure = Cause.failureOrCause(cause)
  if (failure._tag === "Right") return !Cause.isInterrupted(failure.right)
  const error = failure.left
  return error._tag === "StorageInconsistent" ||
    (error._tag === "DatabaseError" && error.sqlState !== null && blamesData.test(error.sqlState))
}
