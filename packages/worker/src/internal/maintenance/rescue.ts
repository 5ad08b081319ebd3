import type { Rescued, StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type { Signal } from "../../Signals.js"

const batchSize = 500

/** Takes back all attempts of one kind of loss, batch by batch. Answers how many. */
export const rescueAll = (
  rescue: (limit: number) => Effect.Effect<ReadonlyArray<Rescued>, StorageError>,
  signal: (signal: Signal) => void
): Effect.Effect<number, StorageError> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) =>
      Effect.flatMap(rescue(batchSize), (attempts) => {
        signal({ _tag: "rescued", attempts })
        const next = { total: total + attempts.length, more: attempts.length === batchSize }
        return attempts.length === 0
          ? Effect.succeed(next)
          : Effect.as(Effect.logWarning(`Rescued ${attempts.length} attempts (${attempts[0]!.reason})`), next)
      })
  }).pipe(Effect.map(({ total }) => total))
