/**
 * What becomes of ended jobs and of their space, on a real database whose time is `TestClock`'s.
 */
import { Job, Migrations, Queues, QueueStorage, type StorageEngine, TimeSource, Unique } from "@awa/model"
import { Jobs, TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Layer, Option, Schema, TestClock } from "effect"
import { EmptyLive } from "./support/database.js"

const Anything = Job.make("anything", { payload: Schema.Unknown })

const owner = "00000000-0000-4000-8000-000000000001"

const TestLive = Layer.merge(TestDatabase.layer({ queueStorage: {} }), TimeSource.TimeSource.layerFromClock)

const retention = { completed: Duration.hours(24), failed: Duration.hours(72), cancelled: Duration.hours(72) }

/** With sixteen slots, the history of a day in thirteen of them. */
const interval = Duration.millis(Math.ceil(Duration.toMillis(retention.completed) / 13))

const make = Effect.gen(function*() {
  const engine = yield* QueueStorage.make
  const sql = yield* SqlClient.SqlClient
  const claim = engine.claim({ queue: "default", limit: 100, owner, nonce: "1", deadline: null, durability: "async" })
  const end = (outcome: StorageEngine.Outcome) =>
    Effect.flatMap(claim, (jobs) => engine.complete(owner, jobs.map(({ token }) => ({ token, outcome }))))
  const reclaim = engine.reclaim({
    rotateInterval: Duration.seconds(60),
    leaseRotateInterval: Duration.seconds(60),
    retention
  })
  const expire = engine.expire({ retention, limit: 1000 })
  /** Goes on for so long, with a pass of maintenance each time a slot may be sealed, and one at the end. */
  const pass = (duration: Duration.DurationInput) =>
    Effect.gen(function*() {
      let left = Duration.toMillis(duration)
      let freed = 0
      while (left > 0) {
        const step = Math.min(left, Duration.toMillis(interval))
        yield* TestClock.adjust(step)
        freed += (yield* reclaim).freed
        left -= step
      }
      return freed
    })
  const size = Effect.map(
    sql<{ size: number }>`
      select sum(pg_relation_size(c.oid))::int as size from pg_class c
      where c.relnamespace = 'awa'::regnamespace and c.relname ~ '^(ready_entries|closures|tombstones)_\\d+$'`,
    ([row]) => row!.size
  )
  return { sql, engine, claim, end, reclaim, expire, pass, size }
})

