import { JobResult } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Exit, ParseResult, Schema } from "effect"
import * as Outcome from "../src/internal/outcome.js"

const cast = (value: unknown) => value as never

const thrower = (): never => {
  throw new Error("do not look")
}

const symbol = Symbol.for("@awa/worker/JobResult")

const retried = (exit: Exit.Exit<unknown, unknown>): string => {
  const outcome = Outcome.fromExit(exit, null)
  assert.strictEqual(outcome?._tag, "retry")
  return (outcome as { readonly error: string }).error
}

describe("the outcome of a handler", () => {
  const results: ReadonlyArray<readonly [what: string, result: unknown, says: string]> = [
    ["Cancel without a reason", JobResult.cancel(cast(undefined)), "Cancel with a reason that is no string"],
    ["Snooze with garbage", new JobResult.Snooze(cast("garbage")), "Snooze with a delay that is no Duration: garbage"],
    ["RetryAfter with nothing", new JobResult.RetryAfter(cast(null)), "RetryAfter with a delay that is no Duration"],
    [
      "a delay that pretends",
      new JobResult.Snooze(cast({ [Symbol.for("effect/Duration")]: Symbol.for("effect/Duration") })),
      "The handler answered"
    ],
    ["an unknown kind", { [symbol]: symbol, _tag: "Later" }, "a JobResult of an unknown kind: Later"],
    ["no kind", { [symbol]: symbol }, "a JobResult of an unknown kind"],
    [
      "a kind that throws",
      {
        [symbol]: symbol,
        get _tag() {
          return thrower()
        }
      },
      "do not look"
    ],
    ["a proxy that throws", new Proxy({}, { has: thrower, get: thrower }), "do not look"]
  ]
  for (const [what, result, says] of results) {
    it(`${what}: is a retry that says so`, () => assert.include(retried(Exit.succeed(result)), says))
  }

  it("an error whose getters throw is retried", () => {
    class Hostile extends Error {
      get _tag() {
        return thrower()
      }
      override get message() {
        return thrower()
      }
    }
    assert.include(retried(Exit.fail(new Hostile())), "cannot be shown")
    assert.include(retried(Exit.die(new Hostile())), "cannot be shown")
    assert.isString(retried(Exit.fail(new Proxy({}, { has: thrower, get: thrower, getPrototypeOf: thrower }))))
  })

  it("a terminal tag beside hostile errors still counts", () => {
    const hostile = Cause.fail({
      get _tag() {
        return thrower()
      }
    })
    const cause = Cause.parallel(hostile, Cause.fail({ _tag: "TerminalJobError", message: "gone" }))
    assert.strictEqual(Outcome.fromExit(Exit.failCause(cause), null)?._tag, "fail")
  })

  it("a payload that does not fit fails, also when the schema's message throws", () => {
    const schema = Schema.String.annotations({ message: thrower })
    const decoded = ParseResult.decodeUnknownEither(schema)(7)
    const issue = decoded._tag === "Left" ? decoded.left : assert.fail("it fits")
    const outcome = Outcome.fromExit(Exit.fail(new Outcome.UndecodablePayload(issue)), null)
    assert.strictEqual(outcome?._tag, "fail")
    assert.include((outcome as { readonly error: string }).error, "does not fit the job's schema")
    assert.include((outcome as { readonly error: string }).error, "do not look")
  })

  it("shows ten causes of causes, also of a chain without end", () => {
    let chain = new Error("the first")
    for (let i = 0; i < 20_000; i++) chain = new Error(`link ${i}`, { cause: chain })
    const circle = new Error("round", {})
    circle.cause = circle
    for (const error of [chain, circle]) {
      const text = retried(Exit.fail(error))
      assert.strictEqual(text.split("[cause]").length - 1, 11)
      assert.match(text, /^Error: (link 19999|round)/)
    }
  })

  it("shows what it can of an error that hides something", () => {
    const hiding = new Error("seen")
    Object.defineProperty(hiding, "cause", { get: thrower })
    Object.defineProperty(hiding, "stack", { get: thrower })
    assert.include(retried(Exit.fail(hiding)), "Error: seen")
    assert.include(retried(Exit.fail({ _tag: "NotFound", id: 10n })), "NotFound")
  })
})
