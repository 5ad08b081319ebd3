import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"
import type { Settings } from "../settings.js"

/** Throws away all dead letters that were kept for long enough, batch by batch. Answers how many. */
export const cleanupAll = (
  engine: StorageEngine,
  { cleanupBatchSize: limit, retention }: Settings["dlq"],
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) =>
      Effect.map(
        engine.cleanupDeadLetters({ retention, limit }),
        (count) => ({ total: total + count, more: count === limit })
      )
  }).pipe(
    Effect.map(({ total }) => total),
    Effect.tap((count) => Effect.sync(() => signal({ _tag: "purged", count })))
  )
