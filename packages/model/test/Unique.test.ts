import { Errors, Job, type JobRow, JobState, Producer, Unique } from "@awa/model"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Either, FastCheck, Option, Schema, TestClock } from "effect"
import { isDeepStrictEqual } from "node:util"
import { isPlain, validate } from "../src/internal/insertOptions.js"
import { uniqueOf } from "../src/internal/unique/options.js"
import { mask, reentry, transitions } from "../src/internal/unique/states.js"

describe("keys are those of other implementations", () => {
  const vectors: ReadonlyArray<readonly [Unique.Parts, string]> = [
    [{ kind: "send_email" }, "bee8bfbcd9d48e51f79059a523039018"],
    [{ kind: "send_email", queue: "default" }, "5f8918febb66adef42a3b4da3a9465c8"],
    [{ kind: "send_email", args: { to: "a@b.com" } }, "ef8febabb370bd83c515cf9f8e9c3600"],
    [{ kind: "send_email", args: { b: [true, null, "x"], a: 1 } }, "1b6bd8cedfce5bb4dc329909bb4a834b"],
    [{ kind: "send_email", bucket: 1000n }, "d3676a6ea8e39ca25f82b37fc977060d"],
    [
      { kind: "send_email", queue: "default", args: { to: "a@b.com" }, bucket: 1000n },
      "bf4a3632e94084f3f07b16a93209e113"
    ],
    [{ kind: "k", args: {} }, "d9ab253fc7fdc32c6955ee47bd2a1d20"],
    [{ kind: "k", queue: "{}" }, "d9ab253fc7fdc32c6955ee47bd2a1d20"]
  ]
  for (const [parts, key] of vectors) {
    it(Object.keys(parts).join(" and "), () => assert.strictEqual(Unique.key(parts), key))
  }

  it("a bucket is of two's complement, the least byte first", () => {
    const buckets = [0n, -1n, 255n, 256n, -(2n ** 63n), 2n ** 63n - 1n]
    assert.strictEqual(new Set(buckets.map((bucket) => Unique.key({ kind: "k", bucket }))).size, buckets.length)
  })
})

