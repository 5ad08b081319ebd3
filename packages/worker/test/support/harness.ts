import { Job } from "@awa/model"
import * as Awa from "@awa/worker/Awa"
import type { BuildError } from "@awa/worker/BuildError"
import type * as Notifier from "@awa/worker/Notifier"
import { Effect, Schema, Scope } from "effect"
import * as Builder from "../../src/internal/builder.js"
import * as Leadership from "../../src/internal/leadership.js"
import * as Settings from "../../src/internal/settings.js"
import * as Worker from "../../src/internal/worker.js"
import * as MemoryEngine from "./memoryEngine.js"
import * as SignalLog from "./signalLog.js"

export const Greet = Job.make("greet", { payload: { name: Schema.String } })

export const Count = Job.make("count", { payload: { n: Schema.NumberFromString } })

/** A notifier the test controls. */
export const makeNotifier = () => {
  const subscribers = new Map<string, (event: Notifier.Event) => void>()
  const marks = new Set<string>()
  let answer: Notifier.MarkResult = "held"
  const service: Notifier.Service = {
    isListening: () => true,
    subscribeAborted: () => Effect.void,
    subscribe: (queue, onEvent) => Effect.sync(() => void subscribers.set(queue, onEvent)),
    mark: (queue) =>
      Effect.sync(() => {
        if (answer === "held") marks.add(queue)
        return answer
      }),
    unmark: (queue) => Effect.sync(() => void marks.delete(queue))
  }
  return {
    service,
    marks,
    answerMarks: (result: Notifier.MarkResult) => void (answer = result),
    notify: (queue: string) => subscribers.get(queue)?.("notified"),
    connected: () => {
      marks.clear()
      for (const onEvent of subscribers.values()) onEvent("connected")
    }
  }
}

/** A worker over an engine in memory. */
export const start = <E, R, Kinds extends string>(
  builder: Awa.Builder<E, R, Kinds>,
  options?: {
    readonly engine?: MemoryEngine.MemoryEngine
    readonly notifier?: ReturnType<typeof makeNotifier>
    readonly leadership?: Leadership.Leadership
  }
) => {
  const engine = options?.engine ?? MemoryEngine.make()
  const notifier = options?.notifier ?? makeNotifier()
  const signals = SignalLog.make()
  const awa: Effect.Effect<Awa.Service, BuildError, Scope.Scope | R> = Effect.flatMap(
    Settings.resolve(Builder.partsOf(builder)),
    (settings) =>
      Worker.make({
        settings,
        instanceId: "00000000-0000-4000-8000-000000000001",
        engine: engine.service,
        notifier: notifier.service,
        leadership: options?.leadership ?? Leadership.shared
      })
  )
  return Effect.gen(function*() {
    // Shutting down takes time where jobs still run, and the test clock stands still.
    const scope = yield* Effect.acquireRelease(
      Scope.make(),
      (scope, exit) => SignalLog.advancing("10 seconds", Scope.close(scope, exit))
    )
    return { awa: yield* Scope.extend(Effect.provide(awa, signals.layer), scope), engine, notifier, signals }
  })
}

/** Without the frequent timers, which make moving the test clock slow. */
export const quiet = Awa.maintenance({ promoteInterval: "1 day" })
