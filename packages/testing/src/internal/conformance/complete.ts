import type { AttemptToken, ClaimedJob, Outcome, Verdict } from "@awa/model/StorageEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { all, check, checkAlone, idsOf, makeNonce, now, outcomes } from "./harness.js"

const staleness = Duration.seconds(90)

const states = {
  completed: "completed",
  retry: "retryable",
  retryNow: "available",
  snooze: "scheduled",
  return: "available",
  cancel: "cancelled",
  fail: "failed"
} as const satisfies Record<keyof typeof outcomes, string>

const names = Object.keys(outcomes) as ReadonlyArray<keyof typeof outcomes>

const completions = (jobs: ReadonlyArray<ClaimedJob>, outcome: (index: number) => Outcome) =>
  jobs.map(({ token }, index) => ({ token, outcome: outcome(index) }))

/** @internal Tokens of no attempt, made from one that exists. `size`: how many jobs its claim took. */
export const forgeries = (token: AttemptToken, size: number): ReadonlyArray<AttemptToken> => [
  { ...token, nonce: makeNonce() },
  { ...token, index: 0 },
  { ...token, index: -1 },
  { ...token, index: size + 1 },
  { ...token, index: 32_000 },
  { ...token, batchId: String(BigInt(token.batchId) + 1000n) },
  { ...token, batchId: "9000000000000000000", nonce: makeNonce(), index: 1 }
]

