import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { after, all, check, idsOf, now, outcomes, Unchecked } from "./harness.js"

const mebibyte = 1024 * 1024

/** @internal */
export const claiming = [
  check("a queue without jobs answers an empty claim", (t) =>
    Effect.gen(function*() {
      assert.deepEqual(yield* t.claim(), [], "a queue nobody ever named")
      yield* t.enqueue()
      yield* t.claimOne
      assert.deepEqual(yield* t.claim(), [], "a queue whose jobs are all running")
    })),

  check("the most urgent priority is claimed first", (t) =>
    Effect.gen(function*() {
      for (const priority of [4, 3, 2, 1] as const) yield* t.enqueueMany(2, { priority })
      const claims = yield* Effect.replicateEffect(t.claim(2), 2)
      const rest = yield* t.claim()
      assert.deepEqual([...claims.flat(), ...rest].map(({ job }) => job.priority), [1, 1, 2, 2, 3, 3, 4, 4])
    })),

  check("jobs of one priority are claimed in the order they were enqueued", (t) =>
    Effect.gen(function*() {
      const ids = [...(yield* t.enqueueMany(5)), yield* t.enqueue(), ...(yield* t.enqueueMany(3))]
      const claims = [yield* t.claim(2), yield* t.claim(1), yield* t.claim()]
      assert.deepEqual(claims.flatMap(idsOf), ids)
    })),

  check(
    "jobs that are committed late, but before a claim passes them, keep their place",
    (t) =>
      Effect.gen(function*() {
        const late = yield* t.enqueueLate(2)
        const prompt = yield* t.enqueueMany(2)
        yield* late.commit
        const claims = [yield* t.claim(1), yield* t.claim(2), yield* t.claim()]
        assert.deepEqual(claims.flatMap(idsOf), [...late.ids, ...prompt])
      })
  ),

  check("jobs that are committed after a claim passed them are claimed next, and once", (t) =>
    Effect.gen(function*() {
      const first = yield* t.enqueueLate(2)
      const second = yield* t.enqueueLate(2)
      const prompt = yield* t.enqueueMany(2)
      assert.deepEqual(idsOf(yield* t.claim()), prompt)
      const after = yield* t.enqueueMany(2)
      yield* second.commit
      assert.deepEqual(idsOf(yield* t.claim(3)), [...second.ids, after[0]], "before what was enqueued later")
      yield* first.commit
      assert.deepEqual(idsOf(yield* t.claim()), [...first.ids, after[1]], "commits in the other order")
      assert.deepEqual(idsOf(yield* t.claim()), [], "once")
    })),

  check(
    "late jobs that a limit leaves behind are claimed by the next claims, in order and once",
    (t) =>
      Effect.gen(function*() {
        const late = yield* t.enqueueLate(5)
        const later = yield* t.enqueueLate(2)
        const prompt = yield* t.enqueueMany(3)
        assert.deepEqual(idsOf(yield* t.claim()), prompt)
        yield* late.commit
        const claims = [yield* t.claim(2), yield* t.claim(1)]
        yield* later.commit
        const more = yield* t.enqueueMany(2)
        claims.push(yield* t.claim(3), yield* t.claim(1), yield* t.claim(), yield* t.claim())
        assert.deepEqual(claims.flatMap(idsOf), [...late.ids, ...later.ids, ...more])
      })
  ),

  check("jobs of a transaction that never commits are passed over for good", (t) =>
    Effect.gen(function*() {
      const late = yield* t.enqueueLate(3)
      const prompt = yield* t.enqueueMany(2)
      assert.deepEqual(idsOf(yield* t.claim()), prompt)
      yield* late.rollback
      assert.deepEqual(idsOf(yield* t.claim()), [])
      const more = yield* t.enqueueMany(2)
      assert.deepEqual(idsOf(yield* t.claim()), more)
    })),

  check("a claim takes no more jobs than its limit", (t) =>
    Effect.gen(function*() {
      for (const priority of [1, 2, 3, 4] as const) yield* t.enqueueMany(3, { priority })
      const claims = [yield* t.claim(1), yield* t.claim(4), yield* t.claim(5), yield* t.claim(5)]
      assert.deepEqual(claims.map((jobs) => jobs.length), [1, 4, 5, 2])
    })),

  check("a claim takes jobs of its queue only", (t) =>
    Effect.gen(function*() {
      const others = [`${t.queue}-2`, t.queue.toUpperCase(), `${t.queue} `]
      const mine = yield* t.enqueueMany(2)
      const theirs = yield* Effect.forEach(others, (queue) => t.enqueueMany(2, { queue }))
      assert.deepEqual(idsOf(yield* t.claim()), mine)
      assert.deepEqual(idsOf(yield* t.claim()), [])
      for (const [i, queue] of others.entries()) {
        const claimed = yield* t.claim(1000, { queue })
        assert.deepEqual(idsOf(claimed), theirs[i])
        assert.deepEqual(claimed.map(({ job }) => job.queue), [queue, queue])
      }
    })),

  check("a job that was claimed is not handed out again", (t) =>
    Effect.gen(function*() {
      const [a, b] = yield* t.enqueueMany(2)
      yield* t.claim(1)
      assert.deepEqual(idsOf(yield* t.claim(2, { owner: t.otherOwner })), [b])
      yield* TestClock.adjust("1 day")
      yield* t.engine.promote(all)
      assert.deepEqual(idsOf(yield* t.claim()), [])
      yield* Effect.forEach([a!, b!], (id) => t.expectState(id, "running"))
    })),

  check("a claim counts the attempt and the lease", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const before = yield* t.job(id)
      assert.deepEqual([before.attempt, before.runLease], [0, 0n])
      for (const attempt of [1, 2, 3]) {
        const claimed = yield* t.claimOne
        const stored = yield* t.expectState(id, "running")
        assert.deepEqual([claimed.job.attempt, claimed.job.runLease], [attempt, BigInt(attempt)], "as claimed")
        assert.deepEqual([stored.attempt, stored.runLease], [attempt, BigInt(attempt)], "as read")
        yield* t.accept(claimed, outcomes.retryNow)
      }
    })),

  check("a claimed job carries what was enqueued", (t) =>
    Effect.gen(function*() {
      const runAt = yield* after("-1 hour")
      const expected = {
        queue: t.queue,
        priority: 3,
        maxAttempts: 7,
        runAt,
        metadata: { "a b": [1, { c: null }], text: "\u{1f600}\\\"" },
        tags: ["one", "two, and {three}", "\"four\""]
      } as const
      const id = yield* t.enqueue({ ...expected, payload: { n: 1 } })
      yield* t.enqueue({ queue: t.queue, priority: 4 })
      const enqueuedAt = yield* now
      yield* TestClock.adjust("1 minute")
      const [claimed, plain] = yield* t.claim()
      const stored = yield* t.job(id)
      for (const job of [claimed!.job, stored]) {
        const { maxAttempts, metadata, priority, queue, runAt, tags } = job
        assert.deepEqual({ queue, priority, maxAttempts, runAt, metadata, tags }, expected)
        assert.deepEqual(
          [job.id, job.kind, job.state, job.args, job.errors, job.progress],
          [id, Unchecked.kind, "running", { n: 1 }, [], undefined]
        )
        assert.deepEqual([job.createdAt, job.attemptedAt], [enqueuedAt, yield* now])
      }
      assert.deepEqual([plain!.job.metadata, plain!.job.tags], [{}, []], "nothing, where nothing was given")
    })),

  check("an attempt carries the errors and the progress of earlier ones", (t) =>
    Effect.gen(function*() {
      yield* t.enqueue({ metadata: { m: 1 }, tags: ["t"] })
      yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.zero, error: "first \"error\"\n" }, [1])
      const firstAt = yield* now
      yield* TestClock.adjust("1 minute")
      yield* t.accept(yield* t.claimOne, { _tag: "retry", delay: Duration.zero, error: "second" }, { step: 2 })
      const { job } = yield* t.claimOne
      assert.deepEqual(job.errors, [
        { error: "first \"error\"\n", attempt: 1, at: firstAt },
        { error: "second", attempt: 2, at: yield* now }
      ])
      assert.deepEqual([job.progress, job.metadata, job.tags], [{ step: 2 }, { m: 1 }, ["t"]])
    })),

  check("a claim stamps the deadline it was asked for", (t) =>
    Effect.gen(function*() {
      const [bounded, unbounded] = yield* t.enqueueMany(2)
      yield* t.claim(1, { deadline: Duration.millis(90_500) })
      yield* t.claim(1)
      assert.deepEqual((yield* t.job(bounded!)).deadlineAt, yield* after("90500 millis"))
      assert.deepEqual((yield* t.job(unbounded!)).deadlineAt, undefined)
    })),

  check("a claim may ask for its own durability", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(2)
      const claimed = [
        ...(yield* t.claim(1, { durability: "sync" })),
        ...(yield* t.claim(1, { durability: "async" }))
      ]
      assert.deepEqual(idsOf(claimed), ids)
      yield* Effect.forEach(claimed, (job) => t.accept(job, outcomes.completed))
    })),

  check("payloads that are too large for one answer come in several claims", (t) =>
    Effect.gen(function*() {
      const sizes = [11, 11, 11]
      const ids = yield* Effect.forEach(sizes, (size) => t.enqueue({ payload: "x".repeat(size * mebibyte) }))
      const claims = [yield* t.claim(), yield* t.claim()]
      assert.deepEqual(claims.map((jobs) => jobs.length), [2, 1], "at most 32 MiB an answer")
      assert.deepEqual(claims.flatMap(idsOf), ids)
      assert.deepEqual(claims.flat().map(({ args }) => String(args).length), sizes.map((size) => size * mebibyte))
      assert.deepEqual(yield* t.claim(), [])
    }))
]
