import { Deferred, Effect, type Scope } from "effect"
import { fork } from "node:child_process"
import { fileURLToPath } from "node:url"

/** `claimed`: jobs were handed to their handlers. `stored`: results were acknowledged. */
export type Point = "claimed" | "before the effect" | "after the effect" | "stored"

export interface ProcessOptions {
  readonly url: string
  /** Where the process kills itself, with the so manieth time it gets there. */
  readonly death?: { readonly point: Point; readonly after: number } | undefined
  readonly shutdown?: `${number} seconds` | undefined
}

export interface WorkerProcess {
  readonly signal: (signal: "SIGKILL" | "SIGTERM") => Effect.Effect<void>
  /** `SIGKILL`, or the exit code. */
  readonly ended: Effect.Effect<string>
  /** Lets the jobs go that wait for it. */
  readonly release: Effect.Effect<void>
  /** How many jobs began to wait. */
  readonly holding: () => number
}

const program = fileURLToPath(new URL("workerProcess.ts", import.meta.url))

/** Starts a worker process and waits until it works or is gone. It is killed when the scope closes. */
export const start = (options: ProcessOptions): Effect.Effect<WorkerProcess, never, Scope.Scope> =>
  Effect.gen(function*() {
    const ended = yield* Deferred.make<string>()
    const ready = yield* Deferred.make<void>()
    let holding = 0
    const child = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const child = fork(program, [JSON.stringify(options)], {
          execArgv: ["--conditions=awa-source", "--import", "tsx"],
          stdio: ["ignore", "ignore", "inherit", "ipc"]
        })
        child.once("exit", (code, signal) => Deferred.unsafeDone(ended, Effect.succeed(signal ?? String(code))))
        child.on("message", (message) => {
          if (message === "holding") holding += 1
          if (message === "ready") Deferred.unsafeDone(ready, Effect.void)
        })
        return child
      }),
      (child) => Effect.zipRight(Effect.sync(() => child.kill("SIGKILL")), Deferred.await(ended))
    )
    yield* Effect.raceFirst(Deferred.await(ready), Deferred.await(ended))
    return {
      signal: (signal) => Effect.sync(() => void child.kill(signal)),
      ended: Deferred.await(ended),
      release: Effect.sync(() => void child.send("release")),
      holding: () => holding
    }
  })
