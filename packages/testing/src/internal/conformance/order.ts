import type { JobId } from "@awa/model/JobRow"
import { StorageSchemas } from "@awa/model/StorageSchemas"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { after, all, check, checkAlone, type Harness, idsOf, outcomes } from "./harness.js"

const aging = { priorityAging: Duration.minutes(1) }

/** @internal Over so many lanes each priority of the check's queue is spread from now on. */
export const setShards = (t: Harness, shards: number) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const { engine } = yield* StorageSchemas
    yield* sql.unsafe(`select "${engine}".set_shards($1, $2)`, [t.queue, shards])
  }).pipe(Effect.orDie)

/** Claims until nothing is left; ends each attempt well. */
const drain = (t: Harness, limit: number) =>
  Effect.gen(function*() {
    const ids: Array<JobId> = []
    for (;;) {
      const jobs = yield* t.claim(limit)
      assert.ok(jobs.length <= limit, `${jobs.length} jobs for a limit of ${limit}`)
      if (jobs.length === 0) return ids
      ids.push(...idsOf(jobs))
      yield* Effect.forEach(jobs, (job) => t.accept(job, outcomes.completed))
    }
  })

const sorted = (ids: ReadonlyArray<JobId>) => [...ids].sort((a, b) => (a < b ? -1 : 1))

