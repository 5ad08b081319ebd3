import type { Service as StorageEngine, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"
import type { Settings } from "../settings.js"

/** One pass over the storage that can be given back. Answers how much it did. */
export const reclaim = (
  engine: StorageEngine,
  { queueStorage, retention }: Settings,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  engine.reclaim({
    rotateInterval: queueStorage.queueRotateInterval,
    leaseRotateInterval: queueStorage.leaseRotateInterval,
    retention
  }).pipe(
    Effect.tap((reclaimed) => Effect.sync(() => signal({ _tag: "reclaimed", reclaimed }))),
    Effect.map(({ evicted, freed, kept, rotated }) => evicted + freed + kept + Number(rotated))
  )
