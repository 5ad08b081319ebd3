import * as Database from "@awa/model/Database"
import type { JobId } from "@awa/model/JobRow"
import * as Effect from "effect/Effect"
import * as assert from "node:assert/strict"
import * as Jobs from "../../Jobs.js"
import { after, check, idsOf, now, Unchecked } from "./harness.js"

const payloads: ReadonlyArray<unknown> = [
  null,
  true,
  0,
  -1.5,
  1e21,
  5e-324,
  Number.MAX_SAFE_INTEGER,
  "",
  "quote \" backslash \\ newline \n tab \t line separator \u2028 emoji \u{1f600}",
  "\\u0000",
  [],
  [1, [null, []], {}],
  {},
  { "": 1, "a b": { c: [{ d: null }] } },
  { date: new Date(0), left: undefined, not: NaN }
]

/** @internal */
export const enqueueing = [
  check("enqueueing many jobs answers their ids in the order of the input", (t) =>
    Effect.gen(function*() {
      const later = yield* after("1 hour")
      const ids = yield* Unchecked.enqueueMany(Array.from({ length: 100 }, (_, n) => n), (_, n) => ({
        queue: n % 2 === 0 ? t.queue : `${t.queue}-other`,
        priority: n % 3 === 0 ? 4 : 1,
        runAt: n % 5 === 0 ? later : undefined
      }))
      const stored = yield* Effect.forEach(ids, t.job)
      assert.deepEqual(stored.map((job) => job.args), Array.from({ length: 100 }, (_, n) => n))
      assert.deepEqual(ids, [...new Set(ids)].sort(ascending), "ids ascend in the order of the input")
    })),

  check("a job is available unless its time is to come", (t) =>
    Effect.gen(function*() {
      const [past, future] = [yield* after("-1 hour"), yield* after("1 hour")]
      const ids = yield* Effect.all([
        t.enqueue(),
        t.enqueue({ runAt: past }),
        t.enqueue({ runAt: yield* now }),
        t.enqueue({ runAt: future }),
        t.enqueue({ delay: "1 hour" })
      ])
      const stored = yield* Effect.forEach(ids, t.job)
      assert.deepEqual(stored.map((job) => job.state), [
        "available",
        "available",
        "available",
        "scheduled",
        "scheduled"
      ])
      assert.deepEqual(stored.map((job) => job.runAt), [yield* now, past, yield* now, future, future])
      const [a, b, c] = ids
      assert.deepEqual(idsOf(yield* t.claim()), [a, b, c], "scheduled jobs are not claimable")
    })),

  check("a payload comes back as JSON would have it", (t) =>
    Effect.gen(function*() {
      const expected = payloads.map((payload) => JSON.parse(JSON.stringify(payload)))
      const ids: Array<JobId> = []
      for (const payload of payloads) {
        ids.push((yield* Unchecked.enqueue(payload, { queue: t.queue })).id)
      }
      ids.push(...(yield* Unchecked.enqueueMany(payloads, { queue: t.queue })))
      const stored = yield* Jobs.list({ queue: t.queue })
      assert.deepEqual(stored.map((job) => job.args), [...expected, ...expected], "as read")
      const claimed = yield* t.claim()
      assert.deepEqual(idsOf(claimed), ids)
      assert.deepEqual(claimed.map((job) => job.args), [...expected, ...expected], "as claimed")
    })),

  check("a transaction that rolls back leaves no job behind", (t) =>
    Effect.gen(function*() {
      const kept = yield* t.enqueue()
      yield* t.enqueue().pipe(Effect.zipRight(t.enqueueMany(3)), Effect.zipRight(Effect.fail("no")), (effect) =>
        Database.transaction(effect).pipe(Effect.flip))
      const late = yield* t.enqueueLate(2)
      yield* late.rollback
      const stored = yield* Jobs.list({ queue: t.queue })
      assert.deepEqual(
        stored.map((job) =>
          job.id
        ),
        [kept]
      )
      assert.deepEqual(idsOf(yield* t.claim()), [kept])
    })),

  check("a savepoint that is rolled back takes its jobs with it", (t) =>
    Effect.gen(function*() {
      const nested = Effect.gen(function*() {
        const before = yield* t.enqueueMany(2)
        yield* Effect.ignore(Database.transaction(Effect.zipRight(t.enqueueMany(2), Effect.fail("no"))))
        return [...before, ...(yield* Database.transaction(t.enqueueMany(2))), ...(yield* t.enqueueMany(1))]
      })
      const late = yield* t.inOpenTransaction(nested)
      const prompt = yield* t.enqueueMany(1)
      assert.deepEqual(idsOf(yield* t.claim()), prompt)
      yield* late.commit
      assert.deepEqual(idsOf(yield* t.claim()), late.value)
      assert.equal((yield* Jobs.list({ queue: t.queue })).length, 6)
    })),

  check("jobs may be enqueued at any isolation level", (t) =>
    Effect.gen(function*() {
      for (const isolation of ["read committed", "repeatable read", "serializable"] as const) {
        const queue = `${t.queue}-${isolation}`
        const ids = yield* Database.transaction(
          Effect.zipWith(t.enqueueMany(2, { queue }), t.enqueue({ queue }), (some, one) => [...some, one]),
          { isolation }
        )
        assert.deepEqual(idsOf(yield* t.claim(1000, { queue })), ids, isolation)
      }
    })),

  check("a job is seen and claimed only after the commit of its transaction", (t) =>
    Effect.gen(function*() {
      const late = yield* t.enqueueLate(2)
      assert.deepEqual(yield* Jobs.list({ queue: t.queue }), [], "seen before the commit")
      assert.deepEqual(idsOf(yield* t.claim()), [], "claimed before the commit")
      yield* late.commit
      assert.equal((yield* Jobs.list({ queue: t.queue })).length, 2, "seen after the commit")
      assert.deepEqual(idsOf(yield* t.claim()), late.ids, "claimed after the commit")
    }))
]

const ascending = (a: bigint, b: bigint): number => (a < b ? -1 : 1)
