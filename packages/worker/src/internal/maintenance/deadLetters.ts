import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"
import type { Settings } from "../settings.js"
import { inBatches } from "./batches.js"

/** Throws away all dead letters that were kept for long enough, batch by batch. Answers how many. */
export const cleanupAll = (
  engine: StorageEngine,
  { cleanupBatchSize, retention }: Settings["dlq"],
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  inBatches(cleanupBatchSize, (limit) => engine.cleanupDeadLetters({ retention, limit })).pipe(
    Effect.tap((count) => Effect.sync(() => signal({ _tag: "purged", count })))
  )
