import type { QueueOverrides, Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { LiveQueue } from "./liveQueue.js"
import * as Loop from "./loop.js"

export interface Options {
  readonly engine: StorageEngine
  readonly queues: ReadonlyArray<LiveQueue>
  readonly interval: Duration.Duration
  /** Called when something has changed. */
  readonly onChange: () => void
  readonly signal: (signal: Signal) => void
}

/**
 * Takes over what operators override, once before this returns and then at an interval. When it cannot be read, what held
 * before goes on to hold.
 */
export const make = (options: Options): Effect.Effect<void, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { engine, interval, onChange, queues, signal } = options
    const names = queues.map(({ name }) => name)
    const told = new Map<string, string>()

    /** What is ignored is said once. */
    const tellIgnored = (queue: LiveQueue, found: QueueOverrides | undefined) => {
      const ignored = [
        ...(found?.refused ?? []).map((name) => `${name} (no value that makes sense)`),
        ...(found?.deadline !== undefined && queue.deadline === null ? ["deadline (the queue has none here)"] : [])
      ].join(", ")
      if ((told.get(queue.name) ?? "") === ignored) return Effect.void
      told.set(queue.name, ignored)
      return ignored === ""
        ? Effect.void
        : Effect.logWarning(`Overrides of queue ${JSON.stringify(queue.name)} are ignored: ${ignored}`)
    }

    const apply = (all: ReadonlyArray<QueueOverrides>) =>
      Effect.forEach(queues, (queue) => {
        const found = all.find((one) => one.queue === queue.name)
        if (queue.override(found ?? {})) {
          onChange()
          signal({ _tag: "overridden", queue: queue.name })
        }
        return tellIgnored(queue, found)
      }, { discard: true })

    const refresh: Effect.Effect<void, StorageError> = Effect.flatMap(engine.overrides(names), apply)

    yield* Effect.catchAllCause(refresh, (cause) => Effect.logWarning("Overrides cannot be read yet", cause))
    let isFirst = true
    const turn = Effect.suspend(() => {
      if (!isFirst) return refresh
      isFirst = false
      return Effect.void
    })
    yield* Loop.fork({ name: "overrides", turn, pause: () => Loop.interval(interval), signal })
  })