/** @internal */
export const ordering = [
  check("a job that waits counts as more urgent, an interval a priority", (t) =>
    Effect.gen(function*() {
      const old = yield* t.enqueue({ priority: 4 })
      yield* TestClock.adjust("119 seconds")
      const young = yield* t.enqueueMany(2, { priority: 2 })
      assert.deepEqual(idsOf(yield* t.claim(1, aging)), [young[0]], "one interval has passed, and not two")
      yield* TestClock.adjust("1 second")
      const [first] = yield* t.claim(1, aging)
      assert.equal(first?.job.id, old)
      assert.equal(first?.job.priority, 4, "what is stored does not change")
    })),

  check("jobs that count alike are claimed in the order they were enqueued", (t) =>
    Effect.gen(function*() {
      const three = yield* t.enqueue({ priority: 3 })
      const one = yield* t.enqueue({ priority: 1 })
      const four = yield* t.enqueue({ priority: 4 })
      yield* TestClock.adjust("1 hour")
      const last = yield* t.enqueue({ priority: 1 })
      assert.deepEqual(idsOf(yield* t.claim(all, aging)), [three, one, four, last], "none counts less than 1")
    })),

  check("priorities do not age unless a claim says so", (t) =>
    Effect.gen(function*() {
      const four = yield* t.enqueue({ priority: 4 })
      yield* TestClock.adjust("1 day")
      const three = yield* t.enqueue({ priority: 3 })
      const two = yield* t.enqueue({ priority: 2 })
      const claims = [yield* t.claim(1), yield* t.claim(1, { priorityAging: null }), yield* t.claim(1)]
      assert.deepEqual(claims.flatMap(idsOf), [two, three, four])
    })),

  checkAlone("a job waits from when it is there and due", (t) =>
    Effect.gen(function*() {
      const scheduled = yield* t.enqueue({ priority: 4, delay: "1 hour" })
      yield* TestClock.adjust("1 hour")
      yield* t.engine.promote(all)
      const backdated = yield* t.enqueue({ priority: 4, runAt: yield* after("-1 hour") })
      const three = yield* t.enqueue({ priority: 3 })
      yield* TestClock.adjust("59 seconds")
      assert.deepEqual(idsOf(yield* t.claim(1, aging)), [three])
      yield* TestClock.adjust("1 second")
      const younger = yield* t.enqueue({ priority: 3 })
      assert.deepEqual(idsOf(yield* t.claim(all, aging)), [scheduled, backdated, younger])
    })),

  checkAlone("a job that waits longer does not overtake those before it in its lane", (t) =>
    Effect.gen(function*() {
      const overdue = yield* t.enqueue({ priority: 4, delay: "30 seconds" })
      yield* TestClock.adjust("9 minutes")
      const before = yield* t.enqueueMany(2, { priority: 4 })
      const two = yield* t.enqueueMany(2, { priority: 2 })
      yield* t.engine.promote(all)
      yield* TestClock.adjust("1 minute")
      // The overdue one alone would count 1, those before it count 3.
      const claims = [yield* t.claim(1, aging), yield* t.claim(2, aging), yield* t.claim(all, aging)]
      assert.deepEqual(claims.flatMap(idsOf), [...two, ...before, overdue])
      assert.deepEqual(idsOf(yield* t.claim(all, aging)), [])
    })),

  check("every job of a queue with several shards is claimed once", (t) =>
    Effect.gen(function*() {
      yield* setShards(t, 4)
      const ids = [
        ...(yield* t.enqueueMany(50)),
        ...(yield* t.enqueueMany(30, { priority: 1 })),
        ...(yield* Effect.replicateEffect(t.enqueue(), 9)),
        ...(yield* t.enqueueMany(11, { tags: ["t"] }))
      ]
      const few = yield* t.claim(3)
      yield* Effect.forEach(few, (job) => t.accept(job, outcomes.completed))
      assert.deepEqual(sorted([...idsOf(few), ...(yield* drain(t, 7))]), ids)
    })),

  check("the most urgent jobs of all shards are claimed first", (t) =>
    Effect.gen(function*() {
      yield* setShards(t, 4)
      const two = yield* t.enqueueMany(12)
      const one = yield* t.enqueueMany(8, { priority: 1 })
      assert.deepEqual(sorted(idsOf(yield* t.claim(8))), one)
      const single = idsOf(yield* t.claim(1))
      assert.deepEqual(single, [two[0]], "of the shards' first jobs the oldest")
    })),

  check("jobs of one ordering key are claimed in order in a queue with several shards", (t) =>
    Effect.gen(function*() {
      yield* setShards(t, 4)
      const keys = ["a", "customer-1", "customer-42", "another"]
      const byKey = new Map(keys.map((key) => [key, new Array<JobId>()]))
      for (let round = 0; round < 5; round++) {
        for (const orderingKey of keys) byKey.get(orderingKey)!.push(yield* t.enqueue({ orderingKey }))
      }
      const claimed = yield* drain(t, 3)
      for (const [key, ids] of byKey) {
        assert.deepEqual(claimed.filter((id) => ids.includes(id)), ids, `jobs of key ${key}`)
      }
      assert.equal(claimed.length, 20)
    })),

  checkAlone("a job keeps its ordering key, and so its shard, in all attempts", (t) =>
    Effect.gen(function*() {
      yield* setShards(t, 8)
      const orderingKey = "customer-42"
      const ids = [
        yield* t.enqueue({ orderingKey, delay: "1 minute" }),
        ...(yield* t.enqueueMany(4, { orderingKey }))
      ]
      for (const outcome of [outcomes.retry, outcomes.retryNow, outcomes.snooze, outcomes.return]) {
        const job = yield* t.claimOne
        assert.equal(job.job.orderingKey, orderingKey)
        yield* t.accept(job, outcome)
      }
      const lost = yield* t.claim(1)
      yield* TestClock.adjust("2 minutes")
      yield* t.engine.rescueStale({ staleness: Duration.minutes(1), limit: all })
      yield* TestClock.adjust("1 day")
      yield* t.engine.promote(all)
      const follower = yield* t.enqueue({ orderingKey })
      const claimed = yield* drain(t, 1)
      assert.equal(claimed.length, 6)
      assert.equal(claimed.at(-1), follower, "in one shard the last to come is the last to be claimed")
      for (const id of [...ids, ...idsOf(lost)]) assert.equal((yield* t.job(id)).orderingKey, orderingKey)
    })),

  check("nothing is lost when the number of shards changes", (t) =>
    Effect.gen(function*() {
      const ids: Array<JobId> = []
      const retried: Array<JobId> = []
      for (const shards of [1, 4, 2, 8, 3, 1]) {
        yield* setShards(t, shards)
        ids.push(...(yield* t.enqueueMany(8)), ...(yield* t.enqueueMany(4, { orderingKey: "a" })), yield* t.enqueue())
        for (const job of yield* t.claim(2)) {
          retried.push(job.job.id)
          yield* t.accept(job, outcomes.retryNow)
        }
      }
      assert.ok(retried.length > 0)
      assert.deepEqual(sorted(yield* drain(t, 5)), sorted(ids))
    }))
]