describe("reclaim", () => {
  it.scoped("keeps successes for as long as retention says, and then gives their space back", () =>
    Effect.gen(function*() {
      const { end, pass, reclaim, size } = yield* make
      yield* reclaim
      yield* Anything.enqueueMany([1, 2, 3])
      yield* end({ _tag: "completed" })
      assert.strictEqual(yield* pass("23 hours"), 0)
      assert.strictEqual((yield* Jobs.countByState()).completed, 3)
      assert.isAbove(yield* size, 0)
      // The slot is sealed an interval after it was opened, and freed when its newest job is a day old.
      assert.strictEqual(yield* pass("2 hours"), 1)
      assert.strictEqual((yield* Jobs.countByState()).completed, 0)
      assert.strictEqual(yield* size, 0)
    }).pipe(Effect.provide(TestLive)))

  it.scoped("counts a success once that was copied out of a slot which somebody still reads", () =>
    Effect.gen(function*() {
      const { end, pass, reclaim, sql } = yield* make
      yield* sql`insert into awa.queues (name, completed_retention) values ('default', '5 days')`
      yield* reclaim
      yield* Anything.enqueueMany([1, 2, 3])
      yield* end({ _tag: "completed" })
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`select from awa.ready_entries_0`
        assert.strictEqual(yield* pass("27 hours"), 0)
        assert.strictEqual((yield* sql`select from awa.finished_jobs`).length, 3)
        assert.strictEqual((yield* Queues.depth("default")).counts.completed, 3)
        assert.strictEqual((yield* Jobs.countByState()).completed, 3)
      }))
    }).pipe(Effect.provide(TestLive)))

  it.scoped("copies the successes of a queue that keeps them for longer", () =>
    Effect.gen(function*() {
      const { end, expire, pass, reclaim, sql } = yield* make
      yield* sql`insert into awa.queues (name, completed_retention) values ('default', '5 days'), ('other', '1 hour')`
      yield* reclaim
      const [id] = yield* Anything.enqueueMany([{ a: null }, 2], { tags: ["t"] })
      yield* end({ _tag: "completed" })
      const before = yield* Jobs.get(id!)
      assert.strictEqual(yield* pass("27 hours"), 1)
      assert.deepStrictEqual(yield* Jobs.get(id!), before)
      assert.strictEqual(yield* expire, 0)
      yield* pass("92 hours")
      assert.strictEqual(yield* expire, 0)
      yield* pass("2 hours")
      assert.strictEqual(yield* expire, 2)
      assert.strictEqual((yield* Jobs.countByState()).completed, 0)
    }).pipe(Effect.provide(TestLive)))

  it.scoped("copies each of them once, however often its lane was written down", () =>
    Effect.gen(function*() {
      const { end, reclaim, sql } = yield* make
      yield* sql`insert into awa.queues (name, completed_retention) values ('default', '5 days')`
      yield* reclaim
      yield* Anything.enqueueMany([1, 2, 3])
      yield* end({ _tag: "completed" })
      yield* sql`insert into awa.lanes select * from awa.lanes`
      const history = yield* sql`select from awa.history_of(0::smallint, 1000, to_timestamp(0))`
      assert.strictEqual(history.length, 3)
    }).pipe(Effect.provide(TestLive)))

  it.scoped("forgets failed and cancelled jobs by state and queue, as many as it is asked to", () =>
    Effect.gen(function*() {
      const { end, engine, expire, sql } = yield* make
      yield* sql`insert into awa.queues (name, failed_retention, cancelled_retention)
        values ('brief', '1 hour', null), ('long', null, '1 year')`
      const jobs = (queue: string, count: number) =>
        Anything.enqueueMany(Array.from({ length: count }, (_, n) => n), { queue })
      const endAll = (queue: string, outcome: StorageEngine.Outcome) =>
        engine.claim({ queue, limit: 100, owner, nonce: "1", deadline: null, durability: "async" }).pipe(
          Effect.flatMap((claimed) => engine.complete(owner, claimed.map(({ token }) => ({ token, outcome }))))
        )
      yield* jobs("brief", 3)
      yield* endAll("brief", { _tag: "fail", error: "no" })
      yield* jobs("long", 2)
      yield* endAll("long", { _tag: "cancel", reason: "no" })
      yield* jobs("default", 4)
      yield* end({ _tag: "fail", error: "no" })
      assert.strictEqual(yield* expire, 0)
      yield* TestClock.adjust("61 minutes")
      assert.strictEqual(yield* engine.expire({ retention, limit: 2 }), 2)
      assert.strictEqual(yield* expire, 1)
      yield* TestClock.adjust("72 hours")
      assert.strictEqual(yield* expire, 4)
      assert.deepInclude(yield* Jobs.countByState(), { failed: 0, cancelled: 2 })
      yield* TestClock.adjust("365 days")
      assert.strictEqual(yield* expire, 2)
    }).pipe(Effect.provide(TestLive)))

  it.scoped("lets a job run for longer than its slot lives", () =>
    Effect.gen(function*() {
      const { claim, engine, pass, reclaim, size } = yield* make
      yield* reclaim
      const { id } = yield* Anything.enqueue({ a: [null] })
      const [job] = yield* claim
      let freed = 0
      for (let hour = 0; hour < 30; hour++) {
        freed += yield* pass("1 hour")
        assert.deepStrictEqual(yield* engine.heartbeat(owner, [{ token: job!.token, progress: { hour } }]), [true])
        assert.deepInclude(yield* Jobs.get(id), { state: "running", attempt: 1, progress: { hour } })
        assert.deepStrictEqual(yield* engine.openAttempts(owner, Duration.zero), [job!.token])
      }
      assert.strictEqual(freed, 1)
      assert.strictEqual(yield* size, 0)
      assert.deepStrictEqual(
        yield* engine.complete(owner, [{ token: job!.token, outcome: { _tag: "completed" } }]),
        ["accepted"]
      )
      assert.deepInclude(yield* Jobs.get(id), { state: "completed", attempt: 1, args: { a: [null] } })
      assert.deepStrictEqual(yield* engine.openAttempts(owner, Duration.zero), [])
    }).pipe(Effect.provide(TestLive)))

  it.scoped("takes a job that outlived its slot away when its worker is silent", () =>
    Effect.gen(function*() {
      const { claim, engine, pass, reclaim } = yield* make
      yield* reclaim
      const { id } = yield* Anything.enqueue(null)
      const [job] = yield* claim
      yield* pass("30 hours")
      const rescued = yield* engine.rescueStale({ staleness: Duration.minutes(1), limit: 10 })
      assert.deepStrictEqual(rescued.map(({ jobId, state }) => [jobId, state]), [[id, "retryable"]])
      assert.deepStrictEqual(
        yield* engine.complete(owner, [{ token: job!.token, outcome: { _tag: "completed" } }]),
        ["refused"]
      )
      assert.deepInclude(yield* Jobs.get(id), { state: "retryable", attempt: 1 })
    }).pipe(Effect.provide(TestLive)))

  it.scoped("writes down what a slot came to whose jobs have all ended, until somebody strays into it", () =>
    Effect.gen(function*() {
      const { end, pass, reclaim, sql } = yield* make
      yield* reclaim
      yield* Anything.enqueueMany([1, 2, 3])
      yield* end({ _tag: "completed" })
      const written = Effect.map(
        sql<
          { completed: Record<string, number> | null }
        >`select completed from awa.slots where ring = 'ready' and slot = 0`,
        ([slot]) => slot!.completed === null ? null : Object.values(slot!.completed)
      )
      const depth = Effect.map(
        Queues.depth("default"),
        ({ counts: { available, completed } }) => [available, completed]
      )
      assert.deepStrictEqual([yield* written, yield* depth], [null, [0, 3]])
      yield* pass("3 hours")
      assert.deepStrictEqual([yield* written, yield* depth], [[3], [0, 3]])
      // As a producer does that has read the register before the slot was sealed.
      yield* sql`
        with stray as (insert into awa.slot_strays (slot) values (0))
        insert into awa.ready_entries (
          slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args
        )
        select 0, l.lane_id, p.pos, pg_current_xact_id(), p.pos, 0, 0, 1, p.at, p.at, 'anything', '4'
        from awa.lanes l
        cross join (select nextval('awa.pos_seq') as pos, '1970-01-01'::timestamptz as at offset 0) p`
      assert.deepStrictEqual(yield* depth, [1, 3])
      yield* end({ _tag: "completed" })
      assert.deepStrictEqual([yield* written, yield* depth], [[3], [0, 4]])
      yield* pass("3 hours")
      assert.deepStrictEqual([yield* written, yield* depth], [[4], [0, 4]])
    }).pipe(Effect.provide(TestLive)))

  it.scoped("waits for who reads a slot, and loses nothing when no slot is empty", () =>
    Effect.gen(function*() {
      const { claim, end, pass, reclaim, sql } = yield* make
      yield* reclaim
      yield* Effect.scoped(Effect.gen(function*() {
        const reader = yield* sql.reserve
        const read = (text: string) => reader.executeUnprepared(text, [], undefined)
        yield* Effect.addFinalizer(() => Effect.orDie(read("rollback")))
        yield* read("begin isolation level repeatable read")
        yield* read("select count(*) from awa.ready_entries")
        let freed = 0
        for (let i = 0; i < 20; i++) {
          yield* Anything.enqueue(i)
          yield* end({ _tag: "completed" })
          freed += yield* pass(interval)
        }
        assert.strictEqual(freed, 0)
        const [open] = yield* sql<{ slots: number }>`select count(*)::int as slots from awa.slots where ring = 'ready'`
        assert.strictEqual(open!.slots, 16)
      }))
      assert.isAtLeast(yield* pass("2 hours"), 5)
      yield* Anything.enqueue("still")
      assert.deepStrictEqual((yield* claim).map(({ args }) => args), ["still"])
    }).pipe(Effect.provide(TestLive)))

  it.scoped("lets the dead rows of leases go with their slot", () =>
    Effect.gen(function*() {
      const { claim, engine, reclaim, sql } = yield* make
      yield* reclaim
      yield* Anything.enqueue(1)
      const [job] = yield* claim
      const slots = new Set<number>()
      for (let i = 0; i < 20; i++) {
        assert.deepStrictEqual(yield* engine.heartbeat(owner, [{ token: job!.token }]), [true])
        const [lease] = yield* sql<{ slot: number }>`select lease_slot::int as slot from awa.leases`
        slots.add(lease!.slot)
        yield* TestClock.adjust("61 seconds")
        yield* reclaim
      }
      assert.strictEqual(slots.size, 8)
      const used = yield* sql<{ name: string }>`
        select c.relname as name from pg_class c
        where c.relnamespace = 'awa'::regnamespace and c.relname ~ '^leases_\\d+$' and c.relkind = 'r'
          and pg_relation_size(c.oid) > 0`
      assert.isAtMost(used.length, 8)
      assert.deepStrictEqual(
        yield* engine.complete(owner, [{ token: job!.token, outcome: { _tag: "completed" } }]),
        ["accepted"]
      )
    }).pipe(Effect.provide(TestLive)))

  it.scoped("puts rows that were passed over into the queue again", () =>
    Effect.gen(function*() {
      const { claim, end, engine, pass, reclaim, sql } = yield* make
      yield* reclaim
      const { id } = yield* Anything.enqueue(1)
      // A cursor that nobody moved by claiming: what must never happen.
      yield* sql`
        insert into awa.claim_batches (slot, batch_id, nonce, lane_id, owner, claimed_at, n, cursor_pos)
        select 0, nextval('awa.batch_seq'), 1, lane_id, ${owner}::uuid, now(), 0, ${String(id)}::bigint from awa.lanes`
      assert.deepStrictEqual(yield* claim, [])
      yield* pass("8 hours")
      assert.deepStrictEqual((yield* claim).map(({ job }) => job.id), [id])
      assert.deepStrictEqual(yield* engine.probe(["default"]), [])
      yield* end({ _tag: "completed" })
    }).pipe(Effect.provide(TestLive)))

  it.scoped("turns a ring of four slots, which whoever expects another is told of", () =>
    Effect.gen(function*() {
      yield* Migrations.run({ queueStorage: { queueSlotCount: 4, leaseSlotCount: 2 } })
      const { end, engine } = yield* make
      for (let round = 0; round < 12; round++) {
        yield* Anything.enqueueMany([1, 2])
        yield* end({ _tag: "completed" })
        yield* TestClock.adjust("61 seconds")
        yield* engine.reclaim({
          rotateInterval: Duration.seconds(1),
          leaseRotateInterval: Duration.seconds(1),
          retention: { ...retention, completed: Duration.millis(1) }
        })
      }
      assert.isBelow((yield* Jobs.countByState()).completed, 8)
      yield* Layer.build(QueueStorage.layerOf({ queueSlotCount: 4 }))
      const error = yield* Effect.flip(Layer.build(QueueStorage.layerOf({ queueSlotCount: 16 })))
      assert.include(error, { _tag: "StorageInconsistent" })
      const receipts = yield* Effect.flip(Layer.build(QueueStorage.layerOf({ leaseClaimReceipts: false })))
      assert.include(receipts.message, "leaseClaimReceipts of true, not false")
      for (const queueSlotCount of [3, 65, 4.5, NaN]) {
        const refused = yield* Effect.flip(Migrations.run({ queueStorage: { queueSlotCount } }))
        assert.include(refused, { _tag: "InvalidSetting", setting: "queueSlotCount" })
      }
    }).pipe(Effect.provide(Layer.merge(EmptyLive(), TimeSource.TimeSource.layerFromClock))))
})

