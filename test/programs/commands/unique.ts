import { Producer, StorageEngine, Unique } from "@awa/model"
import { Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { command, job, pick } from "../support/command.js"
import type { Enqueued, Model, ModelTransaction } from "../support/model.js"
import { within, Work } from "../support/real.js"
import { isOpen, orGiveUp } from "./transaction.js"

/** A job that keeps its key when it has failed or was cancelled, or one that lets it go. */
const states = fc.constantFrom(Unique.liveStates, [...Unique.liveStates, "failed", "cancelled"] as const)

const fields = { ...job, states, payloads: fc.array(fc.nat(2), { minLength: 1, maxLength: 4 }), each: fc.boolean() }

type Jobs = {
  readonly [Field in keyof typeof fields]: (typeof fields)[Field] extends fc.Arbitrary<infer A> ? A : never
}

type Unheld = Enqueued & { readonly args: number }

/** What of it does not wait for another transaction. */
const jobsOf = ({ payloads, states, ...options }: Jobs, model: Model, transaction?: ModelTransaction) =>
  payloads.filter((payload) => !model.isTaking(payload, transaction)).map((args): Unheld => (
    { ...options, args, unique: { of: args, states } }
  ))

/** Each by itself, or all or none: then nothing is answered if it is none. */
const enqueue = ({ each, payloads: _, states, ...options }: Jobs, jobs: ReadonlyArray<Unheld>) => {
  const requests = jobs.map(({ args }) => Work.request(args, { ...options, unique: { states } }))
  return each
    ? Producer.enqueueEach(requests)
    : Producer.enqueueMany(requests).pipe(
      Effect.map((ids) => ids.map((id): Unique.Answer => ({ _tag: "Inserted", id }))),
      Effect.catchTag("UniqueConflict", () => Effect.succeed(undefined))
    )
}

/** Stores in the model what was stored, and compares who has the keys of the others. */
const store = (
  model: Model,
  jobs: ReadonlyArray<Unheld>,
  answers: ReadonlyArray<Unique.Answer> | undefined,
  transaction?: ModelTransaction
): void => {
  // An old snapshot may show a job that has let its key go.
  const isCurrent = transaction === undefined || transaction.isolation === "read committed"
  if (answers === undefined) {
    const isTwice = new Set(jobs.map(({ args }) => args)).size < jobs.length
    const isHeld = jobs.some(({ args }) => model.holder(args, transaction) !== undefined)
    if (isCurrent) assert.ok(isTwice || isHeld, "a conflict without a holder")
    return
  }
  for (const [i, answer] of answers.entries()) {
    const job = jobs[i]!
    const holder = model.holder(job.args, transaction)
    if (answer._tag === "Inserted") {
      assert.equal(holder, undefined, "a key that two jobs have")
      transaction?.jobs.push(...model.enqueue([job], [answer.id], false))
      if (transaction === undefined) model.enqueue([job], [answer.id], true)
    } else if (isCurrent) assert.equal(answer.holder, holder?.id, "the holder of a key")
  }
}

export const enqueueUnique = command("enqueue unique", {
  weight: 8,
  fields,
  run: (drawn, model) => {
    const jobs = jobsOf(drawn, model)
    return Effect.map(enqueue(drawn, jobs), (answers) => store(model, jobs, answers))
  }
})

export const enqueueMoreUnique = command("enqueue unique in transaction", {
  weight: 6,
  fields: { pick, ...fields },
  check: isOpen,
  run: ({ pick, ...drawn }, model, real) => {
    const transaction = model.transaction(pick)!
    const jobs = jobsOf(drawn, model, transaction)
    return within(real, transaction, enqueue(drawn, jobs)).pipe(
      Effect.map((answers) => store(model, jobs, answers, transaction)),
      orGiveUp(model, real, transaction)
    )
  }
})

/** Keys are let go with their jobs: there is nothing to sweep. */
export const sweep = command("sweep keys", {
  weight: 1,
  fields: {},
  run: () =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      assert.equal(yield* engine.sweepKeys(1000), 0, "keys that were left behind")
    })
})
