import type { ClaimedJob, DeadLetterPolicy, Service as StorageEngine } from "@awa/model/StorageEngine"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import type { Service as Notifier } from "../Notifier.js"
import type { Signal } from "../Signals.js"
import type { AttemptQueue } from "./attempts.js"
import type { Claims } from "./claims.js"
import type { Completer } from "./completion.js"
import type { Executor } from "./executor.js"
import { newNonce } from "./identity.js"
import * as Loop from "./loop.js"
import * as Pacing from "./pacing.js"
import { Permits } from "./permits.js"
import type { ClaimDurability, Queue } from "./settings.js"
import { type Decision, Wakeup } from "./wakeup.js"

export interface Dispatcher {
  readonly queue: string
  readonly permits: Permits
  readonly loop: Loop.Loop
  /** Whether it waits to be told of work. */
  readonly isAsleep: () => boolean
  /** Makes it claim now. */
  readonly wake: () => void
}

export interface Options {
  readonly queue: Queue
  readonly owner: string
  readonly durability: ClaimDurability
  readonly deadLetters: DeadLetterPolicy
  readonly engine: StorageEngine
  readonly claims: Claims
  readonly executor: Executor
  readonly completer: Completer
  readonly notifier: Notifier
  /** Whether the worker shuts down: then what a claim still brings is given back. */
  readonly isStopping: () => boolean
  readonly signal: (signal: Signal) => void
}

/** While there is a backlog, freed slots are gathered this long before a claim, so that claims stay large. */
const gatherMillis = 2

/** The part of a queue's slots that is worth a claim of its own. */
const gatherPart = 8

/** With all slots taken for so long, nobody would act on a notification. */
const saturatedMillis = 20

/**
 * Claims the jobs of one queue: takes the free slots first, then so many jobs, and starts each on its slot. Between
 * claims it waits as `Wakeup` says.
 */