describe("a storage without receipts", () => {
  it.scoped("gives every attempt a lease with its claim, and takes it back at the end", () =>
    Effect.gen(function*() {
      const { engine, sql } = yield* make
      const leases = Effect.map(sql`select job_id from awa.leases`, (rows) => rows.length)
      const [first] = yield* Anything.enqueueMany([1, 2, 3, 4])
      yield* Anything.enqueue(5, { priority: 1 })
      yield* sql`select awa.request_cancel(array[${String(first)}::bigint], null, null)`
      const claim = engine.claim({ queue: "default", limit: 3, owner, nonce: "1", deadline: null, durability: "async" })
      const attempts = yield* claim
      assert.strictEqual(attempts.length, 2) // the third was to be cancelled
      assert.strictEqual(yield* leases, 2)
      const complete = (jobs: typeof attempts) =>
        engine.complete(owner, jobs.map(({ token }) => ({ token, outcome: { _tag: "completed" } as const })))
      assert.deepStrictEqual(yield* complete(attempts.slice(0, 1)), ["accepted"])
      assert.strictEqual(yield* leases, 1)
      // While a success is stored nothing is known of leases, then something is.
      const more = yield* claim
      assert.strictEqual(yield* leases, 3)
      yield* complete([...attempts.slice(1), ...more])
      assert.strictEqual(yield* leases, 0)
      yield* Layer.build(QueueStorage.layerOf({ leaseClaimReceipts: false }))
      const refused = yield* Effect.flip(Migrations.run({ queueStorage: { leaseClaimReceipts: "no" as never } }))
      assert.include(refused, { _tag: "InvalidSetting", setting: "leaseClaimReceipts" })
    }).pipe(
      Effect.provide(
        Layer.merge(
          TestDatabase.layer({ queueStorage: { leaseClaimReceipts: false } }),
          TimeSource.TimeSource.layerFromClock
        )
      )
    ))
})