describe("canonical JSON", () => {
  it("has numbers as serde_json writes them", () => {
    const numbers: ReadonlyArray<readonly [number, string]> = [
      [0, "0"],
      [-0, "0"],
      [1, "1"],
      [-17, "-17"],
      [1.5, "1.5"],
      [-0.1, "-0.1"],
      [0.1 + 0.2, "0.30000000000000004"],
      [123456.789, "123456.789"],
      [2 ** 53, "9007199254740992"],
      [2 ** 63, "9223372036854776000"],
      [-(2 ** 63), "-9.223372036854776e18"],
      [1e19, "10000000000000000000"],
      [2 ** 64, "1.8446744073709552e19"],
      [1e20, "1e20"],
      [1e21, "1e21"],
      [1.25e22, "1.25e22"],
      [-1e300, "-1e300"],
      [Number.MAX_VALUE, "1.7976931348623157e308"],
      [5e-324, "5e-324"],
      [0.00001, "0.00001"],
      [0.000123, "0.000123"],
      [0.000001, "1e-6"],
      [0.00000123, "1.23e-6"],
      [1e-7, "1e-7"]
    ]
    for (const [number, text] of numbers) assert.strictEqual(Unique.canonicalJson(number), text)
  })

  it("has strings as JSON.stringify writes them", () => {
    const text = "\"\\\b\f\n\r\t\u0001\u001f\u007f/ é 😀 \u2028"
    assert.strictEqual(
      Unique.canonicalJson(text),
      "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\u007f/ é 😀 \u2028\""
    )
  })

  it("sorts members by the UTF-8 bytes of their keys, at every level", () => {
    // In UTF-16 the emoji, beginning with a surrogate, comes before U+FFFF.
    const keys = ["", "10", "9", "A", "a", "aa", "é", "\uffff", "😀", "😁"]
    const shuffled = Object.fromEntries([...keys].reverse().map((key) => [key, { b: [{ z: 1, y: 2 }], a: null }]))
    const expected = keys.map((key) => `${JSON.stringify(key)}:{"a":null,"b":[{"y":2,"z":1}]}`).join(",")
    assert.strictEqual(Unique.canonicalJson(shuffled), `{${expected}}`)
    const proto: unknown = JSON.parse("{\"b\":1,\"__proto__\":2}")
    assert.strictEqual(Unique.canonicalJson(proto), "{\"__proto__\":2,\"b\":1}")
  })

  const json = FastCheck.jsonValue({ maxDepth: 4 }).map((value): unknown => JSON.parse(JSON.stringify(value)))

  const reordered = (value: unknown): unknown =>
    Array.isArray(value)
      ? value.map(reordered)
      : typeof value === "object" && value !== null
      ? Object.fromEntries(Object.entries(value).reverse().map(([key, member]) => [key, reordered(member)]))
      : value

  it.prop("is JSON of the same value", [json], ([value]) => {
    assert.deepStrictEqual(JSON.parse(Unique.canonicalJson(value)), value)
  }, { fastCheck: { numRuns: 1000 } })

  it.prop("does not depend on the order of members", [json], ([value]) => {
    assert.strictEqual(Unique.canonicalJson(reordered(value)), Unique.canonicalJson(value))
  })

  it.prop("tells any two values apart", [json, json], ([one, other]) => {
    const isSame = Unique.canonicalJson(one) === Unique.canonicalJson(other)
    assert.strictEqual(isSame, isDeepStrictEqual(one, other))
  })

  it.prop("names every double exactly", [FastCheck.double({ noNaN: true, noDefaultInfinity: true })], ([number]) => {
    const text = Unique.canonicalJson(number)
    assert.strictEqual(JSON.parse(text), number === 0 ? 0 : number)
    assert.match(text, /^-?(\d{1,20}|\d{1,16}\.\d+|\d(\.\d+)?e-?\d+)$/)
  }, { fastCheck: { numRuns: 2000 } })

  it.prop("orders keys as their bytes are", [FastCheck.array(FastCheck.string({ unit: "grapheme" }))], ([keys]) => {
    const object = Object.fromEntries(keys.map((key) => [key, 0]))
    const bytes = Object.keys(object).map((key) => Buffer.from(key)).sort(Buffer.compare)
    assert.strictEqual(
      Unique.canonicalJson(object),
      `{${bytes.map((key) => `${JSON.stringify(key.toString())}:0`).join(",")}}`
    )
  })
})

const checked = (unique: unknown, fields: ReadonlyArray<string> | null = null) =>
  validate({ unique } as object, fields === null ? null : new Set(fields))

const refusal = (unique: unknown, fields?: ReadonlyArray<string>): string =>
  Either.match(checked(unique, fields), {
    onLeft: ({ field, reason }) => `${field}: ${reason}`,
    onRight: () => "fine"
  })

describe("states", () => {
  it("by default are those of a job that has not ended", () => {
    assert.deepStrictEqual(Unique.liveStates, ["scheduled", "available", "running", "retryable", "waiting_external"])
    assert.strictEqual(mask(Unique.liveStates), "11101001")
    assert.strictEqual(mask(JobState.JobState.literals), "11111111")
  })

  it.prop(
    "are refused exactly when a job could come back into one",
    [FastCheck.subarray([...JobState.JobState.literals], { minLength: 1 })],
    ([states]) => {
      const held = (state: JobState.JobState) => states.includes(state)
      /** Every way a job can go, from where it is, until it has ended. */
      const comesBack = (state: JobState.JobState, seen: ReadonlyArray<JobState.JobState>): boolean =>
        (transitions[state] ?? []).some((next) =>
          (!held(state) && held(next)) || (!seen.includes(next) && comesBack(next, [...seen, next]))
        )
      const isClosed = !Unique.liveStates.some((state) => comesBack(state, [state]))
      assert.strictEqual(refusal({ states }) === "fine", isClosed, states.join())
      assert.strictEqual(reentry(states) === undefined, isClosed)
    },
    { fastCheck: { numRuns: 500 } }
  )

  it("are refused with the step that is wrong", () => {
    assert.match(
      refusal({ states: ["scheduled", "available", "running", "completed", "retryable"] }),
      /^unique\.states: leaves waiting_external out, from where a job goes on to running, when another may have its key: name all of scheduled/
    )
    assert.match(refusal({ states: ["completed"] }), /^unique\.states: leaves running out, from where .* to completed/)
    assert.strictEqual(refusal({ states: [...Unique.liveStates, "completed", "failed"] }), "fine")
  })
})

