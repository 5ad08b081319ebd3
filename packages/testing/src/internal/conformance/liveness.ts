import type { JobId } from "@awa/model/JobRow"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import type { StoredJob } from "../../Jobs.js"
import { forgeries } from "./complete.js"
import { after, all, check, checkAlone, type Harness, idsOf, now, outcomes } from "./harness.js"

const staleness = Duration.seconds(90)

const rescueStale = (t: Harness, limit = all) =>
  Effect.map(t.engine.rescueStale({ staleness, limit }), (rescued) => {
    for (const { reason } of rescued) assert.equal(reason, "stale_heartbeat")
    return rescued.map(({ jobId }) => jobId)
  })

const rescueExpired = (t: Harness, limit = all) =>
  Effect.map(t.engine.rescueExpired({ limit }), (rescued) => {
    for (const { reason } of rescued) assert.equal(reason, "deadline_exceeded")
    return rescued.map(({ jobId }) => jobId)
  })

const beat = (t: Harness, ...tokens: ReadonlyArray<Parameters<Harness["engine"]["heartbeat"]>[1][number]["token"]>) =>
  t.engine.heartbeat(t.owner, tokens.map((token) => ({ token })))

/** An engine may take the claim itself for a sign of life. */
const assertNoBeat = ({ attemptedAt, heartbeatAt }: StoredJob) => {
  if (heartbeatAt !== undefined) assert.deepEqual(heartbeatAt, attemptedAt)
}

const ascending = (ids: ReadonlyArray<JobId>) => [...ids].sort((a, b) => (a < b ? -1 : 1))

