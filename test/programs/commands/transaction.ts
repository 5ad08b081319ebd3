import { Effect, FastCheck as fc } from "effect"
import { command, count, job, pick } from "../support/command.js"
import type { Model, ModelJob, ModelTransaction } from "../support/model.js"
import {
  begin as beginReal,
  end as endReal,
  type NotSerializable,
  type Real,
  send,
  within,
  Work
} from "../support/real.js"

const most = 3

const isolation = fc.constantFrom("read committed", "read committed", "repeatable read", "serializable")

type Jobs = {
  readonly [Field in keyof typeof fields]: (typeof fields)[Field] extends fc.Arbitrary<infer A> ? A : never
}

const fields = { ...job, count }

/** Enqueues in the transaction; what a commit will add is up to the caller. */
const enqueue = ({ count, ...options }: Jobs, model: Model, real: Real, transaction: ModelTransaction) =>
  Effect.map(
    within(real, transaction, Work.enqueueMany(Array.from({ length: count }, (_, n) => n), options)),
    (ids): ReadonlyArray<ModelJob> => model.enqueue(ids.map(() => options), ids, false)
  )

const end = (model: Model, real: Real, transaction: ModelTransaction, commit: boolean) =>
  Effect.map(endReal(real, transaction, commit), (committed) => model.end(transaction, committed))

/** A transaction that PostgreSQL gives up is rolled back. */
export const orGiveUp =
  (model: Model, real: Real, transaction: ModelTransaction) => (work: Effect.Effect<void, NotSerializable>) =>
    Effect.catchTag(work, "NotSerializable", () => end(model, real, transaction, false))

export const isOpen = ({ transactions }: Model): boolean => transactions.length > 0

export const begin = command("begin", {
  weight: 4,
  fields: { isolation, ...fields },
  check: ({ transactions }) => transactions.length < most,
  run: ({ isolation, ...jobs }, model, real) =>
    Effect.gen(function*() {
      const transaction = model.begin(isolation)
      yield* beginReal(real, transaction, isolation)
      yield* Effect.map(enqueue(jobs, model, real, transaction), (added) => void transaction.jobs.push(...added)).pipe(
        orGiveUp(model, real, transaction)
      )
    })
})

export const enqueueMore = command("enqueue in transaction", {
  weight: 2,
  fields: { pick, ...fields },
  check: isOpen,
  run: ({ pick, ...jobs }, model, real) => {
    const transaction = model.transaction(pick)!
    return Effect.map(enqueue(jobs, model, real, transaction), (added) => void transaction.jobs.push(...added)).pipe(
      orGiveUp(model, real, transaction)
    )
  }
})

export const savepoint = command("enqueue in savepoint", {
  weight: 2,
  fields: { pick, undone: fc.boolean(), ...fields },
  check: isOpen,
  run: ({ pick, undone, ...jobs }, model, real) => {
    const transaction = model.transaction(pick)!
    return Effect.gen(function*() {
      yield* send(real, transaction, "savepoint s")
      const added = yield* enqueue(jobs, model, real, transaction)
      yield* send(real, transaction, undone ? "rollback to savepoint s" : "release savepoint s")
      if (!undone) transaction.jobs.push(...added)
    }).pipe(orGiveUp(model, real, transaction))
  }
})

export const endTransaction = command("end transaction", {
  weight: 5,
  fields: { pick, commit: fc.constantFrom(true, true, false) },
  check: isOpen,
  run: ({ commit, pick }, model, real) => end(model, real, model.transaction(pick)!, commit)
})
