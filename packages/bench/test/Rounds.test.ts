import { assert, it } from "@effect/vitest"
import { Effect } from "effect"
import { ChildFailed } from "../src/ChildProcess.js"
import * as Report from "../src/Report.js"
import * as Rounds from "../src/Rounds.js"
import type { System } from "../src/System.js"

const systems = ["awa", "peer", "other"].map((name): Rounds.Contender => ({ system: { name } as System }))

const runWith = (failing: (name: string, round: number) => boolean) =>
  Rounds.run({
    contenders: systems,
    rounds: 2,
    measure: ({ system: { name } }, round) =>
      failing(name, round)
        ? Effect.fail(new ChildFailed({ system: name, message: "ended early" }))
        : Effect.succeed(round + 1),
    show: String
  })

it.effect("a peer that fails is told of, and the others are measured on", () =>
  Effect.gen(function*() {
    const results = yield* runWith((name, round) => name === "peer" || name === "other" && round === 0)
    assert.deepStrictEqual(results.failures, [
      "round 1, peer: ended early",
      "round 1, other: ended early",
      "round 2, peer: ended early"
    ])
    const figures = Report.figuresOf(results.of, (rounds) => Report.figure(rounds, "jobs/s"))
    assert.deepStrictEqual(Object.keys(figures), ["awa", "other"])
    assert.deepStrictEqual(figures["awa"], { median: 1.5, rounds: [1, 2], unit: "jobs/s" })
    assert.deepStrictEqual(Report.ratiosTo("awa", figures), { other: 0.75 })
    const text = Report.toText({
      benchmark: "b",
      figures,
      failures: results.failures,
      ratios: {},
      configurations: {},
      environment: {}
    })
    assert.include(text, "Failures\n  round 1, peer: ended early")
  }))

it.effect("ours may not fail", () =>
  Effect.gen(function*() {
    const failure = yield* Effect.flip(runWith((name, round) => name === "awa" && round === 1))
    assert.strictEqual(failure.system, "awa")
  }))