/** @internal */
export const heartbeats = [
  check("a heartbeat is seen in the job, again and again", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const { token } = yield* t.claimOne
      assertNoBeat(yield* t.job(id))
      for (const _ of [1, 2]) {
        yield* TestClock.adjust("30 seconds")
        assert.deepEqual(yield* beat(t, token), [true])
        const job = yield* t.expectState(id, "running")
        assert.deepEqual(job.heartbeatAt, yield* now)
      }
    })),

  check("heartbeats are answered one by one, in the order of the input", (t) =>
    Effect.gen(function*() {
      yield* t.enqueueMany(4)
      const [a, b, c, d] = yield* t.claim()
      yield* t.accept(b!, outcomes.completed)
      yield* t.accept(d!, outcomes.retry)
      assert.deepEqual(yield* beat(t, d!.token, c!.token, b!.token, a!.token), [false, true, false, true])
      assert.deepEqual(yield* beat(t), [])
    })),

  check("the same attempt may be named twice in one heartbeat", (t) =>
    Effect.gen(function*() {
      yield* t.enqueue()
      const { token } = yield* t.claimOne
      assert.deepEqual(yield* beat(t, token, token), [true, true], "the first heartbeat")
      assert.deepEqual(yield* beat(t, token, token), [true, true], "a later one")
    })),

  check("an attempt that has ended or was never one gets no heartbeat", (t) =>
    Effect.gen(function*() {
      yield* t.enqueueMany(2)
      const [open, closed] = yield* t.claim()
      yield* TestClock.adjust("1 second")
      yield* t.accept(closed!, outcomes.completed)
      assert.deepEqual(yield* beat(t, closed!.token), [false], "after the end")
      for (const token of forgeries(open!.token, 2)) {
        assert.deepEqual(yield* beat(t, token), [false], JSON.stringify(token))
      }
      const others = yield* t.engine.heartbeat(t.otherOwner, [{ token: open!.token, progress: "mine" }])
      assert.deepEqual(others, [false], "by another worker")
      const job = yield* t.job(open!.job.id)
      assertNoBeat(job)
      assert.equal(job.progress, undefined)
    })),

  check("a rescued attempt gets no heartbeat, the next one does", (t) =>
    Effect.gen(function*() {
      yield* t.enqueue()
      const first = yield* t.claimOne
      yield* beat(t, first.token)
      yield* TestClock.adjust("91 seconds")
      yield* rescueStale(t)
      assert.deepEqual(yield* beat(t, first.token), [false])
      yield* TestClock.adjust("1 minute")
      yield* t.engine.promote(all)
      const second = yield* t.claimOne
      assert.deepEqual(yield* beat(t, first.token, second.token), [false, true])
    })),

  check("a heartbeat stores progress and otherwise keeps it", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const { token } = yield* t.claimOne
      const progress = Effect.map(t.job(id), (job) => job.progress)
      yield* t.engine.heartbeat(t.owner, [{ token, progress: { percent: 10 } }])
      assert.deepEqual(yield* progress, { percent: 10 }, "with the first heartbeat")
      yield* beat(t, token)
      assert.deepEqual(yield* progress, { percent: 10 }, "after one without")
      yield* t.engine.heartbeat(t.owner, [{ token, progress: { percent: 20, message: "\u{1f600}" } }])
      assert.deepEqual(yield* progress, { percent: 20, message: "\u{1f600}" }, "replaced")
    })),

  check("the engine knows which attempts an owner holds open", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(5)
      const old = yield* t.claim(3)
      yield* t.claim(1, { owner: t.otherOwner })
      yield* TestClock.adjust("10 seconds")
      const young = yield* t.claim(1)
      yield* t.accept(old[1]!, outcomes.completed)
      yield* beat(t, old[2]!.token)
      const open = (olderThan: Duration.DurationInput) =>
        Effect.map(
          t.engine.openAttempts(t.owner, Duration.decode(olderThan)),
          (tokens) => tokens.map(({ fence }) => fence).sort()
        )
      const fences = (...jobs: typeof old) => jobs.map(({ token }) => token.fence).sort()
      assert.deepEqual(yield* open("10 seconds"), fences(old[0]!, old[2]!), "old enough, not ended, not another's")
      assert.deepEqual(yield* open("11 seconds"), [])
      assert.deepEqual(yield* open("0 seconds"), fences(old[0]!, old[2]!, ...young))
      const tokens = yield* t.engine.openAttempts(t.owner, Duration.zero)
      const verdicts = yield* t.engine.complete(t.owner, tokens.map((token) => ({ token, outcome: outcomes.return })))
      assert.deepEqual(verdicts, ["accepted", "accepted", "accepted"])
      const given = ids.filter((id) => id !== old[1]!.job.id && id !== ids[3])
      yield* Effect.forEach(given, (id) => t.expectState(id, "available"))
      assert.deepEqual(yield* open("0 seconds"), [])
      yield* t.claim(1)
      assert.equal((yield* open("0 seconds")).length, 1, "what is claimed later is seen again")
    }))
]

/** @internal */
export const promoting = [
  checkAlone("nothing is promoted before it is due", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue({ delay: "1 hour" })
      assert.equal(yield* t.engine.promote(all), 0)
      yield* TestClock.adjust(Duration.subtract("1 hour", "1 millis"))
      assert.equal(yield* t.engine.promote(all), 0)
      yield* t.expectState(id, "scheduled")
      yield* TestClock.adjust("1 millis")
      assert.equal(yield* t.engine.promote(all), 1)
      yield* t.expectState(id, "available")
      assert.equal(yield* t.engine.promote(all), 0)
      assert.deepEqual(idsOf(yield* t.claim()), [id])
    })),

  checkAlone("what has been due longest is promoted first, up to the limit", (t) =>
    Effect.gen(function*() {
      const ids = yield* Effect.forEach([3, 1, 5, 2, 4], (n) => t.enqueue({ delay: Duration.seconds(n) }))
      const [three, one, five, two, four] = ids
      yield* TestClock.adjust("10 seconds")
      const claims = yield* Effect.forEach([2, 2, 2], (limit) =>
        Effect.zip(t.engine.promote(limit), Effect.map(t.claim(), idsOf)))
      assert.deepEqual(claims, [[2, [one, two]], [2, [three, four]], [1, [five]]])
    })),

  check("a promoted job is what it was", (t) =>
    Effect.gen(function*() {
      const options = { priority: 1, maxAttempts: 3, metadata: { m: [1] }, tags: ["t"] } as const
      const id = yield* t.enqueue({ ...options, delay: "1 minute", payload: { n: 1 } })
      const before = yield* t.job(id)
      yield* TestClock.adjust("1 minute")
      yield* t.engine.promote(all)
      const { state, ...stored } = yield* t.job(id)
      assert.equal(state, "available")
      assert.deepEqual({ ...stored, state: before.state }, { ...before })
      const { args, job } = yield* t.claimOne
      const { maxAttempts, metadata, priority, tags } = job
      assert.deepEqual({ priority, maxAttempts, metadata, tags, args }, { ...options, args: { n: 1 } })
    }))
]

