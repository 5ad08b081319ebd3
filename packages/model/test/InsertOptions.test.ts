import { Job } from "@awa/model"
import { assert, describe, it } from "@effect/vitest"
import { DateTime, Duration, Either, Schema } from "effect"
import { toJson, unknownOptionRefusal, validate, withTraceparent } from "../src/internal/insertOptions.js"

/** The JSON members of valid options, or the refusal as "field: reason". */
const outcome = (options: object): string =>
  Either.match(validate(options), {
    onLeft: ({ field, reason }) => `${field}: ${reason}`,
    onRight: (checked) => toJson(checked, null)
  })

const refuses = (options: object, pattern: RegExp): void => assert.match(outcome(options), pattern)

describe("valid options", () => {
  it("leave out what is default", () => {
    assert.strictEqual(outcome({}), "")
    assert.strictEqual(outcome({ queue: "default", priority: 2, maxAttempts: 25, tags: [], metadata: undefined }), "")
  })

  it("become members of the job's JSON", () => {
    const runAt = new Date("2030-01-02T03:04:05.678Z")
    assert.strictEqual(
      `{"args":1${
        outcome({ queue: "e \"mail\"", priority: 1, maxAttempts: 1000, runAt, tags: ["a"], metadata: { x: [1] } })
      }}`,
      JSON.stringify({
        args: 1,
        queue: "e \"mail\"",
        priority: 1,
        max_attempts: 1000,
        run_at: "2030-01-02T03:04:05.678Z",
        tags: ["a"],
        metadata: { x: [1] }
      })
    )
    assert.strictEqual(outcome({ runAt: DateTime.unsafeMake(runAt) }), ",\"run_at\":\"2030-01-02T03:04:05.678Z\"")
    assert.strictEqual(outcome({ delay: "5 minutes" }), ",\"delay_ms\":300000")
    assert.strictEqual(outcome({ delay: Duration.micros(1500n) }), ",\"delay_ms\":1.5")
  })

  it("count characters, not UTF-16 units", () => {
    assert.isTrue(Either.isRight(validate({ queue: "😀".repeat(200) })))
    refuses({ queue: "😀".repeat(201) }, /^queue: must have 1 to 200 characters/)
  })

  it("may set a traceparent, which then wins", () => {
    const given = "{\"a\":1,\"awa:traceparent\":\"00-x\"}"
    assert.strictEqual(outcome({ metadata: JSON.parse(given) }), `,"metadata":${given}`)
    assert.strictEqual(withTraceparent(given, "00-y"), given)
    assert.strictEqual(
      withTraceparent("{\"a\":\"awa:traceparent\"}", "00-y"),
      "{\"awa:traceparent\":\"00-y\",\"a\":\"awa:traceparent\"}"
    )
    assert.strictEqual(
      withTraceparent("{\"b\":\"\\\"awa:traceparent\\\"\"}", "00-y"),
      "{\"awa:traceparent\":\"00-y\",\"b\":\"\\\"awa:traceparent\\\"\"}"
    )
    assert.strictEqual(withTraceparent(undefined, "00-y"), "{\"awa:traceparent\":\"00-y\"}")
    assert.strictEqual(withTraceparent("{}", "00-y"), "{\"awa:traceparent\":\"00-y\"}")
  })
})

