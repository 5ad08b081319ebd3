import { assert, describe, it } from "@effect/vitest"
import { FastCheck } from "effect"
import { ProgressBuffer } from "../src/internal/progress.js"
import { bounded, storable, storableJson } from "../src/internal/text.js"

describe("progress", () => {
  it("clamps the percentage", () => {
    const progress = new ProgressBuffer(undefined)
    for (const [given, stored] of [[150, 100], [-1, 0], [NaN, 0], [42.5, 42.5]] as const) {
      progress.set(given, undefined)
      assert.deepStrictEqual(progress.pending()!.value, { percent: stored })
    }
  })

  it("setting keeps the metadata, merging keeps the rest", () => {
    const progress = new ProgressBuffer({ percent: 10, message: "old", metadata: { page: 3, kept: true } })
    assert.isUndefined(progress.pending())
    progress.merge({ page: 4 })
    assert.deepStrictEqual(progress.pending()!.value, {
      percent: 10,
      message: "old",
      metadata: { page: 4, kept: true }
    })
    progress.set(20, "new")
    assert.deepStrictEqual(progress.pending()!.value, {
      percent: 20,
      message: "new",
      metadata: { page: 4, kept: true }
    })
  })

  it("a checkpoint of another shape is left alone until something is reported", () => {
    const progress = new ProgressBuffer("whatever")
    assert.isUndefined(progress.pending())
    progress.set(1, undefined)
    assert.deepStrictEqual(progress.pending()!.value, { percent: 1 })
  })

  it("a late acknowledgement does not hide newer progress", () => {
    const progress = new ProgressBuffer(undefined)
    progress.set(1, undefined)
    const first = progress.pending()!
    progress.set(2, undefined)
    const second = progress.pending()!
    progress.acknowledge(second.generation)
    progress.acknowledge(first.generation)
    assert.isUndefined(progress.pending())
    progress.set(3, undefined)
    assert.strictEqual(progress.pending()!.value.percent, 3)
  })

  it("more than 1 MiB of JSON is a defect and changes nothing", () => {
    const progress = new ProgressBuffer(undefined)
    progress.merge({ half: "\u00e4".repeat(300_000) })
    const before = progress.pending()
    assert.throws(() => progress.merge({ other: "x".repeat(500_000) }), RangeError, "too large")
    assert.throws(() => progress.set(1, "x".repeat(500_000)), RangeError, "too large")
    assert.deepStrictEqual(progress.pending(), before)
    progress.merge({ half: null })
    progress.set(1, "x".repeat(500_000))
  })

  it("holds nothing the database cannot store", () => {
    const progress = new ProgressBuffer(undefined)
    progress.set(1, "a\0b\ud800")
    progress.merge({ "k\0": ["\udc00\0"] })
    assert.notMatch(JSON.stringify(progress.pending()!.value), /\\u/)
  })

  it("metadata that is no JSON object is a defect", () => {
    const progress = new ProgressBuffer(undefined)
    assert.throws(() => progress.merge([] as never), TypeError)
    assert.throws(() => progress.merge({ big: 1n }), TypeError)
    assert.isUndefined(progress.pending())
  })
})

const anyText = FastCheck.array(FastCheck.integer({ min: 0, max: 0xffff }), { maxLength: 40 })
  .map((codes) => String.fromCharCode(...codes))

const isStorable = (text: string) => !/[\0\p{Surrogate}]/u.test(text)

describe("text for the database", () => {
  it.prop("holds neither NUL nor lone surrogates", [anyText], ([text]) => isStorable(storable(text)))

  it.prop("stays as it is when it holds neither", [anyText], ([text]) => !isStorable(text) || storable(text) === text)

  it.prop("is bounded without cutting a pair in halves", [FastCheck.integer({ min: 8170, max: 8195 })], ([length]) => {
    const text = bounded("x".repeat(length) + "\u{1F600}".repeat(20))
    return text.length <= 8192 && isStorable(text) && !text.includes("\uFFFD\uFFFD")
  })

  it.prop("JSON keeps its shape", [FastCheck.jsonValue()], ([value]) => {
    const clean = storableJson(value)
    return isStorable(JSON.stringify(value)) && !JSON.stringify(value).includes("\\u")
      ? JSON.stringify(clean) === JSON.stringify(value)
      : true
  })

  it.prop("JSON holds nothing unstorable in keys and values", [anyText, anyText], ([key, value]) => {
    const clean = storableJson({ [key]: [value, `\\u0000${value}`] })
    return !/(^|[^\\])(\\\\)*\\u(0000|d[89a-f])/.test(JSON.stringify(clean))
  })
})
