import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"

const batchSize = 4096

/** Moves everything that is due to its queue, batch by batch. Answers how many jobs. */
export const promoteAll = (
  engine: StorageEngine,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) =>
      Effect.map(engine.promote(batchSize), (count) => ({ total: total + count, more: count === batchSize }))
  }).pipe(
    Effect.map(({ total }) => total),
    Effect.tap((count) => Effect.sync(() => signal({ _tag: "promoted", count })))
  )
