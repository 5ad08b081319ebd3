import type { Rescued, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"
import { inBatches } from "./batches.js"

const batchSize = 500

/** Takes back all attempts of one kind of loss, batch by batch. Answers how many. */
export const rescueAll = (
  rescue: (limit: number) => Effect.Effect<ReadonlyArray<Rescued>, StorageError>,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  inBatches(batchSize, (limit) =>
    Effect.flatMap(rescue(limit), (attempts) => {
      signal({ _tag: "rescued", attempts })
      const [first] = attempts
      return first === undefined
        ? Effect.succeed(0)
        : Effect.as(Effect.logWarning(`Rescued ${attempts.length} attempts (${first.reason})`), attempts.length)
    }))
