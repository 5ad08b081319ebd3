import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"

const batchSize = 500

/** Honours all requests to cancel that can be seen, batch by batch. Answers how many. */
export const cancelAllRequested = (engine: StorageEngine): Effect.Effect<number, StorageError> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) =>
      Effect.map(engine.cancelRequested(batchSize), (count) => ({ total: total + count, more: count === batchSize }))
  }).pipe(Effect.map(({ total }) => total))
