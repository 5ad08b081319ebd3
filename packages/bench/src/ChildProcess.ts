/**
 * The parent's side of a child process.
 */
import { Data, Deferred, Effect, type Scope } from "effect"
import { fork } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"
import type { Calls, Request, Response } from "./Protocol.js"

export class ChildFailed
  extends Data.TaggedError("ChildFailed")<{ readonly system: string; readonly message: string }>
{}

export interface ChildProcess {
  readonly call: <Name extends keyof Calls>(
    name: Name,
    input: Calls[Name]["input"]
  ) => Effect.Effect<Calls[Name]["output"], ChildFailed>
  /** SIGKILL. */
  readonly kill: Effect.Effect<void>
}

const entry = fileURLToPath(new URL("./child.js", import.meta.url))

/** Starts a process for one system; it has loaded its modules when this returns, and ends with the scope. */
export const start = (system: string): Effect.Effect<ChildProcess, ChildFailed, Scope.Scope> =>
  Effect.gen(function*() {
    const pending = new Map<number, Deferred.Deferred<unknown, ChildFailed>>()
    const ready = yield* Deferred.make<void, ChildFailed>()
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        fork(entry, [system], { execArgv: ["--expose-gc"], serialization: "advanced", stdio: ["ignore", 2, 2, "ipc"] })
      ),
      (child) =>
        Effect.promise(async () => {
          if (child.exitCode !== null || child.signalCode !== null) return
          const exited = once(child, "exit")
          // Of the program that measures, outside any Effect clock: the last resort against a child that does not end.
          const timer = setTimeout(() => child.kill("SIGKILL"), 20_000)
          if (child.connected) child.disconnect()
          await exited
          clearTimeout(timer)
        })
    )
    const failed = (message: string) => new ChildFailed({ system, message })
    child.on("exit", (code, signal) => {
      const error = failed(`The process of ${system} ended early (${signal ?? code})`)
      Deferred.unsafeDone(ready, Effect.fail(error))
      for (const deferred of pending.values()) Deferred.unsafeDone(deferred, Effect.fail(error))
      pending.clear()
    })
    child.on("message", (message: "ready" | Response) => {
      if (message === "ready") return Deferred.unsafeDone(ready, Effect.void)
      const deferred = pending.get(message.id)
      pending.delete(message.id)
      if (deferred === undefined) return
      Deferred.unsafeDone(deferred, message.ok ? Effect.succeed(message.output) : Effect.fail(failed(message.message)))
    })
    yield* Deferred.await(ready)

    let calls = 0
    return {
      call: (name, input) =>
        Effect.gen(function*() {
          const deferred = yield* Deferred.make<unknown, ChildFailed>()
          const id = calls++
          pending.set(id, deferred)
          child.send({ id, name, input } as Request)
          return (yield* Deferred.await(deferred)) as never
        }),
      kill: Effect.promise(async () => {
        const exited = once(child, "exit")
        child.kill("SIGKILL")
        await exited
      })
    }
  })
