import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { all, check, outcomes } from "./harness.js"

/** @internal */
export const probing = [
  check("a probe names the queues that have something to claim", (t) =>
    Effect.gen(function*() {
      const [a, b, c] = [`${t.queue}-a`, `${t.queue}-b`, `${t.queue}-c`]
      const probe = Effect.map(t.engine.probe([c, b, a]), (queues) => [...queues].sort())
      assert.deepEqual(yield* probe, [], "before anything was enqueued")
      yield* t.enqueue({ queue: a })
      yield* t.enqueue({ queue: b, delay: "1 minute" })
      yield* t.enqueueMany(2, { queue: c, priority: 4 })
      assert.deepEqual(yield* probe, [a, c])
      assert.deepEqual(yield* t.engine.probe([b, a]), [a], "only those it is asked about")
      yield* t.claim(1000, { queue: a })
      yield* t.claim(1, { queue: c })
      assert.deepEqual(yield* probe, [c], "running jobs are not claimable")
      yield* TestClock.adjust("1 minute")
      yield* t.engine.promote(all)
      assert.deepEqual(yield* probe, [b, c], "promoted ones are")
      assert.deepEqual(yield* t.engine.probe([]), [])
    })),

  check("a probe sees what was given back", (t) =>
    Effect.gen(function*() {
      yield* t.enqueue()
      const claimed = yield* t.claimOne
      assert.deepEqual(yield* t.engine.probe([t.queue]), [])
      yield* t.accept(claimed, outcomes.return)
      assert.deepEqual(yield* t.engine.probe([t.queue]), [t.queue])
    })),

  check("a probe sees jobs that are committed late, and none before", (t) =>
    Effect.gen(function*() {
      const late = yield* t.enqueueLate(1)
      assert.deepEqual(yield* t.engine.probe([t.queue]), [], "uncommitted")
      yield* t.enqueue()
      yield* t.claimOne
      assert.deepEqual(yield* t.engine.probe([t.queue]), [], "passed by a claim")
      yield* late.commit
      assert.deepEqual(yield* t.engine.probe([t.queue]), [t.queue], "committed behind the claim")
      yield* t.claimOne
      assert.deepEqual(yield* t.engine.probe([t.queue]), [])
    }))
]
