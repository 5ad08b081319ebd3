import { JobAdmin, JobRow, StorageEngine } from "@awa/model"
import { Effect, FastCheck as fc, Option } from "effect"
import * as assert from "node:assert/strict"
import { chosen, command, few, hasJobs, pick, undone } from "../support/command.js"
import { inVain, within, Work } from "../support/real.js"
import { isOpen, orGiveUp } from "./transaction.js"

const ask = (ids: ReadonlyArray<bigint>) =>
  JobAdmin.requestCancel(ids.map((id) => JobRow.JobId.make(id)), { reason: "unwanted" })

/** Nothing happens until somebody sees to it. */
export const requestCancel = command("request cancel", {
  weight: 2,
  fields: { picks: few, undone },
  check: hasJobs,
  run: ({ picks, undone }, model) =>
    Effect.gen(function*() {
      const jobs = chosen(model, picks)
      const asked = ask(jobs.map(({ id }) => id))
      yield* undone ? inVain(asked) : asked
      if (!undone) { for (const job of jobs) model.unwanted.add(job) }
    })
})

/** Counts from the commit of the transaction on. */
export const requestCancelMore = command("request cancel in transaction", {
  weight: 2,
  fields: { pick, picks: few },
  check: (model) => isOpen(model) && hasJobs(model),
  run: ({ pick, picks }, model, real) =>
    Effect.gen(function*() {
      const transaction = model.transaction(pick)!
      const jobs = chosen(model, picks)
      yield* within(real, transaction, ask(jobs.map(({ id }) => id))).pipe(
        Effect.map(() => void transaction.unwanted.push(...jobs)),
        orGiveUp(model, real, transaction)
      )
    })
})

export const cancelRequested = command("cancel requested", {
  weight: 3,
  fields: {},
  run: (_, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      assert.equal(yield* engine.cancelRequested(1000), model.cancelUnwanted(), "requests that were settled")
    })
})

export const cancelByKey = command("cancel by key", {
  weight: 2,
  fields: { payload: fc.nat(2) },
  run: ({ payload }, model) =>
    Effect.gen(function*() {
      const answer = yield* JobAdmin.cancelByUniqueKey(Work.request(payload, { unique: true }))
      const holder = model.holder(payload)
      const isLive = holder !== undefined && !["failed", "cancelled"].includes(holder.state)
      assert.deepEqual(Option.getOrUndefined(answer), isLive ? holder.id : undefined, "the job that was cancelled")
      if (isLive) model.cancel(holder, undefined)
    })
})
