import type { Retention, Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"
import { inBatches } from "./batches.js"

const batchSize = 1000

/** Forgets all ended jobs that are not kept any longer, batch by batch. Answers how many. */
export const expireAll = (
  engine: StorageEngine,
  retention: Retention,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  inBatches(batchSize, (limit) => engine.expire({ retention, limit })).pipe(
    Effect.tap((count) => Effect.sync(() => signal({ _tag: "expired", count })))
  )