export const make = (options: Options): Effect.Effect<Dispatcher, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { claims, completer, deadLetters, durability, engine, executor, isStopping, notifier, owner, queue, signal } =
      options
    const permits = new Permits(queue.maxWorkers)
    const wakeup = new Wakeup()
    const work = Effect.unsafeMakeLatch(true)
    let asleep = false
    /** The last claim came back full. */
    let backlogged = false
    /** Opened by every claim that came back full, where there are slots for a second one. */
    const backlog = Effect.unsafeMakeLatch(false)
    const enough = () => Math.max(1, Math.min(Math.floor(queue.maxWorkers / gatherPart), queue.claimBatchSize))

    yield* notifier.subscribe(queue.name, (event) => {
      if (event === "connected") wakeup.unmarked()
      work.unsafeOpen()
    })

    /** One job that cannot be started does not keep the others from it. Answers what was thrown. */
    const handOver = (
      jobs: ReadonlyArray<ClaimedJob>,
      attemptQueue: AttemptQueue,
      now: number
    ): ReadonlyArray<unknown> => {
      const run = isStopping() ? executor.giveBack : executor.start
      const defects: Array<unknown> = []
      for (const job of jobs) {
        try {
          run(job, attemptQueue, now)
        } catch (defect) {
          defects.push(defect)
        }
      }
      return defects
    }

    /** From the moment the claim is sent until every job has a fiber nothing can come in between. */
    const claim = Effect.fnUntraced(function*(limit: number) {
      const nonce = newNonce()
      // It may be overridden while the claim is under way.
      const { deadline, priorityAging } = queue
      const request = { queue: queue.name, limit, owner, nonce, deadline, priorityAging, durability }
      // With one slot the next job waits for the end of the last anyway, so both travel together.
      const ended = queue.maxWorkers === 1 ? completer.takeAlong(1) : null
      claims.begin(nonce)
      const exit = yield* Effect.exit(
        ended === null
          ? Effect.map(engine.claim(request), (jobs) => ({ jobs, verdicts: [] }))
          : engine.completeAndClaim(ended.completions, request, deadLetters)
      )
      if (Exit.isFailure(exit)) {
        permits.release(limit)
        claims.failed(nonce, exit.cause)
        ended?.failed()
        return yield* Effect.failCause(exit.cause)
      }
      const { jobs, verdicts } = exit.value
      const acknowledge = ended === null ? Effect.void : ended.stored(verdicts)
      permits.release(limit - jobs.length)
      const attemptQueue: AttemptQueue = {
        name: queue.name,
        permits,
        deadlineMillis: deadline === null ? Infinity : Duration.toMillis(deadline)
      }
      const defects = handOver(jobs, attemptQueue, yield* Clock.currentTimeMillis)
      claims.answered(nonce)
      if (defects.length > 0) {
        yield* Effect.logError(`${defects.length} jobs could not be started`, Cause.die(defects[0]))
      }
      signal({ _tag: "claimed", queue: queue.name, count: jobs.length })
      // Last: nothing that goes wrong there may keep a job from its fiber.
      yield* acknowledge
      return jobs.length
    }, Effect.uninterruptible)

    const tellMark = (held: boolean) => Effect.sync(() => signal({ _tag: "marked", queue: queue.name, held }))

    const unmark = Effect.zipRight(notifier.unmark(queue.name), tellMark(false))

    /** Waits for slots, and for room in the completer. A queue that stays full gives its mark away. */
    const awaitSlots = Effect.fnUntraced(function*() {
      yield* completer.roomForMore
      if (permits.free === 0 && wakeup.marked) {
        yield* Pacing.atMost(permits.awaitFree(1), saturatedMillis)
        if (permits.free === 0) {
          wakeup.unmarked()
          yield* unmark
        }
      }
      yield* permits.awaitFree(1)
      // Waiting with a time-out is dear, where one job follows the other.
      if (backlogged && permits.free < enough()) yield* Pacing.atMost(permits.awaitFree(enough()), gatherMillis)
    })

    const turn = Effect.gen(function*() {
      yield* awaitSlots()
      work.unsafeClose()
      const limit = permits.takeUpTo(queue.claimBatchSize)
      const wasMarked = wakeup.marked
      const count = yield* claim(limit)
      const decision = wakeup.claimed(count, limit, Pacing.now())
      backlogged = decision._tag === "again"
      if (backlogged && queue.maxWorkers > 1) backlog.unsafeOpen()
      if (wasMarked && !wakeup.marked) yield* unmark
      if (decision._tag !== "mark") return decision
      const marked = yield* notifier.mark(queue.name)
      if (marked === "held") yield* tellMark(true)
      return wakeup.markedIdle(marked, Pacing.now())
    })

    /**
     * A second claim under way while there is a backlog: the database takes the next jobs while those of the first are
     * started.
     */
    const secondClaim = Effect.gen(function*() {
      yield* backlog.await
      backlog.unsafeClose()
      yield* completer.roomForMore
      return permits.free < enough() ? 0 : yield* claim(permits.takeUpTo(queue.claimBatchSize))
    })

    const pause = (decision: Decision): Effect.Effect<void> => {
      switch (decision._tag) {
        case "again":
        case "mark":
          return Effect.void
        case "probe":
          return Pacing.atMost(work.await, decision.millis)
        case "sleep":
          return sleep
      }
    }

    const sleep = Effect.suspend(() => {
      asleep = true
      signal({ _tag: "asleep", queue: queue.name, marked: wakeup.marked })
      return Effect.ensuring(
        work.await,
        Effect.sync(() => {
          asleep = false
        })
      )
    })

    const name = `dispatcher of queue ${JSON.stringify(queue.name)}`
    const loop = yield* Loop.fork({ name, turn, pause, signal })
    yield* Loop.fork({ name: `${name}, second claim`, turn: secondClaim, pause: () => Effect.void, signal })
    return { queue: queue.name, permits, loop, isAsleep: () => asleep, wake: () => work.unsafeOpen() }
  })
