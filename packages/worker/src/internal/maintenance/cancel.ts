import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import type * as Effect from "effect/Effect"
import { inBatches } from "./batches.js"

const batchSize = 500

/** Honours all requests to cancel that can be seen, batch by batch. Answers how many. */
export const cancelAllRequested = (engine: StorageEngine): Effect.Effect<number, StorageError> =>
  inBatches(batchSize, engine.cancelRequested)
