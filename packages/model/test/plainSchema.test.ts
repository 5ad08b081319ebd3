import { assert, describe, it } from "@effect/vitest"
import { Arbitrary, FastCheck, Schema } from "effect"
import { check } from "../src/internal/plainSchema.js"

const Everything = Schema.Struct({
  text: Schema.String,
  count: Schema.Int,
  ratio: Schema.Number,
  on: Schema.Boolean,
  kind: Schema.Literal("a", 1, null),
  tags: Schema.Array(Schema.NonEmptyString),
  maybe: Schema.optional(Schema.String),
  either: Schema.Union(Schema.Struct({ x: Schema.Number }), Schema.Struct({ y: Schema.String })),
  nested: Schema.Struct({ deep: Schema.Array(Schema.Struct({ id: Schema.Positive })) })
})

const passes = (schema: Schema.Schema.AnyNoContext, value: unknown): boolean => check(schema)?.(value) ?? false

describe("the short cut through plain schemas", () => {
  it.prop(
    "what it lets pass, the schema leaves as it is",
    { value: FastCheck.oneof(Arbitrary.make(Schema.typeSchema(Everything)), FastCheck.anything()) },
    ({ value }) => {
      if (passes(Everything, value)) {
        assert.deepStrictEqual(Schema.encodeUnknownSync(Everything)(value), value)
        assert.deepStrictEqual(Schema.decodeUnknownSync(Everything)(value), value)
      }
    },
    { fastCheck: { numRuns: 300 } }
  )

  it("is taken by plain values", () => {
    const value = {
      text: "x",
      count: 1,
      ratio: 0.5,
      on: false,
      kind: null,
      tags: ["a"],
      either: { y: "z" },
      nested: { deep: [{ id: 1 }] }
    }
    assert.isTrue(passes(Everything, value))
    assert.isFalse(passes(Everything, { ...value, count: 1.5 }))
    assert.isFalse(passes(Everything, { ...value, tags: [""] }))
  })

  it("is not taken by what the schema would change or look at more closely", () => {
    const Named = Schema.Struct({ name: Schema.String })
    class Person {
      constructor(readonly name: string) {}
    }
    assert.isFalse(passes(Named, { name: "x", excess: 1 }))
    assert.isFalse(passes(Named, new Person("x")))
    assert.isFalse(passes(Named, Object.create({ name: "x" })))
    assert.isFalse(passes(Schema.Array(Schema.String), Array.from({ length: 2 })))
    assert.isNull(check(Schema.Struct({ at: Schema.Date })))
    assert.isNull(check(Schema.Struct({ toJSON: Schema.String })))
    assert.isNull(check(Schema.Record({ key: Schema.String, value: Schema.Number })))
    assert.isNull(check(Schema.Unknown))
    assert.isNull(check(Schema.Struct({})))
  })
})
