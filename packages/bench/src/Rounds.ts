/**
 * Interleaved measurement: every round measures every system once, in turns forwards and backwards, so that a slow
 * spell of the machine hits all of them.
 */
import { Console, Effect } from "effect"
import type { System } from "./System.js"

/** A system to measure, and whether it is so slow that once, with a share of the jobs, must do. */
export interface Contender {
  readonly system: System
  readonly once?: { readonly share: number }
}

export const slow = new Map([["graphile-worker-default", { share: 0.2 }]])

export const contender = (system: System): Contender => {
  const once = slow.get(system.name)
  return once === undefined ? { system } : { system, once }
}

/** The results of all rounds by the name of the system. */
export const run = <A, E, R>(options: {
  readonly contenders: ReadonlyArray<Contender>
  readonly rounds: number
  readonly measure: (contender: Contender, round: number) => Effect.Effect<A, E, R>
  readonly show: (result: A) => string
}): Effect.Effect<ReadonlyMap<string, ReadonlyArray<A>>, E, R> =>
  Effect.gen(function*() {
    const results = new Map<string, Array<A>>(options.contenders.map(({ system }) => [system.name, []]))
    for (let round = 0; round < options.rounds; round++) {
      const order = round % 2 === 0 ? options.contenders : [...options.contenders].reverse()
      for (const contender of order) {
        if (contender.once !== undefined && round > 0) continue
        const result = yield* options.measure(contender, round)
        results.get(contender.system.name)?.push(result)
        yield* Console.error(`round ${round + 1}, ${contender.system.name}: ${options.show(result)}`)
      }
    }
    return results
  })
