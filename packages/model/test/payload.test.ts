import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, FastCheck } from "effect"
import { formatPath, stringify } from "../src/internal/payload.js"
import { EmptyLive } from "./support/database.js"

/** The refusal as "path: reason", or the text. */
const outcome = (value: unknown): string =>
  Either.match(stringify(value), {
    onLeft: ({ path, reason }) => `${formatPath("payload", path)}: ${reason}`,
    onRight: (text) => text
  })

const nested = (levels: number): unknown => {
  let value: unknown = 1
  for (let i = 0; i < levels; i++) value = i % 2 === 0 ? [value] : { a: value }
  return value
}

describe("what JSON can say", () => {
  it("is written as JSON.stringify writes it", () => {
    const values: ReadonlyArray<unknown> = [
      null,
      "text",
      0,
      true,
      [],
      {},
      { a: undefined, b: () => 1, c: Symbol("s"), d: [undefined, Number.NaN, Infinity] },
      -0,
      1e308,
      5e-324,
      0.1 + 0.2,
      new Date(0),
      new Date(Number.NaN),
      { toJSON: () => ({ replaced: true }) },
      JSON.parse("{\"__proto__\": {\"polluted\": true}, \"constructor\": 1}"),
      Object.create(null),
      "\\u0000 and \\ud800 as text",
      "😀 in pairs",
      "\ufffe\uffff\u2028",
      new Map([[1, 2]])
    ]
    for (const value of values) assert.strictEqual(outcome(value), JSON.stringify(value))
  })

  it("may mention NUL and surrogates in escaped text beside a real one", () => {
    assert.strictEqual(
      outcome({ fine: "\\u0000", bad: ["x", "a\0"] }),
      "payload.bad[1]: contains NUL (\\u0000), which PostgreSQL cannot store"
    )
  })
})

describe("what is refused, and where", () => {
  it("NUL and half a surrogate pair, in strings and in keys", () => {
    assert.match(outcome("\0"), /^payload: contains NUL/)
    assert.match(
      outcome({ a: { "b c": "x\ud83d" } }),
      /^payload\.a\["b c"\]: contains half of a surrogate pair \(\\ud83d\)/
    )
    assert.match(outcome(["", { k: "\udc00x" }]), /^payload\[1\]\.k: contains half of a surrogate pair \(\\udc00\)/)
    assert.match(outcome({ "a\0": 1 }), /^payload\["a\\u0000"\]: the key contains NUL/)
    assert.match(outcome({ ok: { "\ud800": 1 } }), /^payload\.ok\["\\ud800"\]: the key contains half/)
    assert.match(outcome(JSON.parse("{\"__proto__\": {\"x\": \"\\u0000\"}}")), /^payload\.__proto__\.x: contains NUL/)
    assert.match(outcome({ toJSON: () => "\0" }), /^payload: contains NUL/)
  })

  it("what has no JSON form", () => {
    assert.strictEqual(outcome(undefined), "payload: has no JSON form (undefined)")
    assert.strictEqual(outcome(() => 1), "payload: has no JSON form (function)")
    assert.strictEqual(outcome(Symbol("s")), "payload: has no JSON form (symbol)")
    assert.strictEqual(outcome({ toJSON: () => undefined }), "payload: has no JSON form (object)")
  })

  it("bigints and cycles", () => {
    assert.strictEqual(outcome(1n), "payload: JSON has no bigint: encode it as a string")
    assert.match(outcome({ a: [1, { b: 2n }] }), /^payload\.a\[1\]\.b: JSON has no bigint/)
    const cyclic: { before: unknown; deep: { list: Array<unknown> } } = { before: { x: 1 }, deep: { list: [0] } }
    cyclic.deep.list.push(cyclic)
    assert.strictEqual(outcome(cyclic), "payload.deep.list[1]: refers back to an object it is part of")
    const shared = { n: 1 }
    assert.strictEqual(outcome([shared, shared]), "[{\"n\":1},{\"n\":1}]")
  })

  it("a toJSON or a getter that throws", () => {
    const failing = { toJSON: () => new Date(Number.NaN).toISOString() }
    assert.match(outcome({ a: failing }), /^payload: cannot be turned into JSON: Invalid time value/)
    const getter = Object.defineProperty({}, "x", {
      enumerable: true,
      get: () => {
        throw new Error("no")
      }
    })
    assert.match(outcome(getter), /^payload: cannot be turned into JSON: no/)
  })

  it("deep nesting", () => {
    assert.strictEqual(outcome(nested(1000)), JSON.stringify(nested(1000)))
    assert.match(outcome(nested(1001)), /^payload: is nested deeper than 1000 levels/)
    assert.match(outcome(nested(100_000)), /^payload: is nested deeper than 1000 levels/)
    const wide = Array.from({ length: 5000 }, () => ({ a: ["[{\\\""] }))
    assert.strictEqual(outcome(wide), JSON.stringify(wide))
  })

  it("size, counted in bytes and as PostgreSQL writes numbers", () => {
    const mebi = 1024 * 1024
    assert.strictEqual(outcome("x".repeat(16 * mebi - 2)).length, 16 * mebi)
    assert.match(outcome("x".repeat(16 * mebi - 1)), /^payload: is larger than 16 MiB/)
    assert.match(outcome("é".repeat(8 * mebi)), /^payload: is larger than 16 MiB/)
    assert.match(outcome(Array.from({ length: 60_000 }, () => 1e308)), /^payload: is larger than 16 MiB/)
    assert.match(outcome(Array.from({ length: 60_000 }, () => 5e-324)), /^payload: is larger than 16 MiB/)
    const quoted = Array.from({ length: 60_000 }, () => "1e+308 \" 1e+308")
    assert.strictEqual(outcome(quoted), JSON.stringify(quoted))
  })
})

