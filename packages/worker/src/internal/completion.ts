import type {
  Completion,
  DeadLetterPolicy,
  Outcome,
  Service as StorageEngine,
  StorageError,
  Verdict
} from "@awa/model/StorageEngine"
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { Attempt, Attempts } from "./attempts.js"
import * as Backoff from "./backoff.js"
import { isAtFault } from "./fault.js"
import * as Loop from "./loop.js"

export interface Completer {
  /** Hands over the end of an attempt. Takes no time and never fails; the registry forgets the attempt once it is stored. */
  readonly submit: (attempt: Attempt, outcome: Outcome) => void
  /** For a claim that is about to be made: all there is to store, if that is no more than this and nothing is being stored. */
  readonly takeAlong: (most: number) => Batch | null
  /** Waits until there is little enough to store that more jobs may be claimed. */
  readonly roomForMore: Effect.Effect<void>
  /** Waits until everything handed over so far is stored. */
  readonly drained: Effect.Effect<void>
  /** How many outcomes are not stored yet. */
  readonly backlog: () => number
  /** Since when the batch in front is tried in vain, in milliseconds of the `Clock`. */
  readonly failingSince: () => number | null
}

/** Outcomes that somebody else stores. They come back if that fails, and are stored without him then. */
export interface Batch {
  readonly completions: ReadonlyArray<Completion>
  /** Forgets the attempts at once; the effect only tells of it. */
  readonly stored: (verdicts: ReadonlyArray<Verdict>) => Effect.Effect<void>
  readonly failed: () => void
}

export interface Options {
  readonly engine: StorageEngine
  readonly owner: string
  readonly batchSize: number
  readonly deadLetters: DeadLetterPolicy
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
    const { attempts, batchSize, deadLetters, engine, owner, signal } = options
    // What is being stored is in front, until it is settled.
    const pending: Array<Entry> = []
    const work = Effect.unsafeMakeLatch(false)
    const room = Effect.unsafeMakeLatch(true)
    const empty = Effect.unsafeMakeLatch(true)

    let failingSince: number | null = null
    /** The foremost entries are being stored. */
    let storing = false
    /** How many outcomes claims have taken along. */
    let carried = 0
    /** The last claim that took something along has failed. */
    let alone = false

    const forget = (entries: ReadonlyArray<Entry>) => {
      failingSince = null
      for (const { attempt } of entries) attempts.forget(attempt)
      if (pending.length <= batchesOfRoom * batchSize) room.unsafeOpen()
      if (pending.length > 0) return
      work.unsafeClose()
      if (carried === 0) empty.unsafeOpen()
    }

    /** The foremost entries are done with. */
    const settle = (count: number) => {
      alone = false
      forget(pending.splice(0, count))
    }

    const acknowledge = (batch: ReadonlyArray<Entry>, verdicts: ReadonlyArray<Verdict>) =>
      Effect.suspend(() => {
        signal({
          _tag: "flushed",
          get results() { // mostly nobody looks
            return batch.map(({ attempt, outcome }, i) => ({
              fence: attempt.fence,
              outcome: outcome._tag,
              verdict: verdicts[i]!
            }))
          }
        })
        const refused = verdicts.filter((verdict) => verdict === "refused").length
        const tellRefused = refused === 0
          ? Effect.void
          : Effect.logWarning(`${refused} attempts had been taken from this worker; their results are ignored`)
        const failed = batch.filter((entry, i) => errorOf(entry) !== null && verdicts[i] !== "refused")
        return failed.length === 0
          ? tellRefused
          : Effect.zipRight(tellRefused, Effect.forEach(failed, tellFailed, { discard: true }))
      })

    /** What has failed for good is a warning, what is tried again is not. */
    const tellFailed = (entry: Entry) => {
      const { job } = entry.attempt.claimed
      const isLast = entry.outcome._tag === "fail" || job.attempt >= job.maxAttempts
      const log = isLast ? Effect.logWarning : Effect.logInfo
      return log(`Job ${isLast ? "failed" : "will be tried again"}: ${errorOf(entry)}`).pipe(
        Effect.annotateLogs({ jobId: job.id, kind: job.kind, queue: job.queue, attempt: job.attempt })
      )
    }

    const giveUp = ({ attempt }: Entry, cause: Cause.Cause<StorageError>) => {
      settle(1)
      attempts.abandon(attempt)
      return Effect.logError("The result of a job cannot be stored; the job is left to rescue", cause).pipe(
        Effect.annotateLogs({ jobId: attempt.claimed.job.id, kind: attempt.claimed.job.kind })
      )
    }

    const store = (batch: ReadonlyArray<Entry>, failures: number): Effect.Effect<void> =>
      Effect.suspend(() => engine.complete(owner, batch.map(toCompletion), deadLetters)).pipe(
        Effect.matchCauseEffect({
          onSuccess: (verdicts) => {
            settle(batch.length)
            return acknowledge(batch, verdicts)
          },
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
        failingSince ??= yield* Clock.currentTimeMillis
        signal({ _tag: "failed", loop: "completion", failures })
        if (failures === 1) {
          yield* Effect.logWarning(`Storing ${batch.length} results failed, trying again until it works`, cause)
        }
        yield* Effect.sleep(yield* Backoff.delay(failures, firstDelay, longestDelay))
        yield* store(batch, failures)
      })

    const storeNext = Effect.suspend(() => {
      if (pending.length === 0) return Effect.void
      storing = true
      return Effect.ensuring(
        store(pending.slice(0, batchSize), 0),
        Effect.sync(() => {
          storing = false
        })
      )
    })

    yield* Loop.fork({
      name: "completion",
      // A dispatcher that has waited for the end of this attempt comes first.
      turn: Effect.zipRight(Effect.yieldNow(), storeNext),
      pause: () => work.await,
      signal
    })

    const takeAlong = (most: number): Batch | null => {
      if (storing || alone || pending.length === 0 || pending.length > most) return null
      const completions = pending.map(toCompletion)
      const batch = pending.splice(0)
      carried += batch.length
      work.unsafeClose()
      return {
        completions,
        stored: (verdicts) => {
          carried -= batch.length
          forget(batch)
          return acknowledge(batch, verdicts)
        },
        failed: () => {
          carried -= batch.length
          pending.push(...batch) // behind what may be being stored
          alone = true
          work.unsafeOpen()
        }
      }
    }

    return {
      submit: (attempt, outcome) => {
        pending.push({ attempt, outcome })
        if (pending.length > batchesOfRoom * batchSize) room.unsafeClose()
        empty.unsafeClose()
        work.unsafeOpen()
      },
      takeAlong,
      roomForMore: room.await,
      drained: empty.await,
      backlog: () => pending.length + carried,
      failingSince: () => failingSince
    }
  })

const errorOf = ({ attempt, outcome }: Entry): string | null => {
  if (outcome._tag === "fail") return outcome.error
  if (outcome._tag !== "retry") return null
  const { attempt: number, maxAttempts } = attempt.claimed.job
  return outcome.error ?? (number >= maxAttempts ? "max_attempts exhausted" : null)
}

const toCompletion = ({ attempt, outcome }: Entry): Completion => {
  const progress = attempt.pendingProgress
  const { token } = attempt.claimed
  return progress === undefined ? { token, outcome } : { token, outcome, progress: progress.value }
}
