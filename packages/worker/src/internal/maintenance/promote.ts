import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"
import { inBatches } from "./batches.js"

const batchSize = 4096

/** Moves everything that is due to its queue, batch by batch. Answers how many jobs. */
export const promoteAll = (
  engine: StorageEngine,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  inBatches(batchSize, engine.promote).pipe(
    Effect.tap((count) => Effect.sync(() => signal({ _tag: "promoted", count })))
  )
