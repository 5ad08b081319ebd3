import { Queues } from "@awa/model"
import { Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { command, queue, undone } from "../support/command.js"
import { waiting } from "../support/model.js"
import { inVain } from "../support/real.js"

export const pause = command("pause", {
  weight: 1,
  fields: { queue },
  run: ({ queue }, model) => Effect.map(Queues.pause(queue), () => void model.paused.add(queue))
})

export const resume = command("resume", {
  weight: 5,
  fields: { queue, undone },
  check: ({ paused }, { queue }) => paused.has(queue),
  run: ({ queue, undone }, model) =>
    Effect.gen(function*() {
      const wasPaused = yield* undone ? inVain(Queues.resume(queue)) : Queues.resume(queue)
      assert.equal(wasPaused, true, "was paused")
      if (!undone) model.paused.delete(queue)
    })
})

/** Whether jobs of the queue that fail become dead letters from here on. */
export const setDeadLetters = command("set dead letters", {
  weight: 8,
  fields: { queue, enabled: fc.constantFrom(true, true, false), undone },
  run: ({ enabled, queue, undone }, model) =>
    Effect.gen(function*() {
      yield* undone ? inVain(Queues.setDlq(queue, { enabled })) : Queues.setDlq(queue, { enabled })
      if (!undone) model.deadLettered[enabled ? "add" : "delete"](queue)
    })
})

/** Cancels what waits. */
export const drain = command("drain", {
  weight: 1,
  fields: { queue, chunkSize: fc.integer({ min: 1, max: 5 }) },
  run: ({ chunkSize, queue }, model) =>
    Effect.gen(function*() {
      const jobs = model.visible.filter((job) => job.queue === queue && waiting.includes(job.state))
      assert.equal(yield* Queues.drain(queue, { chunkSize }), jobs.length, "jobs that were drained")
      for (const job of jobs) model.cancel(job, undefined)
    })
})