/** @internal */
export const completing = [
  check("a success ends the job", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const claimed = yield* t.claimOne
      yield* TestClock.adjust("1 minute")
      yield* t.accept(claimed, outcomes.completed)
      const job = yield* t.expectState(id, "completed")
      assert.deepEqual(
        [job.attempt, job.runLease, job.errors, job.finalizedAt],
        [1, 1n, [], yield* now]
      )
      assert.deepEqual(idsOf(yield* t.claim()), [])
    })),

  check("each outcome of one call takes its job where it belongs", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(names.length * 2)
      const claimed = yield* t.claim()
      const verdicts = yield* t.engine.complete(
        t.owner,
        completions(claimed, (i) => outcomes[names[i % names.length]!])
      )
      assert.deepEqual(verdicts, ids.map(() => "accepted"))
      const stored = yield* Effect.forEach(ids, t.job)
      assert.deepEqual(stored.map((job) => job.state), [...names, ...names].map((name) => states[name]))
    })),

  check("a claim that takes the ends of attempts along comes after them", (t) =>
    Effect.gen(function*() {
      const [first, second, third] = yield* t.enqueueMany(3)
      const [a, b] = yield* t.claim(2)
      const { jobs, verdicts } = yield* t.completeAndClaim([
        { token: a!.token, outcome: outcomes.return },
        { token: b!.token, outcome: outcomes.completed }
      ])
      assert.deepEqual(verdicts, ["accepted", "accepted"])
      assert.deepEqual(jobs.map(({ job }) => [job.id, job.attempt]), [[third, 1], [first, 1]])
      yield* t.expectState(second!, "completed")
      const last = yield* t.completeAndClaim(completions(jobs, () => outcomes.completed))
      assert.deepEqual(last, { verdicts: ["accepted", "accepted"], jobs: [] })
    })),

  check(
    "a claim takes jobs whatever is answered to the ends of attempts it takes along",
    (t) =>
      Effect.gen(function*() {
        yield* t.enqueueMany(2)
        const [claimed] = yield* t.claim(1)
        yield* t.accept(claimed!, outcomes.completed)
        const { jobs, verdicts } = yield* t.completeAndClaim([
          { token: { ...claimed!.token, nonce: makeNonce() }, outcome: outcomes.fail },
          { token: claimed!.token, outcome: outcomes.completed }
        ], 1)
        assert.deepEqual(verdicts, ["refused", "repeated"])
        assert.equal(jobs.length, 1)
        yield* t.accept(jobs[0]!, outcomes.completed)
      })
  ),

  check("answers come in the order of the input", (t) =>
    Effect.gen(function*() {
      yield* t.enqueueMany(4)
      const [a, b, c, d] = yield* t.claim()
      yield* t.accept(b!, outcomes.fail)
      yield* t.accept(d!, outcomes.completed)
      const verdicts = yield* t.engine.complete(t.owner, [
        { token: d!.token, outcome: outcomes.completed },
        { token: c!.token, outcome: outcomes.cancel },
        { token: { ...a!.token, nonce: makeNonce() }, outcome: outcomes.completed },
        { token: b!.token, outcome: outcomes.completed },
        { token: a!.token, outcome: outcomes.completed }
      ])
      assert.deepEqual(verdicts, ["repeated", "accepted", "refused", "refused", "accepted"])
    })),

  check(
    "nothing to complete is nothing to answer",
    (t) => Effect.map(t.engine.complete(t.owner, []), (verdicts) => assert.deepEqual(verdicts, []))
  ),

  check("an attempt that one call names twice is ended once, by the first", (t) =>
    Effect.gen(function*() {
      const pairs: ReadonlyArray<readonly [Outcome, Outcome, Verdict]> = [
        [outcomes.completed, outcomes.completed, "repeated"],
        [outcomes.retry, outcomes.retry, "repeated"],
        [outcomes.completed, outcomes.fail, "refused"],
        [outcomes.cancel, outcomes.completed, "refused"]
      ]
      for (const [first, second, verdict] of pairs) {
        const id = yield* t.enqueue()
        const { token } = yield* t.claimOne
        const verdicts = yield* t.engine.complete(t.owner, [
          { token, outcome: first },
          { token, outcome: second }
        ])
        assert.deepEqual(verdicts, ["accepted", verdict], `${first._tag}, then ${second._tag}`)
        yield* t.expectState(id, states[first._tag])
      }
    })),

  check("a call that is sent again is answered repeated, and changes nothing", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(names.length)
      const calls = completions(yield* t.claim(), (i) => outcomes[names[i]!])
      yield* t.engine.complete(t.owner, calls)
      const before = yield* Effect.forEach(ids, t.job)
      yield* TestClock.adjust("1 second")
      assert.deepEqual(yield* t.engine.complete(t.owner, calls), ids.map(() => "repeated"))
      assert.deepEqual(yield* Effect.forEach(ids, t.job), before)
    })),

  check("another outcome for an attempt that has ended is refused", (t) =>
    Effect.gen(function*() {
      for (const name of names) {
        const id = yield* t.enqueue()
        const claimed = yield* t.claimOne
        yield* t.accept(claimed, outcomes[name])
        const other = name === "completed" ? outcomes.fail : outcomes.completed
        assert.equal(yield* t.end(claimed, other), "refused", `${other._tag} after ${name}`)
        yield* t.expectState(id, states[name])
        yield* t.claim()
      }
    })),

  check("a forged token is refused and writes nothing", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(2)
      const claimed = yield* t.claim()
      const before = yield* Effect.forEach(ids, t.job)
      for (const outcome of [outcomes.completed, outcomes.retry, outcomes.fail]) {
        for (const token of forgeries(claimed[1]!.token, 2)) {
          const verdicts = yield* t.engine.complete(t.owner, [{ token, outcome }])
          assert.deepEqual(verdicts, ["refused"], JSON.stringify(token))
        }
      }
      assert.deepEqual(yield* Effect.forEach(ids, t.job), before)
      yield* Effect.forEach(claimed, (job) => t.accept(job, outcomes.completed))
    })),

  check("an attempt is closed by its owner only", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const claimed = yield* t.claimOne
      for (const name of names) {
        const outcome = outcomes[name]
        const verdicts = yield* t.engine.complete(t.otherOwner, [{ token: claimed.token, outcome }])
        assert.deepEqual(verdicts, ["refused"], `${name} by another worker`)
      }
      yield* t.expectState(id, "running")
      yield* t.accept(claimed, outcomes.completed)
    })),

  check("an attempt that was rescued can no longer be ended", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const claimed = yield* t.claimOne
      yield* TestClock.adjust("91 seconds")
      yield* t.engine.rescueStale({ staleness, limit: all })
      for (const name of names) assert.equal(yield* t.end(claimed, outcomes[name]), "refused", name)
      yield* t.expectState(id, "retryable")
    })),

  check("a late answer of an earlier attempt does not touch the present one", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const first = yield* t.claimOne
      yield* t.accept(first, outcomes.retryNow)
      const second = yield* t.claimOne
      const verdicts = yield* t.engine.complete(t.owner, [
        { token: first.token, outcome: outcomes.completed },
        { token: second.token, outcome: outcomes.cancel }
      ])
      assert.deepEqual(verdicts, ["refused", "accepted"])
      yield* t.expectState(id, "cancelled")
    })),

  checkAlone("ten thousand jobs are enqueued, claimed and completed in one call each", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(all)
      const claimed = yield* t.claim(all)
      assert.deepEqual(idsOf(claimed), ids)
      const verdicts = yield* t.engine.complete(t.owner, completions(claimed, () => outcomes.completed))
      assert.ok(verdicts.length === all && verdicts.every((verdict) => verdict === "accepted"))
      yield* Effect.forEach([ids[0]!, ids[all - 1]!], (id) => t.expectState(id, "completed"))
      assert.deepEqual(yield* t.claim(all), [])
    })),

  check("every attempt has a fence of its own", (t) =>
    Effect.gen(function*() {
      yield* t.enqueueMany(2)
      const fences = new Set<string>()
      for (const _ of [1, 2, 3]) {
        for (const job of yield* t.claim()) {
          fences.add(job.token.fence)
          yield* t.accept(job, outcomes.return)
        }
      }
      assert.equal(fences.size, 6)
    }))
]
