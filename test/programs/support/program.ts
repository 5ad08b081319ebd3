import { Queues, StorageEngine } from "@awa/model"
import { Duration, Effect, FastCheck as fc, Struct } from "effect"
import * as assert from "node:assert/strict"
import { type Feature, features, usual } from "../commands/index.js"
import { agree, always, drained, holds, learnRetries, onlyInserted } from "./invariants.js"
import { Model } from "./model.js"
import { end, type Host, inTimeOf, owners, queues, type Real } from "./real.js"

/** Some of what a program may do besides the usual. */
const choice = fc.subarray(Struct.keys(features), { minLength: 1, maxLength: 2 })

const steps = (chosen: ReadonlyArray<Feature>, maxCommands: number) =>
  fc.commands([fc.oneof(...usual, ...chosen.flatMap((name) => features[name]))], { maxCommands, size: "max" })

/** Programs of up to `length` steps, of these features or of different ones. */
export const programs = (host: Host, length: number, chosen?: ReadonlyArray<Feature>) =>
  fc.asyncProperty(
    (chosen ? fc.constant(chosen) : choice).chain((features) => steps(features, length)),
    (program) =>
      host.use(async (real) => {
        const model = new Model()
        await fc.asyncModelRun(() => ({ model, real }), program)
        await real.run(inTimeOf(model)(judge(model, real)))
      })
  )

/** What must hold when a program is over, and when its jobs are too. */
const judge = (model: Model, real: Real) =>
  Effect.gen(function*() {
    for (const transaction of [...model.transactions]) {
      model.end(transaction, yield* end(real, transaction, false))
    }
    yield* agree(model)
    yield* holds(always, model)
    yield* finish(model)
    yield* holds({ ...always, ...drained }, model)
    yield* onlyInserted
  })

/** Takes back what is open, and works until nothing is left. */
const finish = (model: Model) =>
  Effect.gen(function*() {
    const engine = yield* StorageEngine.StorageEngine
    for (const queue of model.paused) yield* Queues.resume(queue)
    model.paused.clear()
    assert.equal(yield* engine.cancelRequested(1000), model.cancelUnwanted(), "the last requests to cancel")
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
