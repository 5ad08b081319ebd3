import * as Effect from "effect/Effect"

/** Repeats a step that does `limit` things at most until one is not full. Answers how many they were in all. */
export const inBatches = <E>(
  limit: number,
  step: (limit: number) => Effect.Effect<number, E>
): Effect.Effect<number, E> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) => Effect.map(step(limit), (count) => ({ total: total + count, more: count === limit }))
  }).pipe(Effect.map(({ total }) => total))
