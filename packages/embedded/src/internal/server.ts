import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Fs from "node:fs/promises"
import * as Path from "node:path"
import { EmbeddedPostgresError } from "../EmbeddedPostgresError.js"
import { dataFolder, readLog } from "./folders.js"
import { type Guarded, spawnGuarded } from "./guardian.js"

/** @internal */
export interface Launch {
  readonly home: string
  readonly command: ReadonlyArray<string>
  readonly timeout: Duration.DurationInput
}

/**
 * Starts the server and waits until it accepts connections. When that fails or is interrupted, it is gone again.
 *
 * @internal
 */
export const launch = (options: Launch): Effect.Effect<Guarded, EmbeddedPostgresError> =>
  launchOnce(options).pipe(
    // The children of a killed server need a moment to notice and leave its shared memory.
    Effect.retry({
      while: (error) => error.message.includes("pre-existing shared memory block"),
      schedule: Schedule.spaced("50 millis"),
      times: 200
    }),
    Effect.withClock(Clock.make())
  )

const launchOnce = (options: Launch): Effect.Effect<Guarded, EmbeddedPostgresError> =>
  Effect.gen(function*() {
    const logStart = (yield* readLog(options.home)).length
    const running = yield* spawnGuarded(options.home, options.command)
    const outcome = yield* Effect.interruptible(untilReady(options.home, running)).pipe(
      Effect.timeoutOption(options.timeout),
      Effect.onInterrupt(() => killAndWait(running))
    )
    if (Option.contains(outcome, true)) return running
    yield* killAndWait(running)
    const log = (yield* readLog(options.home)).slice(logStart)
    return yield* startFailure(log, Option.isNone(outcome))
  }).pipe(Effect.uninterruptible)

const killAndWait = (running: Guarded) => Effect.zipRight(running.signal("KILL"), running.exitCode)

/** `true` when the server accepts connections, `false` when it has ended. */
const untilReady = (home: string, running: Guarded): Effect.Effect<boolean> =>
  Effect.gen(function*() {
    while (yield* running.isAlive) {
      if (yield* isReady(home, running.pid)) return true
      yield* Effect.sleep("10 millis")
    }
    return false
  })

/** The server keeps its state in the eighth line of its pid file, for `pg_ctl` and for us. */
const isReady = (home: string, pid: number): Effect.Effect<boolean> =>
  Effect.promise(() =>
    Fs.readFile(Path.join(dataFolder(home), "postmaster.pid"), "utf8").then(
      (text) => {
        const lines = text.split("\n")
        return Number(lines[0]) === pid && ["ready", "standby"].includes(lines[7]?.trim() ?? "")
      },
      () => false
    )
  )

const startFailure = (log: string, timedOut: boolean): EmbeddedPostgresError => {
  const portTaken = log.includes("could not bind") || log.includes("could not create any TCP/IP sockets")
  const summary = portTaken
    ? "its port is in use: choose another one or leave the option out"
    : `it did not start${timedOut ? " in time" : ""}: check the settings`
  const tail = log.trimEnd().split("\n").slice(-15).join("\n")
  return new EmbeddedPostgresError({
    reason: portTaken ? "port-taken" : "start-failed",
    message: `Embedded PostgreSQL: ${summary}. The server said:\n${tail}`
  })
}