describe("options", () => {
  it("are refused with their paths", () => {
    const cases: ReadonlyArray<readonly [unknown, RegExp]> = [
      [1, /^unique: must be true, false or an object/],
      [null, /^unique: must be true/],
      [["to"], /^unique: must be true/],
      [{ byKind: true }, /^unique\.byKind: no such option; known options are byQueue, byPayload/],
      [{ byQueue: "x" }, /^unique\.byQueue: must be true or false/],
      [{ byPayload: "to" }, /^unique\.byPayload: must be true, false or an array/],
      [{ byPayload: [] }, /^unique\.byPayload: must name a field/],
      [{ byPayload: ["to", 1] }, /^unique\.byPayload\[1\]: must be the name of a field/],
      [{ byPayload: ["to", "form"] }, /^unique\.byPayload\[1\]: is no field of the payload/],
      [{ period: "soon" }, /^unique\.period: must be a duration/],
      [{ period: 0 }, /^unique\.period/],
      [{ period: Infinity }, /^unique\.period/],
      [{ period: 1.5 }, /^unique\.period/],
      [{ period: Number.NaN }, /^unique\.period/],
      [{ bucket: 1 }, /^unique\.bucket: must be a bigint/],
      [{ bucket: 2n ** 63n }, /^unique\.bucket: must be a bigint of 64 bits/],
      [{ bucket: 1n, period: "1 day" }, /^unique\.bucket: cannot be combined with period/],
      [{ states: "running" }, /^unique\.states: must be an array/],
      [{ states: [] }, /^unique\.states: must name a state/],
      [{ states: ["running", "done"] }, /^unique\.states\[1\]: must be one of scheduled/]
    ]
    for (const [unique, expected] of cases) assert.match(refusal(unique, ["to", "from"]), expected)
    for (const unique of [true, false, undefined, {}, { byPayload: ["to"], period: "1 day" }, { bucket: -1n }]) {
      assert.strictEqual(refusal(unique, ["to", "from"]), "fine")
    }
  })

  it("make a job that is not plain", () => {
    const isPlainWith = (unique: boolean) => isPlain(Either.getOrThrow(checked(unique)))
    assert.isFalse(isPlainWith(true))
    assert.isTrue(isPlainWith(false))
  })

  it("are checked when a job is defined, also against the fields of its payload", () => {
    const payload = { to: Schema.String, at: Schema.optional(Schema.Date) }
    const make = (unique: object) => () => Job.make("k", { payload, unique })
    assert.throws(make({ byPayload: ["too"] }), /unique\.byPayload\[0\]: is no field of the payload/)
    assert.throws(make({ states: ["running"] }), /unique\.states: leaves/)
    assert.doesNotThrow(make({ byPayload: ["at"] }))
  })
})

const Mail = Job.make("mail", {
  payload: { to: Schema.String, at: Schema.optional(Schema.Date), n: Schema.NumberFromString },
  unique: true
})

const keyOf = (
  payload: Job.Payload<typeof Mail>,
  unique?: Parameters<typeof Mail.request>[1] extends infer O ? O : never
) => Effect.map(Unique.keyOf(Mail.request(payload, unique)), Option.getOrUndefined)