/** @internal */
export const rescuing = [
  checkAlone("an attempt that never gave a sign of life is rescued", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      yield* t.claimOne
      yield* TestClock.adjust(Duration.sum(staleness, "1 millis"))
      const rescued = yield* t.engine.rescueStale({ staleness, limit: 10 })
      assert.deepEqual(rescued, [{ jobId: id, reason: "stale_heartbeat", state: "retryable" }])
      const job = yield* t.expectState(id, "retryable")
      assert.deepEqual([job.attempt, job.errors.length, job.errors[0]?.at], [1, 1, yield* now])
      assert.match(job.errors[0]!.error, /heartbeat/)
      assert.ok(job.runAt.getTime() >= (yield* after("2 seconds")).getTime(), "it waits for the backoff")
      yield* TestClock.adjust("1 minute")
      yield* t.engine.promote(10)
      assert.equal((yield* t.claimOne).job.attempt, 2)
    })),

  checkAlone("an attempt whose heartbeats have stopped is rescued, with its progress", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const { token } = yield* t.claimOne
      yield* TestClock.adjust("80 seconds")
      yield* t.engine.heartbeat(t.owner, [{ token, progress: "half way" }])
      yield* TestClock.adjust("80 seconds")
      assert.deepEqual(yield* rescueStale(t), [], "80 seconds after the last sign of life")
      yield* TestClock.adjust("11 seconds")
      assert.deepEqual(yield* rescueStale(t), [id])
      assert.equal((yield* t.expectState(id, "retryable")).progress, "half way")
    })),

  checkAlone("a living attempt is not rescued", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(2)
      const [silent, beating] = yield* t.claim()
      yield* TestClock.adjust(Duration.subtract(staleness, "1 millis"))
      assert.deepEqual(yield* rescueStale(t), [])
      assert.deepEqual(yield* rescueExpired(t), [])
      for (const _ of [1, 2, 3]) {
        assert.deepEqual(yield* beat(t, silent!.token, beating!.token), [true, true])
        yield* TestClock.adjust("80 seconds")
        assert.deepEqual(yield* rescueStale(t), [])
      }
      yield* Effect.forEach(ids, (id) => t.expectState(id, "running"))
    })),

  checkAlone("a rescue takes the silent attempts of a claim and leaves the others", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(4)
      const [ended, , beating] = yield* t.claim()
      yield* t.accept(ended!, outcomes.completed)
      yield* TestClock.adjust("60 seconds")
      yield* beat(t, beating!.token)
      yield* TestClock.adjust("31 seconds")
      assert.deepEqual(yield* rescueStale(t), [ids[1], ids[3]])
      const stored = yield* Effect.forEach(ids, t.job)
      assert.deepEqual(stored.map((job) => job.state), ["completed", "retryable", "running", "retryable"])
      yield* t.accept(beating!, outcomes.completed)
      assert.deepEqual(yield* rescueStale(t), [])
    })),

  checkAlone("a rescue takes no more than its limit, and the next one the rest", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(5)
      const claimed = [...(yield* t.claim(3)), ...(yield* t.claim(2))]
      yield* beat(t, claimed[1]!.token)
      yield* TestClock.adjust("91 seconds")
      const passes = [yield* rescueStale(t, 2), yield* rescueStale(t, 2), yield* rescueStale(t, 2)]
      assert.deepEqual(passes.map((rescued) => rescued.length), [2, 2, 1])
      assert.deepEqual(ascending(passes.flat()), ids)
      assert.deepEqual(yield* rescueStale(t, 2), [])
    })),

  checkAlone("rescues that come later find what is claimed later", (t) =>
    Effect.gen(function*() {
      const held = yield* t.enqueue()
      const { token } = yield* t.claimOne
      for (const _ of [1, 2, 3, 4, 5]) {
        const id = yield* t.enqueue()
        yield* t.claimOne
        for (const _ of [1, 2]) {
          yield* TestClock.adjust("44 seconds")
          yield* beat(t, token)
          assert.deepEqual(yield* rescueStale(t), [])
        }
        yield* TestClock.adjust("44 seconds")
        assert.deepEqual(yield* rescueStale(t), [id])
      }
      yield* TestClock.adjust("91 seconds")
      assert.deepEqual(yield* rescueStale(t), [held])
    })),

  checkAlone("a job that is rescued at its last attempt has failed", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(2, { maxAttempts: 2 })
      for (const state of ["retryable", "failed"] as const) {
        yield* t.claim(1, { deadline: Duration.seconds(10) })
        yield* t.claim(1)
        yield* TestClock.adjust("11 seconds")
        const expired = yield* t.engine.rescueExpired({ limit: 10 })
        yield* TestClock.adjust("91 seconds")
        const stale = yield* t.engine.rescueStale({ staleness, limit: 10 })
        assert.deepEqual([...expired, ...stale].map((rescued) => rescued.state), [state, state])
        yield* Effect.forEach(ids, (id) => t.expectState(id, state))
        yield* TestClock.adjust("1 minute")
        yield* t.engine.promote(10)
      }
      for (const job of yield* Effect.forEach(ids, t.job)) {
        assert.deepEqual(job.errors.map(({ terminal }) => terminal), [undefined, true])
        assert.deepEqual(job.attempt, 2)
      }
      assert.deepEqual(yield* t.claim(), [])
    })),

  checkAlone("an attempt past its deadline is rescued, whatever signs of life it gives", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(3)
      const [, beating] = yield* t.claim(2, { deadline: Duration.minutes(1) })
      yield* t.claim(1)
      yield* beat(t, beating!.token)
      yield* TestClock.adjust(Duration.subtract("1 minute", "1 millis"))
      assert.deepEqual(yield* rescueExpired(t), [])
      yield* TestClock.adjust("2 millis")
      yield* beat(t, beating!.token)
      const rescued = yield* t.engine.rescueExpired({ limit: 10 })
      assert.deepEqual(
        rescued,
        ids.slice(0, 2).map((jobId) => ({ jobId, reason: "deadline_exceeded", state: "retryable" }))
      )
      const stored = yield* Effect.forEach(ids, t.job)
      assert.deepEqual(stored.map((job) => job.state), ["retryable", "retryable", "running"])
      assert.match(stored[0]!.errors[0]!.error, /deadline/)
    })),

  checkAlone("a rescue of expired attempts takes no more than its limit", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(3)
      yield* t.claim(3, { deadline: Duration.seconds(1) })
      yield* TestClock.adjust("2 seconds")
      const passes = [yield* rescueExpired(t, 2), yield* rescueExpired(t, 2), yield* rescueExpired(t, 2)]
      assert.deepEqual(passes.map((rescued) => rescued.length), [2, 1, 0])
      assert.deepEqual(ascending(passes.flat()), ids)
    }))
]
