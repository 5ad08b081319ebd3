import { StorageEngine } from "@awa/model"
import { Duration, Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { command, limit } from "../support/command.js"
import { learnRetries } from "../support/invariants.js"
import type { Model, ModelAttempt } from "../support/model.js"

const staleness = Duration.seconds(90)

export const wait = command("wait", {
  weight: 5,
  fields: { millis: fc.constantFrom(1, 10_000, 45_000, 100_000) },
  run: ({ millis }, model) =>
    Effect.sync(() => {
      model.now += millis
    })
})

export const promote = command("promote", {
  weight: 3,
  fields: { limit },
  run: ({ limit }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      yield* learnRetries(model)
      assert.equal(yield* engine.promote(limit), model.promote(limit), "promoted jobs")
    })
})

const sameJobs = (rescued: ReadonlyArray<StorageEngine.Rescued>, attempts: ReadonlyArray<ModelAttempt>): void => {
  const sorted = (jobs: ReadonlyArray<{ readonly id: bigint; readonly state: string }>) =>
    jobs.map(({ id, state }) => `${id} ${state}`).sort()
  assert.deepEqual(
    sorted(rescued.map(({ jobId, state }) => ({ id: jobId, state }))),
    sorted(attempts.map(({ job }) => job)),
    "rescued jobs"
  )
}

export const rescueStale = command("rescue stale", {
  weight: 2,
  fields: { limit },
  run: ({ limit }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      const isStale = ({ lastSign }: ModelAttempt) => lastSign < model.now - Duration.toMillis(staleness)
      sameJobs(yield* engine.rescueStale({ staleness, limit }), model.rescue(limit, isStale))
    })
})

export const rescueExpired = command("rescue expired", {
  weight: 2,
  fields: { limit },
  run: ({ limit }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      sameJobs(yield* engine.rescueExpired({ limit }), model.rescue(limit, isExpired(model)))
    })
})

const isExpired = (model: Model) => ({ deadline }: ModelAttempt): boolean => deadline < model.now
