import { Wait } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Fiber, Ref, TestClock } from "effect"

describe("Wait.eventually", () => {
  it.effect("repeats a check that fails or throws until it succeeds", () =>
    Effect.gen(function*() {
      const runs = yield* Ref.make(0)
      const check = Effect.gen(function*() {
        const n = yield* Ref.updateAndGet(runs, (n) => n + 1)
        if (n === 1) return yield* Effect.fail("not yet")
        assert.isAbove(n, 2)
        return n
      })
      assert.strictEqual(yield* Wait.eventually(check), 3)
    }))

  it.effect("fails like the last run when it took too long", () =>
    Effect.gen(function*() {
      const runs = yield* Ref.make(0)
      const check = Effect.flatMap(Ref.updateAndGet(runs, (n) => n + 1), (n) => Effect.fail(n))
      const failure = yield* Effect.flip(Wait.eventually(check, { within: "30 millis", every: "1 millis" }))
      assert.isAbove(failure, 1)
      assert.strictEqual(failure, yield* Ref.get(runs))
    }))

  it.effect("leaves the clock of the check alone", () =>
    Effect.gen(function*() {
      yield* TestClock.adjust("1 minute")
      const runs = yield* Ref.make(0)
      const check = Effect.zip(Clock.currentTimeMillis, Ref.updateAndGet(runs, (n) => n + 1)).pipe(
        Effect.filterOrFail(([, n]) => n === 3)
      )
      assert.deepStrictEqual(yield* Wait.eventually(check), [60_000, 3])
    }))

  it.effect("ends when it is interrupted", () =>
    Effect.gen(function*() {
      const fiber = yield* Effect.fork(Wait.eventually(Effect.fail("never")))
      assert.isTrue(Exit.isInterrupted(yield* Fiber.interrupt(fiber)))
    }))
})
