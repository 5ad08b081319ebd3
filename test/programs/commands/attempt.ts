import { StorageEngine } from "@awa/model"
import { Duration, Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { command, outcomeProgress, pick, picking, stranger } from "../support/command.js"
import type { Model, ModelAttempt } from "../support/model.js"
import { owners } from "../support/real.js"

const outcome = fc.constantFrom<StorageEngine.Outcome>(
  { _tag: "completed" },
  { _tag: "completed" },
  { _tag: "retry", delay: null, error: "broken" },
  { _tag: "retry", delay: Duration.zero, error: null },
  { _tag: "retry", delay: Duration.seconds(20), error: "broken" },
  { _tag: "snooze", delay: Duration.seconds(30) },
  { _tag: "return" },
  { _tag: "cancel", reason: "unwanted" },
  { _tag: "fail", error: "broken" },
  { _tag: "fail", error: "broken" }
)

export const hasAttempts = ({ attempts }: Model): boolean => attempts.length > 0

/** Who speaks for an attempt: mostly its owner. */
const speaker = (attempt: ModelAttempt, stranger: boolean): string => stranger ? owners[1] : attempt.owner

type Ended = readonly [pick: number, outcome: StorageEngine.Outcome, progress: unknown]

/** Attempts to end, by whom they are ended, and what is said of them. */
export const ending = (picks: ReadonlyArray<Ended>, stranger: boolean, model: Model) => {
  const named = picks.map(([pick, outcome, progress]) => {
    const attempt = model.attempt(pick)!
    return { attempt, completion: { token: attempt.token, outcome, progress } }
  })
  const owner = speaker(named[0]!.attempt, stranger)
  return {
    owner,
    completions: named.map(({ completion }) => completion),
    /** Ends them in the model and compares the answers. */
    agree: (verdicts: ReadonlyArray<StorageEngine.Verdict>): void => {
      const firsts = new Map<ModelAttempt, string>()
      const expected = named.map(({ attempt, completion }) => {
        const verdict = firsts.get(attempt) === "refused" ? "refused" : model.complete(owner, attempt, completion)
        if (!firsts.has(attempt)) firsts.set(attempt, verdict)
        return verdict
      })
      model.place()
      // Who asks again for what is forgotten is refused like somebody who never held the attempt.
      const known = model.forgets
        ? expected.map((verdict, i) => verdict === "repeated" ? verdicts[i] : verdict)
        : expected
      assert.deepEqual(verdicts, known, "verdicts")
    }
  }
}

/** Attempts to end in one call. */
export const ends = picking(fc.tuple(pick, outcome, outcomeProgress))

/** Ends attempts of all kinds in one call: open ones, closed ones, those of others, the same one twice. */
export const complete = command("complete", {
  weight: 8,
  fields: { stranger, ends },
  check: hasAttempts,
  run: ({ ends, stranger }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      const { agree, completions, owner } = ending(ends, stranger, model)
      agree(yield* engine.complete(owner, completions))
    })
})

export const heartbeat = command("heartbeat", {
  weight: 3,
  fields: { stranger, picks: picking(fc.tuple(pick, outcomeProgress)) },
  check: hasAttempts,
  run: ({ picks, stranger }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      const named = picks.map(([pick, progress]) => ({ attempt: model.attempt(pick)!, progress }))
      const owner = speaker(named[0]!.attempt, stranger)
      const held = yield* engine.heartbeat(
        owner,
        named.map(({ attempt: { token }, progress }) => ({ token, progress }))
      )
      assert.deepEqual(
        held,
        named.map(({ attempt, progress }) => model.beat(owner, attempt, progress)),
        "held attempts"
      )
    })
})
