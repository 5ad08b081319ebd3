import { assert, describe, it } from "@effect/vitest"
import { makeRandom, median, percentile, poissonArrivals } from "../src/Statistics.js"

describe("Statistics", () => {
  it("takes the middle, or the mean of the two in the middle", () => {
    assert.strictEqual(median([3, 1, 2]), 2)
    assert.strictEqual(median([4, 1, 2, 3]), 2.5)
  })

  it("takes the nearest rank for a percentile", () => {
    const values = Array.from({ length: 100 }, (_, i) => 100 - i)
    assert.strictEqual(percentile(values, 0.5), 50)
    assert.strictEqual(percentile(values, 0.99), 99)
    assert.strictEqual(percentile([7], 0.99), 7)
  })

  it("repeats random numbers for the same seed, all in [0, 1)", () => {
    const [a, b] = [makeRandom(5), makeRandom(5)]
    const numbers = Array.from({ length: 10_000 }, a)
    assert.deepStrictEqual(numbers, Array.from({ length: 10_000 }, b))
    assert.isTrue(numbers.every((n) => n >= 0 && n < 1))
    assert.closeTo(numbers.reduce((sum, n) => sum + n, 0) / numbers.length, 0.5, 0.02)
  })

  it("arrives at the asked rate, in ascending order, within the time", () => {
    const arrivals = poissonArrivals(200, 50, 3)
    assert.closeTo(arrivals.length, 10_000, 500)
    assert.isTrue(arrivals.every((at, i) => at >= (arrivals[i - 1] ?? 0) && at < 50_000))
  })
})
