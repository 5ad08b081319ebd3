/** The parent's side of the worker processes of a stress program. */
import { Deferred, Effect, FiberSet, type Scope } from "effect"
import { type ChildProcess, fork } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"
import type { Message } from "./Work.js"

export interface Workers {
  /** SIGKILL for one of them, chosen by the remainder; another one takes its place. */
  readonly kill: (pick: number) => Effect.Effect<void>
  /** Lets all end by themselves, and waits for that. */
  readonly stop: Effect.Effect<void>
}

const entry = fileURLToPath(new URL("./worker.js", import.meta.url))

/** Keeps so many worker processes running; answers when each works. They are killed when the scope closes. */
export const start = (
  url: string,
  count: number,
  told: (message: Message) => void
): Effect.Effect<Workers, never, Scope.Scope> =>
  Effect.gen(function*() {
    const runFork = yield* FiberSet.makeRuntime<never>()
    const current = new Map<number, { readonly child: ChildProcess; readonly gone: Effect.Effect<void> }>()
    let stopping = false

    /** One process from its start to its end. */
    const oneProcess = (place: number, ready: Deferred.Deferred<void>) =>
      Effect.acquireUseRelease(
        Effect.sync(() => {
          const child = launch(url, (message) => {
            if (message._tag === "ready") Deferred.unsafeDone(ready, Effect.void)
            told(message)
          })
          // What it said last may arrive after its end.
          const ended = Promise.all([once(child, "exit"), once(child, "disconnect")])
          const started = { child, gone: Effect.asVoid(Effect.promise(() => ended)) }
          current.set(place, started)
          return started
        }),
        ({ gone }) => gone,
        ({ child, gone }) => Effect.zipRight(Effect.sync(() => child.kill("SIGKILL")), gone)
      )
    const places = yield* Effect.forEach(Array.from({ length: count }, (_, place) => place), (place) =>
      Effect.map(Deferred.make<void>(), (ready) => {
        runFork(Effect.whileLoop({
          while: () =>
            !stopping,
          body: () => oneProcess(place, ready),
          step: () => {}
        }))
        return ready
      }))
    yield* Effect.forEach(places, Deferred.await)

    const end = (place: number, signal: "SIGKILL" | "SIGTERM") =>
      Effect.suspend(() => {
        const { child, gone } = current.get(place)!
        child.kill(signal)
        return gone
      })
    return {
      kill: (pick) =>
        end(pick % count, "SIGKILL"),
      stop: Effect.suspend(() => {
        stopping = true
        return Effect.forEach(current.keys(), (place) => end(place, "SIGTERM"), {
          concurrency: "unbounded",
          discard: true
        })
      })
    }
  })

const launch = (url: string, told: (message: Message) => void): ChildProcess =>
  fork(entry, [url], { stdio: ["ignore", 2, 2, "ipc"] }).on("message", told)
