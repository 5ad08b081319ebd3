import type { Retention, Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"

const batchSize = 1000

/** Forgets all ended jobs that are not kept any longer, batch by batch. Answers how many. */
export const expireAll = (
  engine: StorageEngine,
  retention: Retention,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) =>
      Effect.map(
        engine.expire({ retention, limit: batchSize }),
        (count) => ({ total: total + count, more: count === batchSize })
      )
  }).pipe(
    Effect.map(({ total }) => total),
    Effect.tap((count) => Effect.sync(() => signal({ _tag: "expired", count })))
  )