const unicode = FastCheck.fullUnicodeString()
const anyString = FastCheck.oneof(
  unicode,
  FastCheck.string16bits(),
  FastCheck.constantFrom("\0", "\ud83d", "\\u0000", "__proto__")
)

describe("properties", () => {
  it.prop(
    "accepts exactly what is well-formed",
    [FastCheck.jsonValue({ noUnicodeString: false }), anyString],
    ([value, text]) => {
      const document = { value, [text]: [text] }
      const storable = !/[\0\p{Surrogate}]/u.test(text) &&
        !/\\u(0000|d[89a-f])/.test(JSON.stringify(value).replaceAll("\\\\", ""))
      assert.strictEqual(Either.isRight(stringify(document)), storable)
    },
    { fastCheck: { numRuns: 500 } }
  )
})

it.scopedLive("what is accepted comes back from jsonb as JSON.parse(JSON.stringify(x))", () =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const values = FastCheck.sample(
      FastCheck.oneof(
        FastCheck.jsonValue({ noUnicodeString: false, maxDepth: 6 }),
        FastCheck.anything({ withDate: true, withNullPrototype: true, withSparseArray: true, withTypedArray: true }),
        FastCheck.double(),
        FastCheck.dictionary(anyString, FastCheck.double()),
        FastCheck.constantFrom<unknown>(
          1e308,
          5e-324,
          -0,
          nested(1000),
          "\u{10ffff}",
          JSON.parse("{\"__proto__\":[{}]}")
        )
      ),
      { numRuns: 600, seed: 20261130 }
    )
    const accepted = values.flatMap((value) =>
      Either.match(stringify(value), { onLeft: () => [], onRight: (text) => [text] })
    )
    assert.isAbove(accepted.length, 300)
    const rows = yield* sql<{ stored: unknown }>`
      select j as stored from unnest(${accepted as never}::jsonb[]) with ordinality as u(j, n) order by n`
    rows.forEach(({ stored }, i) => assert.deepStrictEqual(stored, JSON.parse(accepted[i]!)))
  }).pipe(Effect.provide(EmptyLive())))
