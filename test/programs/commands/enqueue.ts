import { Producer } from "@awa/model"
import { Effect, FastCheck as fc } from "effect"
import { command, count, job, picking } from "../support/command.js"
import { Work } from "../support/real.js"

export const enqueue = command("enqueue", {
  weight: 2,
  fields: job,
  run: (options, model) =>
    Effect.map(Work.enqueue(0, options), ({ id }) => {
      model.enqueue([options], [id], true)
    })
})

/** Many jobs that differ in their payload only. */
export const enqueueAlike = command("enqueue alike", {
  weight: 2,
  fields: { ...job, count },
  run: ({ count, ...options }, model) =>
    Effect.map(Work.enqueueMany(Array.from({ length: count }, (_, n) => n), options), (ids) => {
      model.enqueue(ids.map(() => options), ids, true)
    })
})

/** Jobs of several queues and priorities in one call. */
export const enqueueMixed = command("enqueue mixed", {
  weight: 2,
  fields: { jobs: picking(fc.record(job)) },
  run: ({ jobs }, model) =>
    Effect.map(Producer.enqueueMany(jobs.map((options, n) => Work.request(n, options))), (ids) => {
      model.enqueue(jobs, ids, true)
    })
})