describe("refused", () => {
  it("queue", () => {
    for (const queue of ["", "x".repeat(201)]) refuses({ queue }, /^queue: must have 1 to 200 characters/)
    for (const queue of [null, 1, {}]) refuses({ queue }, /^queue: must be a string/)
    refuses({ queue: "a\0" }, /^queue: contains NUL/)
    refuses({ queue: "\ud800" }, /^queue: contains half of a surrogate pair/)
  })

  it("priority and maxAttempts", () => {
    for (const priority of [0, 5, 1.5, "1", null, Number.NaN]) refuses({ priority }, /^priority: must be 1/)
    for (const maxAttempts of [0, 1001, 2.5, "3", null, Infinity]) {
      refuses({ maxAttempts }, /^maxAttempts: must be a whole number/)
    }
  })

  it("tags", () => {
    refuses({ tags: Array.from({ length: 21 }, String) }, /^tags: must be at most 20/)
    refuses({ tags: ["ok", ""] }, /^tags\[1\]: must have 1 to 200 characters/)
    refuses({ tags: ["\0"] }, /^tags\[0\]: contains NUL/)
    refuses({ tags: [1] }, /^tags\[0\]: must be a string/)
    refuses({ tags: "a" }, /^tags: must be an array/)
  })

  it("runAt", () => {
    for (const runAt of ["2030-01-01", 0, null, {}]) refuses({ runAt }, /^runAt: must be a Date or a DateTime/)
    const years = ["0000-12-31T23:59:59.999Z", "+010000-01-01T00:00:00.000Z", "nonsense"].map((text) => new Date(text))
    for (const runAt of years) refuses({ runAt }, /^runAt: must be a valid date of the years 1 to 9999/)
    for (const text of ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"]) {
      assert.strictEqual(outcome({ runAt: new Date(text) }), `,"run_at":"${text}"`)
    }
  })

  it("delay", () => {
    for (const delay of ["soon", Number.NaN, [0, Number.NaN], null, {}]) {
      refuses({ delay }, /^delay: must be a duration/)
    }
    for (const delay of [-1, -1n, -0.5, -Infinity, [0, -1], [-Infinity, 0], "-5 minutes"]) {
      refuses({ delay }, /^delay: must not be negative/)
    }
    for (const delay of [Infinity, Duration.infinity, "36526 days"]) {
      refuses({ delay }, /^delay: must be at most 100 years/)
    }
    refuses({ delay: 1, runAt: new Date(0) }, /^delay: cannot be combined with runAt/)
  })

  it("metadata", () => {
    for (const metadata of [null, [], "x", 1, new Date(0), new Map(), { toJSON: () => [] }]) {
      refuses({ metadata }, /^metadata: must be a plain object/)
    }
    refuses({ metadata: { a: [{ b: "\0" }] } }, /^metadata\.a\[0\]\.b: contains NUL/)
    refuses({ metadata: { a: 1n } }, /^metadata\.a: JSON has no bigint/)
    refuses({ metadata: { "awa:x": 1 } }, /^metadata\["awa:x"\]: keys that begin with awa: or _awa_ are reserved/)
    refuses({ metadata: { _awa_original_queue: "q" } }, /^metadata\._awa_original_queue: keys/)
    refuses({ metadata: { "awa:traceparent": 1 } }, /^metadata\["awa:traceparent"\]: must be a string/)
    assert.strictEqual(
      outcome({ metadata: { nested: { "awa:x": "_awa_" } } }),
      ",\"metadata\":{\"nested\":{\"awa:x\":\"_awa_\"}}"
    )
  })

  it("options that do not exist, naming the one that was meant", () => {
    const cases: ReadonlyArray<readonly [string, string]> = [
      ["run_at", "did you mean runAt?"],
      ["max_attempts", "did you mean maxAttempts?"],
      ["maxAttempt", "did you mean maxAttempts?"],
      ["priorty", "did you mean priority?"],
      ["Queue", "did you mean queue?"],
      ["tag", "did you mean tags?"],
      ["uniqe", "did you mean unique?"],
      ["retries", "known options are queue, priority, maxAttempts, runAt, delay, metadata, tags, orderingKey, unique"]
    ]
    for (const [key, advice] of cases) {
      assert.deepStrictEqual(unknownOptionRefusal({ [key]: 1 }), { field: key, reason: `no such option; ${advice}` })
    }
  })
})

describe("Job.make", () => {
  const payload = { n: Schema.Number }
  const fails = (kind: string, options: object, pattern: RegExp): void =>
    assert.throws(() => Job.make(kind, { payload, ...options }), pattern)

  it("throws what is wrong with kind and defaults when the job is defined", () => {
    fails("", {}, /Job "" is not accepted\. kind: must have 1 to 200 characters/)
    fails("x".repeat(201), {}, /kind: must have 1 to 200 characters/)
    fails("a\0", {}, /kind: contains NUL/)
    fails("a", { priority: 7 }, /Job "a" is not accepted\. priority: must be 1/)
    fails("a", { maxAttempt: 7 }, /maxAttempt: no such option; did you mean maxAttempts\?/)
  })
})
