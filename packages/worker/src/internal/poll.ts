import type { Service as StorageEngine } from "@awa/model/StorageEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Signal } from "../Signals.js"
import type { Dispatcher } from "./dispatcher.js"
import * as Loop from "./loop.js"
import type { Queue } from "./settings.js"

/**
 * What correctness rests on when notifications fail: one read-only statement for all sleeping queues of this process, at
 * the shortest of their poll intervals.
 */
export const make = (options: {
  readonly engine: StorageEngine
  readonly queues: ReadonlyArray<Queue>
  readonly dispatchers: ReadonlyArray<Dispatcher>
  /** Opened when the interval may have become shorter. */
  readonly changed: Effect.Latch
  readonly signal: (signal: Signal) => void
}): Effect.Effect<Loop.Loop, never, Scope.Scope> => {
  const { changed, dispatchers, engine, queues, signal } = options
  const interval = () => queues.map((queue) => queue.pollInterval).reduce(Duration.min)

  const turn = Effect.suspend(() => {
    const sleeping = dispatchers.filter((dispatcher) => dispatcher.isAsleep())
    if (sleeping.length === 0) return Effect.void
    return Effect.map(engine.probe(sleeping.map(({ queue }) => queue)), (found) => {
      for (const dispatcher of sleeping) if (found.includes(dispatcher.queue)) dispatcher.wake()
    })
  })

  return Loop.fork({ name: "poll", turn, pause: () => Loop.intervalOrWake(interval(), changed), signal })
}