describe("a unique key", () => {
  const unique = { states: [...Unique.liveStates, "completed", "failed"] } as const

  const isHeld = (payload: unknown) => Effect.map(Unique.holder(Anything.request(payload, { unique })), Option.isSome)

  it.scoped("that a success holds is let go when the success is forgotten", () =>
    Effect.gen(function*() {
      const { claim, end, engine, expire, pass, reclaim, sql } = yield* make
      yield* sql`insert into awa.queues (name, completed_retention) values ('long', '5 days')`
      yield* reclaim
      yield* Anything.enqueueMany(["brief", "retried"], { unique })
      yield* Anything.enqueue("long", { unique, queue: "long" })
      const [brief, retried] = yield* claim
      const [long] = yield* engine.claim({
        queue: "long",
        limit: 1,
        owner,
        nonce: "2",
        deadline: null,
        durability: "async"
      })
      yield* engine.complete(owner, [
        { token: brief!.token, outcome: { _tag: "completed" } },
        { token: long!.token, outcome: { _tag: "completed" } },
        { token: retried!.token, outcome: { _tag: "retry", delay: Duration.days(3), error: null } }
      ])
      const held = Effect.forEach(["brief", "long", "retried"], isHeld)
      yield* pass("23 hours")
      assert.deepStrictEqual(yield* held, [true, true, true])
      assert.strictEqual(yield* pass("4 hours"), 1)
      assert.deepStrictEqual(yield* held, [false, true, true])
      yield* pass("5 days")
      yield* expire
      assert.deepStrictEqual(yield* held, [false, false, true])
      assert.strictEqual(yield* engine.promote(10), 1)
      yield* end({ _tag: "fail", error: "no" })
      assert.deepStrictEqual(yield* held, [false, false, true])
      yield* TestClock.adjust("73 hours")
      assert.strictEqual(yield* expire, 1)
      assert.deepStrictEqual(yield* held, [false, false, false])
    }).pipe(Effect.provide(TestLive)))

  it.scoped("is kept by a job that runs for longer than its slot lives, and let go when it ends", () =>
    Effect.gen(function*() {
      const { claim, engine, pass, reclaim } = yield* make
      yield* reclaim
      yield* Anything.enqueueMany(["ends", "fails"], { unique: true })
      const [ends, fails] = yield* claim
      const beat = Effect.repeatN(
        Effect.zipRight(pass("1 minute"), engine.heartbeat(owner, [ends!, fails!].map(({ token }) => ({ token })))),
        3
      )
      yield* beat
      assert.strictEqual(yield* pass("28 hours"), 1)
      assert.strictEqual(yield* engine.sweepKeys(100), 0)
      assert.deepStrictEqual(yield* Effect.forEach(["ends", "fails"], isHeld), [true, true])
      yield* engine.complete(owner, [
        { token: ends!.token, outcome: { _tag: "completed" } },
        { token: fails!.token, outcome: { _tag: "fail", error: "no" } }
      ])
      assert.deepStrictEqual(yield* Effect.forEach(["ends", "fails"], isHeld), [false, false])
    }).pipe(Effect.provide(TestLive)))
})
