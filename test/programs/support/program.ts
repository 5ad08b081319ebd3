import { StorageEngine } from "@awa/model"
import { Duration, Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { commands } from "../commands/index.js"
import { agree, always, drained, holds, learnRetries, onlyInserted } from "./invariants.js"
import { Model } from "./model.js"
import { end, type Host, inTimeOf, owners, queues, type Real } from "./real.js"

const step = fc.oneof(...commands)

/** Programs of up to `length` steps. */
export const programs = (host: Host, length: number) =>
  fc.asyncProperty(fc.commands([step], { maxCommands: length, size: "max" }), (program) =>
    host.use(async (real) => {
      const model = new Model()
      await fc.asyncModelRun(() => ({ model, real }), program)
      await real.run(inTimeOf(model)(judge(model, real)))
    }))

/** What must hold when a program is over, and when its jobs are too. */
const judge = (model: Model, real: Real) =>
  Effect.gen(function*() {
    for (const transaction of [...model.transactions]) {
      model.end(transaction, yield* end(real, transaction, false))
    }
    yield* agree(model)
    yield* holds(always)
    yield* finish(model)
    yield* holds({ ...always, ...drained })
    yield* onlyInserted
  })

/** Takes back what is open, and works until nothing is left. */
const finish = (model: Model) =>
  Effect.gen(function*() {
    const engine = yield* StorageEngine.StorageEngine
    model.now += Duration.toMillis(Duration.days(1))
    yield* engine.rescueStale({ staleness: Duration.hours(1), limit: 1000 })
    model.rescue(1000, () => true)
    for (let claimed = 1; claimed > 0;) {
      yield* learnRetries(model)
      model.now += Duration.toMillis(Duration.days(2))
      yield* engine.promote(1000)
      model.promote(1000)
      claimed = 0
      for (const queue of queues) {
        const jobs = yield* engine.claim({
          queue,
          limit: 1000,
          owner: owners[0],
          nonce: "1",
          deadline: null,
          durability: "async"
        })
        const expected = model.claimable(queue)
        assert.deepEqual(jobs.map(({ job }) => BigInt(job.id)), expected.map(({ id }) => id), "the last claims")
        for (const [i, { token }] of jobs.entries()) model.claim(expected[i]!, token, owners[0], Infinity)
        const verdicts = yield* engine.complete(
          owners[0],
          jobs.map(({ token }) => ({ token, outcome: { _tag: "completed" } }))
        )
        assert.deepEqual(verdicts, jobs.map(() => "accepted"), "the last verdicts")
        for (const attempt of model.open) {
          model.complete(owners[0], attempt, { token: attempt.token, outcome: { _tag: "completed" } })
        }
        claimed += jobs.length
      }
    }
    yield* agree(model)
    assert.deepEqual(
      model.visible.filter(({ state }) => !["completed", "failed", "cancelled"].includes(state)),
      [],
      "jobs that never end"
    )
  })
