import { assert, describe, it } from "@effect/vitest"
import { Effect, FastCheck, Fiber } from "effect"
import { Permits } from "../src/internal/permits.js"

describe("permits", () => {
  it.prop(
    "never more are out than there are",
    [FastCheck.integer({ min: 1, max: 20 }), FastCheck.array(FastCheck.integer({ min: -10, max: 10 }))],
    ([size, steps]) => {
      const permits = new Permits(size)
      let out = 0
      for (const step of steps) {
        if (step >= 0) out += permits.takeUpTo(step)
        else {
          const back = Math.min(-step, out)
          permits.release(back)
          out -= back
        }
        if (permits.inUse !== out || out > size || permits.free !== size - out) return false
      }
      return true
    }
  )

  it.effect("waiting for some ends with the release that makes them enough", () =>
    Effect.gen(function*() {
      const permits = new Permits(4)
      assert.strictEqual(permits.takeUpTo(10), 4)
      let woken = false
      const waiter = yield* Effect.fork(Effect.tap(permits.awaitFree(2), () => Effect.sync(() => woken = true)))
      yield* Effect.yieldNow()
      permits.release(1)
      yield* Effect.yieldNow()
      assert.isFalse(woken)
      permits.release(1)
      yield* Fiber.join(waiter)
      assert.isTrue(woken)
    }))

  it.effect("waiting for more than there are is waiting for all", () =>
    Effect.gen(function*() {
      const permits = new Permits(1)
      yield* permits.awaitFree(5)
    }))
})
