import type { ClaimedJob, Outcome } from "@awa/model/StorageEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { after, all, check, type Harness, idsOf, now, outcomes } from "./harness.js"

const day = 86_400_000

/** Fails the attempt and answers how many milliseconds the job must wait. */
const backoff = (t: Harness, claimed: ClaimedJob) =>
  Effect.gen(function*() {
    yield* t.accept(claimed, outcomes.retry)
    const { runAt } = yield* t.expectState(claimed.job.id, "retryable")
    return runAt.getTime() - (yield* now).getTime()
  })

const promoteAfter = (t: Harness, duration: Duration.DurationInput) =>
  Effect.zipRight(TestClock.adjust(duration), t.engine.promote(all))

const unsuccessful = [outcomes.retry, outcomes.snooze, outcomes.return, outcomes.cancel, outcomes.fail]

/** @internal */
export const outcomesOfAttempts = [
  check("a retry waits twice as long after every attempt, and up to a quarter more", (t) =>
    Effect.gen(function*() {
      yield* t.enqueueMany(5)
      for (const attempt of [1, 2, 3, 4, 5, 6]) {
        const base = 1000 * 2 ** attempt
        const waits = yield* Effect.flatMap(t.claim(), Effect.forEach((job) => backoff(t, job)))
        assert.equal(waits.length, 5)
        for (const wait of waits) assert.ok(wait >= base && wait <= base * 1.25, `attempt ${attempt}: ${wait} ms`)
        assert.ok(new Set(waits).size > 1, `attempt ${attempt}: all wait ${waits[0]} ms`)
        yield* promoteAfter(t, base * 1.25)
      }
    })),

  check("a retry never waits longer than a day", (t) =>
    Effect.gen(function*() {
      yield* t.enqueue()
      for (const attempt of Array.from({ length: 20 }, (_, n) => n + 1)) {
        const wait = yield* Effect.flatMap(t.claimOne, (job) => backoff(t, job))
        assert.ok(wait <= day, `attempt ${attempt}: ${wait} ms`)
        if (attempt > 16) assert.equal(wait, day)
        yield* promoteAfter(t, wait + 1)
      }
    })),

  check("a retry is not claimable before its time", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const wait = yield* Effect.flatMap(t.claimOne, (job) => backoff(t, job))
      yield* promoteAfter(t, wait - 1)
      assert.deepEqual(idsOf(yield* t.claim()), [])
      yield* promoteAfter(t, 2)
      assert.deepEqual(idsOf(yield* t.claim()), [id])
    })),

  check("a retry may bring its own delay, down to the millisecond", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.millis(250), error: null })
      const job = yield* t.expectState(id, "retryable")
      assert.deepEqual([job.runAt, job.errors, job.attempt], [yield* after("250 millis"), [], 1])
    })),

  check("a retry without delay is claimable at once", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      yield* t.accept(yield* t.claimOne, outcomes.retryNow)
      assert.equal((yield* t.expectState(id, "available")).attempt, 1)
      assert.equal((yield* t.claimOne).job.attempt, 2)
    })),

  check("a job fails when its last attempt does", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 2 })
      yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.zero, error: "first" })
      yield* t.expectState(id, "available")
      yield* TestClock.adjust("1 minute")
      yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.zero, error: "last" })
      const job = yield* t.expectState(id, "failed")
      assert.deepEqual(job.errors.map(({ error, terminal }) => [error, terminal]), [
        ["first", undefined],
        ["last", true]
      ])
      assert.deepEqual([job.attempt, job.finalizedAt], [2, yield* now])
      assert.deepEqual(idsOf(yield* t.claim()), [])
    })),

  check("a last attempt that asks for later fails the job and says why", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 1 })
      yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.seconds(1), error: null })
      const { errors } = yield* t.expectState(id, "failed")
      assert.equal(errors.length, 1)
      assert.match(errors[0]!.error, /max_attempts exhausted/)
      assert.equal(errors[0]!.terminal, true)
    })),

  check("a snooze waits its time and does not count the attempt", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 2 })
      for (const lease of [1n, 2n, 3n, 4n]) {
        const { job, token } = yield* t.claimOne
        assert.deepEqual([job.attempt, job.runLease], [1, lease])
        yield* t.engine.complete(t.owner, [{ token, outcome: outcomes.snooze }])
        const stored = yield* t.expectState(id, "scheduled")
        assert.deepEqual([stored.attempt, stored.errors, stored.runAt], [0, [], yield* after("1 minute")])
        yield* promoteAfter(t, "59 seconds")
        assert.deepEqual(idsOf(yield* t.claim()), [])
        yield* promoteAfter(t, "1 second")
      }
    })),

  check("a job that is given back is claimable at once and the attempt does not count", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 1 })
      for (const lease of [1n, 2n, 3n]) {
        const claimed = yield* t.claimOne
        assert.deepEqual([claimed.job.attempt, claimed.job.runLease], [1, lease])
        yield* t.accept(claimed, outcomes.return)
        const stored = yield* t.expectState(id, "available")
        assert.deepEqual([stored.attempt, stored.errors], [0, []])
      }
    })),

  check("a cancelled job stays cancelled and keeps the reason", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      yield* t.accept(yield* t.claimOne, outcomes.cancel)
      const job = yield* t.expectState(id, "cancelled")
      assert.deepEqual([job.attempt, job.finalizedAt], [1, yield* now])
      assert.match(job.errors.at(-1)?.error ?? "", /not wanted/)
      yield* promoteAfter(t, "2 days")
      assert.deepEqual(idsOf(yield* t.claim()), [])
    })),

  check("a terminal failure ends the job at any attempt", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 5 })
      yield* t.accept(yield* t.claimOne, outcomes.fail)
      const job = yield* t.expectState(id, "failed")
      assert.deepEqual(job.errors, [{ error: outcomes.fail.error, attempt: 1, at: yield* now, terminal: true }])
      yield* promoteAfter(t, "2 days")
      assert.deepEqual(idsOf(yield* t.claim()), [])
    })),

  check("the newest hundred errors are kept, oldest first", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 1000 })
      for (const attempt of Array.from({ length: 103 }, (_, n) => n + 1)) {
        yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.zero, error: `error ${attempt}` })
      }
      const { attempt, errors } = yield* t.job(id)
      assert.equal(attempt, 103)
      assert.deepEqual(
        errors.map((entry) => [entry.error, entry.attempt]),
        Array.from({ length: 100 }, (_, n) => [`error ${n + 4}`, n + 4])
      )
    })),

  check("texts that PostgreSQL cannot store do not keep an attempt from ending", (t) =>
    Effect.gen(function*() {
      for (const bad of ["nul \0 inside", "half \ud800 pair", "\udc00"]) {
        const ids = yield* t.enqueueMany(3)
        const [a, b, c] = yield* t.claim()
        yield* t.accept(a!, { _tag: "retry", delay: null, error: bad })
        yield* t.accept(b!, { _tag: "fail", error: bad })
        yield* t.accept(c!, { _tag: "cancel", reason: bad })
        const stored = yield* Effect.forEach(ids, t.job)
        assert.deepEqual(stored.map((job) => job.state), ["retryable", "failed", "cancelled"])
      }
    })),

  check("progress given with an outcome is kept, except by a success", (t) =>
    Effect.gen(function*() {
      for (const outcome of unsuccessful) {
        const id = yield* t.enqueue()
        yield* t.accept(yield* t.claimOne, outcome, { done: 3, of: ["four"] })
        assert.deepEqual((yield* t.job(id)).progress, { done: 3, of: ["four"] }, outcome._tag)
        yield* t.claim()
      }
      const id = yield* t.enqueue()
      yield* t.accept(yield* t.claimOne, outcomes.completed, { done: 4 })
      assert.equal((yield* t.job(id)).progress, undefined)
    })),

  check("stored progress outlives attempts until new progress or a success", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const progressIn = (outcome: Outcome, progress?: unknown) =>
        Effect.gen(function*() {
          const claimed = yield* t.claimOne
          yield* t.accept(claimed, outcome, progress)
          return claimed.job.progress
        })
      assert.equal(yield* progressIn(outcomes.retryNow, "a"), undefined)
      assert.equal(yield* progressIn(outcomes.retryNow), "a")
      assert.equal(yield* progressIn(outcomes.return), "a")
      assert.equal(yield* progressIn(outcomes.retryNow, "b"), "a")
      const claimed = yield* t.claimOne
      assert.equal(claimed.job.progress, "b")
      yield* t.engine.heartbeat(t.owner, [{ token: claimed.token, progress: "c" }])
      yield* t.accept(claimed, outcomes.retryNow)
      assert.equal((yield* t.job(id)).progress, "c", "from a heartbeat")
      const last = yield* t.claimOne
      assert.equal(last.job.progress, "c")
      yield* t.engine.heartbeat(t.owner, [{ token: last.token, progress: "d" }])
      yield* t.accept(last, outcomes.completed)
      assert.equal((yield* t.job(id)).progress, undefined)
    })),

  check("the lease of a job only grows", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ maxAttempts: 100 })
      const leases: Array<bigint> = []
      const rescue = Effect.zipRight(
        TestClock.adjust("1 hour"),
        t.engine.rescueStale({ staleness: Duration.seconds(90), limit: all })
      )
      for (
        const outcome of [outcomes.retry, outcomes.snooze, outcomes.return, outcomes.retryNow, null, outcomes.return]
      ) {
        const claimed = yield* t.claimOne
        leases.push(claimed.job.runLease)
        yield* outcome === null ? rescue : t.accept(claimed, outcome)
        leases.push((yield* t.job(id)).runLease)
        yield* promoteAfter(t, "1 hour")
      }
      assert.deepEqual(leases, [1n, 1n, 2n, 2n, 3n, 3n, 4n, 4n, 5n, 5n, 6n, 6n])
    }))
]
