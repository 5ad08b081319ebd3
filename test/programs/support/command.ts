import type { InsertOptions } from "@awa/model"
import { type Effect, FastCheck as fc } from "effect"
import type { Model, ModelJob } from "./model.js"
import { inTimeOf, owners, queues, type Real, type Services } from "./real.js"

/** A kind of step a program is made of. */
export interface Command {
  readonly weight: number
  readonly arbitrary: fc.Arbitrary<Step>
}

export type Step = fc.AsyncCommand<Model, Real>

/**
 * Defines a command: its name, how often it is drawn beside the others, what it is drawn from, whether it makes sense at
 * this point of the program, and what it does to the queue and to the model, which must agree.
 */
export const command = <Fields extends object>(name: string, { check = () => true, fields, run, weight }: {
  readonly weight: number
  readonly fields: { readonly [Field in keyof Fields]: fc.Arbitrary<Fields[Field]> }
  readonly check?: (model: Model, fields: Fields) => boolean
  readonly run: (fields: Fields, model: Model, real: Real) => Effect.Effect<void, unknown, Services>
}): Command => ({
  weight,
  arbitrary: fc.record<Fields>(fields).map((drawn): Step => ({
    check: (model) => check(model as Model, drawn),
    run: (model, real) => real.run(inTimeOf(model)(run(drawn, model, real))),
    toString: () => `${name} ${fc.stringify(drawn)}`
  }))
})

/** The first in four of five draws. */
function mostly<A>(usual: A, ...others: ReadonlyArray<A>): fc.Arbitrary<A> {
  return fc.oneof({ weight: 4, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: fc.constantFrom(...others) })
}

/** Chooses among what there is, by its remainder. */
export const pick = fc.nat(1000)

export const picking = <A>(arbitrary: fc.Arbitrary<A>): fc.Arbitrary<Array<A>> =>
  fc.array(arbitrary, { minLength: 1, maxLength: 5 })

/** One or two: what takes many jobs away at once leaves little to happen to them. */
export const few = fc.array(pick, { minLength: 1, maxLength: 2 })

/** Mostly one queue, one priority and no delay: programs become interesting where jobs meet in a lane. */
export const queue = mostly(queues[0], queues[1])

export const owner = mostly(owners[0], owners[1])

/** Whether the transaction around it is rolled back. */
export const undone = mostly(false, true)

/** Whether somebody else than its owner speaks for an attempt. */
export const stranger = mostly(false, true)

export const reason = fc.constantFrom(undefined, "unwanted")

export const limit = fc.integer({ min: 1, max: 5 })

export const count = fc.integer({ min: 1, max: 4 })

export const priority = mostly<InsertOptions.Priority>(2, 1, 4)

/** Several of the jobs there are, each once. */
export const chosen = (model: Model, picks: ReadonlyArray<number>): ReadonlyArray<ModelJob> => [
  ...new Set(picks.map((pick) => model.job(pick)))
]

export const hasJobs = ({ jobs }: Model): boolean => jobs.length > 0

/** What jobs have in common. */
export const job = {
  queue,
  priority,
  maxAttempts: fc.integer({ min: 1, max: 3 }),
  delay: mostly(0, 15_000)
}

export const outcomeProgress = fc.constantFrom(undefined, undefined, "some", "more")
