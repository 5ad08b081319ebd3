import type { Service as StorageEngine } from "@awa/model/StorageEngine"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type * as Awa from "../Awa.js"
import type { Service as Notifier } from "../Notifier.js"
import { Signals } from "../Signals.js"
import { Attempts } from "./attempts.js"
import { Claims } from "./claims.js"
import * as Completion from "./completion.js"
import * as Deadlines from "./deadlines.js"
import * as Dispatcher from "./dispatcher.js"
import * as Executor from "./executor.js"
import * as Heartbeat from "./heartbeat.js"
import type { Leadership } from "./leadership.js"
import { LiveQueue } from "./liveQueue.js"
import * as Leader from "./maintenance/leader.js"
import * as Overrides from "./overrides.js"
import * as Pacing from "./pacing.js"
import * as Poll from "./poll.js"
import { deadLetterPolicy, type Settings } from "./settings.js"

export interface Options {
  readonly settings: Settings
  readonly instanceId: string
  readonly engine: StorageEngine
  readonly notifier: Notifier
  readonly leadership: Leadership
}

/** The parts of the total budget by whose end each phase of stopping must be over. */
const phases = { drain: 0.8, interrupt: 0.9, store: 0.97, beat: 1 }

const healthTimeoutMillis = 2_000

/** What has only failed for so long is not healthy. */
const failingMillis = 30_000

/**
 * Builds a worker and starts it. Closing the scope shuts it down within the configured time; `shutdown` does so earlier,
 * and whoever comes second waits for the first.
 */
export const make = (options: Options): Effect.Effect<Awa.Service, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { engine, instanceId, leadership, notifier, settings } = options
    const signal = yield* Signals
    const scope = yield* Scope.fork(yield* Effect.scope, { _tag: "Sequential" })
    const attempts = new Attempts()
    const claims = new Claims()
    let stopping = false
    const stopped = yield* Deferred.make<void>()

    const start = Effect.gen(function*() {
      const completer = yield* Completion.make({
        engine,
        owner: instanceId,
        batchSize: settings.completion.batchSize,
        deadLetters: deadLetterPolicy(settings),
        attempts,
        signal
      })
      const heartbeat = yield* Heartbeat.make({
        engine,
        owner: instanceId,
        attempts,
        claims,
        interval: settings.heartbeat.interval,
        signal
      })
      const leader = yield* Leader.make({ engine, leadership, settings, signal })
      const executor = yield* Executor.make({
        handlers: settings.handlers,
        unknownKinds: settings.unknownKinds,
        attempts,
        completer,
        engine,
        owner: instanceId
      })
      yield* notifier.subscribeAborted(instanceId, (fences) => attempts.abort(fences))
      const queues = settings.queues.map((queue) => new LiveQueue(queue))
      const pollChanged = Effect.unsafeMakeLatch(false)
      const deadlinesChanged = Effect.unsafeMakeLatch(false)
      yield* Overrides.make({
        engine,
        queues,
        interval: settings.overrideRefresh,
        onChange: () => {
          pollChanged.unsafeOpen()
          deadlinesChanged.unsafeOpen()
        },
        signal
      })
      yield* Deadlines.make({ queues, attempts, changed: deadlinesChanged, signal })
      const dispatchers = yield* Effect.forEach(queues, (queue) =>
        Dispatcher.make({
          queue,
          owner: instanceId,
          durability: settings.claimDurability,
          deadLetters: deadLetterPolicy(settings),
          engine,
          claims,
          executor,
          completer,
          notifier,
          isStopping: () => stopping,
          signal
        }))
      const poll = yield* Poll.make({ engine, queues, dispatchers, changed: pollChanged, signal })
      return { completer, heartbeat, leader, dispatchers, poll }
    })

    const { completer, dispatchers, heartbeat, leader, poll } = yield* Scope.extend(start, scope)

    const stop = Effect.fnUntraced(function*(timeout: Duration.Duration) {
      const startedAt = yield* Clock.currentTimeMillis
      /** Waits for a phase until its part of the budget is used up. Answers whether it came to its end. */
      const within = <E>(part: number, phase: Effect.Effect<unknown, E>) =>
        Effect.flatMap(Clock.currentTimeMillis, (now) =>
          Effect.interruptible(Effect.disconnect(phase)).pipe(
            Effect.timeout(Math.ceil(Math.max(0, startedAt + part * Duration.toMillis(timeout) - now))),
            Effect.exit,
            Effect.map(Exit.isSuccess)
          ))

      yield* within(phases.drain, Fiber.interruptAll(dispatchers.map(({ loop }) => loop.fiber)))
      if (!(yield* within(phases.drain, attempts.noneRunning))) {
        yield* Effect.logWarning(`Interrupting ${attempts.running} jobs that are still running; they are given back`)
        for (const attempt of attempts.values()) attempt.interrupt("shutdown")
        if (!(yield* within(phases.interrupt, attempts.noneRunning))) {
          yield* Effect.logError(
            `${attempts.running} jobs do not react to their interruption and are left to rescue: ` +
              [...attempts.values()].filter(({ closing }) => !closing).map(({ fence }) => fence).join(", ")
          )
        }
      }
      if (!(yield* within(phases.store, completer.drained))) {
        yield* Effect.logError(
          `${completer.backlog()} results could not be stored in time; the jobs are left to rescue`
        )
      }
      yield* within(phases.beat, heartbeat.lastPass)
      yield* within(phases.beat, Scope.close(scope, Exit.void))
      signal({ _tag: "stopped" })
    })

    const shutdown = (timeout: Duration.Duration): Effect.Effect<void> =>
      Effect.suspend(() => {
        if (stopping) return Deferred.await(stopped)
        stopping = true
        return Effect.uninterruptible(Effect.ensuring(stop(timeout), Deferred.succeed(stopped, undefined)))
      })

    yield* Effect.addFinalizer(() => shutdown(settings.shutdown.timeout))

    const isConnected = Effect.suspend(() => {
      let connected = false
      const probe = Effect.map(engine.probe(settings.queues.map(({ name }) => name)), () => {
        connected = true
      })
      return Effect.map(
        Pacing.atMost(Effect.disconnect(Effect.ignore(probe)), healthTimeoutMillis),
        () => connected
      )
    })

    const healthCheck = Effect.zipWith(
      isConnected,
      Clock.currentTimeMillis,
      (postgresConnected, now): Awa.HealthCheck => {
        const pollLoopAlive = poll.isAlive() &&
          dispatchers.every(({ loop }) => loop.isAlive() && loop.failingFor() < failingMillis)
        const completing = now - (completer.failingSince() ?? now) < failingMillis
        const heartbeatAlive = heartbeat.loop.isAlive()
        const maintenanceAlive = leader.loop.isAlive()
        return {
          healthy: postgresConnected && pollLoopAlive && heartbeatAlive && maintenanceAlive && completing &&
            !stopping,
          postgresConnected,
          pollLoopAlive,
          heartbeatAlive,
          maintenanceAlive,
          shuttingDown: stopping,
          leader: leader.isLeading(),
          listening: notifier.isListening(),
          queues: Object.fromEntries(
            dispatchers.map(({ permits, queue }) => [queue, { inFlight: permits.inUse, maxWorkers: permits.size }])
          )
        }
      }
    )

    return {
      instanceId,
      healthCheck,
      shutdown: (timeout = settings.shutdown.timeout) => shutdown(Duration.decode(timeout))
    }
  })
