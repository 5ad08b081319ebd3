/**
 * Interleaved measurement: every round measures every system once, in turns forwards and backwards, so that a slow
 * spell of the machine hits all of them.
 */
import { Console, Effect, Either } from "effect"
import type { ChildFailed } from "./ChildProcess.js"
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

export interface Results<A> {
  /** Of the rounds that came to an end, by the name of the system. */
  readonly of: ReadonlyMap<string, ReadonlyArray<A>>
  readonly failures: ReadonlyArray<string>
}

/** A peer whose process fails loses this measurement, not the run; ours may not fail. */
export const attempt = <A, R>(
  { name }: System,
  measurement: Effect.Effect<A, ChildFailed, R>
): Effect.Effect<Either.Either<A, ChildFailed>, ChildFailed, R> =>
  name === "awa" ? Effect.map(measurement, Either.right) : Effect.either(measurement)

export const run = <A, R>(options: {
  readonly contenders: ReadonlyArray<Contender>
  readonly rounds: number
  readonly measure: (contender: Contender, round: number) => Effect.Effect<A, ChildFailed, R>
  readonly show: (result: A) => string
}): Effect.Effect<Results<A>, ChildFailed, R> =>
  Effect.gen(function*() {
    const results = new Map<string, Array<A>>(options.contenders.map(({ system }) => [system.name, []]))
    const failures: Array<string> = []
    for (let round = 0; round < options.rounds; round++) {
      const order = round % 2 === 0 ? options.contenders : [...options.contenders].reverse()
      for (const contender of order) {
        if (contender.once !== undefined && round > 0) continue
        const { name } = contender.system
        const result = yield* attempt(contender.system, options.measure(contender, round))
        if (Either.isRight(result)) results.get(name)?.push(result.right)
        else failures.push(`round ${round + 1}, ${name}: ${result.left.message}`)
        const shown = Either.match(result, { onLeft: ({ message }) => message, onRight: options.show })
        yield* Console.error(`round ${round + 1}, ${name}: ${shown}`)
      }
    }
    return { of: results, failures }
  })
