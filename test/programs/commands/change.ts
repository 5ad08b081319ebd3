import { JobAdmin, JobRow } from "@awa/model"
import { Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import {
  chosen,
  type Command,
  command,
  few,
  hasJobs,
  pick,
  priority,
  queue,
  reason,
  undone
} from "../support/command.js"
import { learnRetries } from "../support/invariants.js"
import { type Model, type ModelJob, waiting } from "../support/model.js"
import { inVain, type Services, Work } from "../support/real.js"

/** How a change is asked for, and what it does to a job in one of `states`: false when another has its key. */
interface Change<Value> {
  readonly weight: number
  readonly value: fc.Arbitrary<Value>
  readonly states: ReadonlyArray<string>
  readonly picks?: fc.Arbitrary<ReadonlyArray<number>>
  readonly ask: (
    ids: ReadonlyArray<JobRow.JobId>,
    value: Value,
    model: Model
  ) => Effect.Effect<ReadonlyArray<{ readonly _tag: string }>, unknown, Services>
  readonly apply: (job: ModelJob, value: Value, model: Model) => boolean | void
}

/** Changes jobs by their ids. Its transactions are its own: one around them that is rolled back undoes nothing. */
const change = <Value>(
  name: string,
  { apply, ask, picks = few, states, value, weight }: Change<Value>
): Command =>
  command(name, {
    weight,
    check: hasJobs,
    fields: { picks, value, undone },
    run: ({ picks, undone, value }, model) =>
      Effect.gen(function*() {
        yield* learnRetries(model)
        const jobs = chosen(model, picks).filter(({ unique }) => unique === undefined || !model.isTaking(unique.of))
        const asked = ask(jobs.map(({ id }) => JobRow.JobId.make(id)), value, model)
        if (undone) {
          // Part of a transaction that is rolled back.
          yield* inVain(asked)
          return
        }
        const answers = yield* asked
        const expected = (job: ModelJob): string => {
          if (!model.visible.includes(job)) return "NotFound"
          if (job.deadAt !== undefined || !states.includes(job.state)) return "NotInState"
          return apply(job, value, model) === false ? "KeyTaken" : "Changed"
        }
        const answerOf = new Map(jobs.map((job, i) => [job, answers[i]!._tag]))
        for (const job of jobs.toSorted((a, b) => a.id < b.id ? -1 : 1)) {
          const answer = answerOf.get(job)
          // The log may have let go of a success, or written it elsewhere, where it can be removed.
          if (job.state !== "completed" || !model.forgets) {
            assert.equal(answer, expected(job), `change of job ${job.id}`)
          } else if (answer === "Changed") model.throwAway(job)
        }
        model.place()
      })
  })

const nothing = fc.constant(undefined)

export const cancel = change("cancel", {
  weight: 3,
  value: reason,
  states: [...waiting, "running"],
  ask: (ids, reason) => JobAdmin.cancelMany(ids, { reason }),
  apply: (job, reason, model) => model.cancel(job, reason)
})

export const retry = change("retry", {
  weight: 5,
  value: nothing,
  states: ["failed", "cancelled"],
  ask: (ids) => JobAdmin.retryMany(ids),
  apply: (job, _, model) => model.again(job)
})

export const move = change("move", {
  weight: 4,
  value: queue,
  states: waiting,
  ask: (ids, queue) => JobAdmin.moveQueueMany(ids, queue),
  apply: (job, queue, model) => model.alter(job, { queue })
})

export const prioritise = change("prioritise", {
  weight: 4,
  value: priority,
  states: waiting,
  ask: (ids, priority) => JobAdmin.setPriorityMany(ids, priority),
  apply: (job, priority, model) => model.alter(job, { priority })
})

export const reschedule = change("reschedule", {
  weight: 3,
  value: fc.constantFrom(-10_000, 20_000),
  states: waiting,
  ask: (ids, delay, model) => JobAdmin.rescheduleMany(ids, new Date(model.now + delay)),
  apply: (job, delay, model) => model.reschedule(job, model.now + delay)
})

export const edit = change("edit", {
  weight: 3,
  value: fc.nat(2),
  states: waiting,
  picks: fc.tuple(pick),
  ask: (ids, payload) =>
    Effect.forEach(ids, (id) =>
      JobAdmin.editPayload(Work, id, payload).pipe(
        Effect.as({ _tag: "Changed" }),
        Effect.catchTags({
          JobNotFound: () => Effect.succeed({ _tag: "NotFound" }),
          JobNotInState: () => Effect.succeed({ _tag: "NotInState" })
        })
      )),
  apply: (job, args, model) => model.alter(job, { args })
})

export const remove = change("remove", {
  weight: 1,
  value: nothing,
  states: [...waiting, "failed", "cancelled"],
  ask: (ids) => JobAdmin.removeMany(ids),
  apply: (job, _, model) => model.throwAway(job)
})