describe("what is part of a key", () => {
  const payload = { to: "a", n: 1 }

  it.effect("is the payload as it is stored", () =>
    Effect.gen(function*() {
      const args = { to: "a", at: "1970-01-01T00:00:00.000Z", n: "1" }
      assert.strictEqual(yield* keyOf({ ...payload, at: new Date(0) }), Unique.key({ kind: "mail", args }))
      assert.strictEqual(
        yield* keyOf(payload, { unique: { byPayload: ["n", "at"] } }),
        Unique.key({ kind: "mail", args: { n: "1" } })
      )
      assert.strictEqual(yield* keyOf(payload, { unique: { byPayload: false } }), Unique.key({ kind: "mail" }))
      assert.strictEqual(
        yield* keyOf(payload, { queue: "q", unique: { byPayload: false, byQueue: true } }),
        Unique.key({ kind: "mail", queue: "q" })
      )
      assert.strictEqual(
        yield* keyOf(payload, { unique: { byPayload: false, bucket: -3n } }),
        Unique.key({ kind: "mail", bucket: -3n })
      )
      assert.isUndefined(yield* keyOf(payload, { unique: false }))
    }))

  it.effect("is the stretch of time, by the clock", () =>
    Effect.gen(function*() {
      const daily = keyOf(payload, { unique: { period: "1 day" } })
      const keyOfDay = (bucket: bigint) => Unique.key({ kind: "mail", args: { to: "a", n: "1" }, bucket })
      assert.strictEqual(yield* daily, keyOfDay(0n))
      yield* TestClock.adjust(Duration.subtract(Duration.days(1), Duration.millis(1)))
      assert.strictEqual(yield* daily, keyOfDay(0n))
      yield* TestClock.adjust("1 millis")
      assert.strictEqual(yield* daily, keyOfDay(1n))
    }))

  it("is noted with the job: the bucket, and the clock it was computed from", () => {
    const noted = (unique: object) => {
      const options = Either.getOrThrow(checked(unique)).unique!
      return JSON.parse(uniqueOf(options, { kind: "k", queue: "q", args: 1 }, Date.UTC(2030, 0, 1, 12)).json)
    }
    const states = "11101001"
    assert.deepStrictEqual(noted({}), { key: Unique.key({ kind: "k", args: 1 }), states })
    assert.deepStrictEqual(noted({ bucket: 5n, byPayload: false }), {
      key: Unique.key({ kind: "k", bucket: 5n }),
      states,
      bucket: "5"
    })
    assert.deepStrictEqual(noted({ period: "1 day", byPayload: false }), {
      key: Unique.key({ kind: "k", bucket: 21915n }),
      states,
      bucket: "21915",
      period_ms: 86_400_000,
      at: "2030-01-01T12:00:00.000Z"
    })
  })

  it.effect("chosen fields must be there", () =>
    Effect.gen(function*() {
      const Free = Job.make("free", { payload: Schema.Unknown })
      const refused = (payload: unknown) =>
        Effect.map(Effect.flip(Unique.keyOf(Free.request(payload, { unique: { byPayload: ["a"] } }))), String)
      assert.match(yield* refused([1]), /unique\.byPayload: names fields, and the payload is no object/)
      assert.match(yield* refused({ b: 1 }), /unique\.byPayload: the payload has none of these fields/)
    }))
})

describe("UniqueConflict", () => {
  it("names the holder, or the job of the same call", () => {
    const jobId = 7n as JobRow.JobId
    const one = new Errors.UniqueConflict({ kind: "k", jobId })
    assert.match(one.message, /Job "k" is not enqueued, job 7 has its unique key/)
    assert.match(
      new Errors.UniqueConflict({ kind: "k", index: 3, sameAs: 1 }).message,
      /Job "k" \(index 3 of the call\) is not enqueued, the job at index 1 of the call has its unique key/
    )
    assert.deepStrictEqual(Schema.encodeSync(Errors.UniqueConflict)(one), {
      _tag: "UniqueConflict",
      kind: "k",
      jobId: "7"
    })
    assert.deepInclude(JSON.parse(JSON.stringify(one)), { _tag: "UniqueConflict", kind: "k", jobId: "7" })
  })
})

describe("a statement for other clients", () => {
  it("takes the keys along and tells duplicates", () => {
    const { text, values } = Producer.insertStatement(Mail.request({ to: "a", n: 1 }))
    assert.match(text, /^select e\.ids, e\.duplicates, e\.now from "awa"\.enqueue_unique\(\$1::jsonb, true\) as e$/)
    assert.deepInclude(JSON.parse(values[0])[0], {
      unique: { key: Unique.key({ kind: "mail", args: { to: "a", n: "1" } }), states: "11101001" }
    })
  })
})
