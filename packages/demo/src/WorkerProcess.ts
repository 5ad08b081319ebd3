/**
 * The parent's side of a worker process.
 */
import { Data, Deferred, Effect, type Scope } from "effect"
import { type ChildProcess, fork } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import type { OwnDatabase } from "./Server.js"

export class WorkerEnded extends Data.TaggedError("WorkerEnded")<{ readonly worker: string; readonly how: string }> {
  override get message(): string {
    return `${this.worker} ended by itself (${this.how})`
  }
}

export interface WorkerProcess {
  readonly name: string
  readonly pid: number
  /** The names of its sessions in the database. */
  readonly applicationNames: ReadonlyArray<string>
  /** SIGKILL: it cannot do anything about it. */
  readonly kill: Effect.Effect<void>
  /** SIGTERM: it finishes what it does. */
  readonly stop: Effect.Effect<void, WorkerEnded>
  /** Fails when it ends and nobody asked it to. */
  readonly guard: Effect.Effect<never, WorkerEnded>
}

const program = fileURLToPath(new URL("worker.ts", import.meta.url))

/** Starts a worker and waits until it works. It is stopped when the scope closes. */
export const start = (options: {
  readonly name: string
  readonly database: OwnDatabase
  readonly onLine: (line: string) => void
}): Effect.Effect<WorkerProcess, WorkerEnded, Scope.Scope> =>
  Effect.gen(function*() {
    const { database, name } = options
    const exit = yield* Deferred.make<string>()
    const ready = yield* Deferred.make<string>()
    let asked = false

    const end = (child: ChildProcess, signal: "SIGTERM" | "SIGKILL") =>
      Effect.suspend(() => {
        asked = true
        child.kill(signal)
        return Deferred.await(exit)
      })

    const child = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const env = { ...process.env, DATABASE_URL: database.url, DEMO_DATABASE: database.name, DEMO_WORKER: name }
        const child = fork(program, { env, stdio: ["ignore", "pipe", "pipe", "ipc"] })
        child.once("exit", (code, signal) => Deferred.unsafeDone(exit, Effect.succeed(signal ?? `exit code ${code}`)))
        child.once("error", (error) => Deferred.unsafeDone(exit, Effect.succeed(error.message)))
        child.once("message", ({ instanceId }: { readonly instanceId: string }) =>
          Deferred.unsafeDone(ready, Effect.succeed(instanceId)))
        for (const output of [child.stdout!, child.stderr!]) {
          createInterface(output).on("line", options.onLine)
        }
        return child
      }),
      (child) =>
        end(child, "SIGTERM").pipe(
          Effect.interruptible,
          Effect.timeoutTo({
            duration: "15 seconds",
            onSuccess: () =>
              true,
            onTimeout: () => false
          }),
          Effect.flatMap((ended) => ended ? Effect.void : end(child, "SIGKILL"))
        )
    )

    const guard = Effect.flatMap(
      Deferred.await(exit),
      (how) => asked ? Effect.never : new WorkerEnded({ worker: name, how })
    )
    const instanceId = yield* Effect.raceFirst(Deferred.await(ready), guard)

    return {
      name,
      pid: child.pid!,
      applicationNames: [`awa demo ${name}`, `awa worker ${instanceId.slice(0, 8)}`],
      kill: Effect.asVoid(end(child, "SIGKILL")),
      stop: Effect.flatMap(
        end(child, "SIGTERM"),
        (how) => how === "exit code 0" ? Effect.void : new WorkerEnded({ worker: name, how })
      ),
      guard
    }
  })
