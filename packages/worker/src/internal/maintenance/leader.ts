import type { Service as StorageEngine } from "@awa/model/StorageEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import type { Signal } from "../../Signals.js"
import type { Leadership, Term } from "../leadership.js"
import * as Loop from "../loop.js"
import { deadLetterPolicy, type Settings } from "../settings.js"
import { cancelAllRequested } from "./cancel.js"
import { cleanupAll } from "./deadLetters.js"
import { expireAll } from "./expire.js"
import { promoteAll } from "./promote.js"
import { reclaim } from "./reclaim.js"
import { rescueAll } from "./rescue.js"

export interface Leader {
  readonly loop: Loop.Loop
  readonly isLeading: () => boolean
}

export interface Options {
  readonly engine: StorageEngine
  readonly leadership: Leadership
  readonly settings: Settings
  readonly signal: (signal: Signal) => void
}

/**
 * A worker that has just started has jobs to look for, and so have all the others of a deployment: what can wait does not
 * compete with them. It never waits longer than its interval.
 */
const settleTime = Duration.seconds(5)

const settle = (interval: Duration.Duration): Effect.Effect<void> => Loop.interval(Duration.min(interval, settleTime))

/**
 * Runs for leader, and while it leads does what must be done once for all workers: promotion, rescue, retention. Each task
 * is a loop of its own, so that a slow one delays no other. The term ends with the lock's connection.
 */
export const make = ({ engine, leadership, settings, signal }: Options): Effect.Effect<Leader, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { dlq, heartbeat, maintenance } = settings
    const deadLetters = deadLetterPolicy(settings)
    let leading = false

    const setLeading = (value: boolean) =>
      Effect.suspend(() => {
        leading = value
        signal({ _tag: "leader", leading })
        return value ? Effect.logDebug("This worker is the leader now") : Effect.void
      })

    const worked = (count: number) => count

    const tasks = Effect.all([
      Loop.fork({
        name: "maintenance.promote",
        turn: promoteAll(engine, signal),
        pause: () => Loop.interval(maintenance.promoteInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.cancel_requested",
        turn: cancelAllRequested(engine),
        pause: () => Loop.interval(maintenance.promoteInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.rescue_stale",
        turn: rescueAll((limit) => engine.rescueStale({ staleness: heartbeat.staleness, limit, deadLetters }), signal),
        delay: settle(heartbeat.rescueInterval),
        pause: () => Loop.interval(heartbeat.rescueInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.rescue_deadline",
        turn: rescueAll((limit) => engine.rescueExpired({ limit, deadLetters }), signal),
        delay: settle(maintenance.deadlineRescueInterval),
        pause: () => Loop.interval(maintenance.deadlineRescueInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.reclaim",
        turn: reclaim(engine, settings, signal),
        delay: settle(maintenance.reclaimInterval),
        pause: () => Loop.interval(maintenance.reclaimInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.expire",
        turn: expireAll(engine, settings.retention, signal),
        delay: settle(maintenance.expireInterval),
        pause: () => Loop.interval(maintenance.expireInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.sweep_keys",
        turn: engine.sweepKeys(1000),
        delay: settle(maintenance.keySweepInterval),
        pause: () => Loop.interval(maintenance.keySweepInterval),
        worked,
        signal
      }),
      Loop.fork({
        name: "maintenance.dlq_cleanup",
        turn: cleanupAll(engine, dlq, signal),
        delay: settle(dlq.cleanupInterval),
        pause: () => Loop.interval(dlq.cleanupInterval),
        worked,
        signal
      })
    ])

    /** Starts the tasks if the lead is to be had; they end with the scope. */
    const open = Effect.tap(leadership.acquire, (term) =>
      Option.isNone(term)
        ? Effect.void
        : Effect.acquireRelease(setLeading(true), () => setLeading(false)).pipe(Effect.zipRight(tasks)))

    const hold = Option.match({
      onNone: () => Loop.interval(maintenance.leaderElectionInterval),
      onSome: (term: Term) =>
        Effect.raceFirst(
          Effect.forever(Effect.zipRight(Loop.interval(maintenance.leaderCheckInterval), term.check)),
          term.lost
        ).pipe(
          Effect.flip,
          Effect.flatMap((loss) => Effect.logWarning(`This worker does not lead any more: ${loss}`))
        )
    })

    const loop = yield* Loop.forkSessions({ name: "leader election", open, hold, signal })
    return { loop, isLeading: () => leading }
  })
