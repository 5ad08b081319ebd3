import { Job, JobAdmin, QueueStorage, type StorageEngine, TimeSource } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Option, Schema } from "effect"
import { MigratedLive } from "./support/database.js"

const Anything = Job.make("anything", { payload: Schema.Unknown })

const owner = "00000000-0000-4000-8000-000000000001"

/** What the engine says when it starts on a database that was tampered with. */
const startsWith = (tamper: string) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    yield* Anything.enqueueMany([1, 2, 3])
    yield* sql.unsafe(tamper)
    return yield* Effect.flip(QueueStorage.make)
  }).pipe(Effect.provide(MigratedLive()))

describe("the engine at its start", () => {
  it.effect("accepts what it wrote itself", () =>
    Effect.gen(function*() {
      yield* QueueStorage.make
      yield* Anything.enqueueMany([1, 2, 3])
      yield* QueueStorage.make
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("refuses the data of another cluster", () =>
    Effect.gen(function*() {
      const error = yield* startsWith("update awa.epochs set system_identifier = 42")
      assert.strictEqual(error._tag, "ForeignDatabase")
      assert.include(error.message, "cluster 42")
    }))

  it.effect.each(["pos_seq", "batch_seq", "lease_marks", "layout_changes"])(
    "refuses a sequence that caches values: %s",
    (sequence) =>
      Effect.gen(function*() {
        const error = yield* startsWith(`alter sequence awa.${sequence} cache 10`)
        assert.strictEqual(error._tag, "StorageInconsistent")
        assert.include(error.message, `awa.${sequence}`)
      })
  )

  it.effect("refuses a sequence that is behind the data", () =>
    Effect.gen(function*() {
      const error = yield* startsWith("select setval('awa.pos_seq', 2)")
      assert.strictEqual(error._tag, "StorageInconsistent")
      assert.include(error.message, "sequence pos_seq is behind")
    }))
})

describe("a claim", () => {
  it.effect("asks for less when too many ids pass while it reads", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const { claim } = yield* QueueStorage.make
      yield* Anything.enqueueMany(Array.from({ length: 100 }, (_, n) => n))
      yield* sql.unsafe("create sequence claims")
      yield* sql.unsafe(`
        create or replace function awa.pending_xids(p_snapshot pg_snapshot, p_own xid8) returns xid8[]
        language plpgsql
        as $$
        begin
          if nextval('public.claims') <= 3 then
            raise exception using errcode = 'AW001', message = 'too many';
          end if;
          return '{}';
        end
        $$`)
      const jobs = yield* claim({
        queue: "default",
        limit: 100,
        owner,
        nonce: "1",
        deadline: null,
        durability: "async"
      })
      assert.strictEqual(jobs.length, 1) // 100, 100, 12, 1
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("keeps within its bound of bytes, whatever numbers become as text", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const { claim } = yield* QueueStorage.make
      yield* sql`
        select awa.enqueue(jsonb_agg(jsonb_build_object(
          'kind', 'do', 'args', (select jsonb_agg('1e131000'::jsonb) from generate_series(1, 150))
        ))) from generate_series(1, 2)`
      for (const nonce of ["1", "2"]) {
        const jobs = yield* claim({ queue: "default", limit: 2, owner, nonce, deadline: null, durability: "async" })
        assert.strictEqual(jobs.length, 1)
      }
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("of several priorities may be told that they never age", () =>
    Effect.gen(function*() {
      const { claim } = yield* QueueStorage.make
      yield* Anything.enqueue(3, { priority: 3 })
      yield* Anything.enqueue(1, { priority: 1 })
      const jobs = yield* claim({
        queue: "default",
        limit: 2,
        owner,
        nonce: "1",
        deadline: null,
        priorityAging: Duration.millis(Number.MAX_SAFE_INTEGER),
        durability: "async"
      })
      assert.deepStrictEqual(jobs.map(({ args }) => args), [1, 3])
    }).pipe(Effect.provide(MigratedLive())))
})

describe("the end of an attempt", () => {
  it.effect("that cannot be encoded is a defect of the effect, not thrown", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      const token = { slot: 0, batchId: "1", nonce: "1", index: 1, fence: "1.1.1" }
      const completion = { token, outcome: { _tag: "cancel", reason: undefined as never } } as const
      const exit = yield* Effect.exit(engine.complete("00000000-0000-4000-8000-000000000001", [completion]))
      assert.strictEqual(exit._tag === "Failure" ? exit.cause._tag : null, "Die")
    }).pipe(Effect.provide(MigratedLive())))
})

describe("a claim that takes the ends of attempts along", () => {
  it.effect("leaves them stored when it fails", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      const { id } = yield* Anything.enqueue(1)
      const request = { queue: "default", limit: 1, owner, nonce: "1", deadline: null, durability: "async" } as const
      const [claimed] = yield* engine.claim(request)
      const ends = [{ token: claimed!.token, outcome: { _tag: "completed" } }] as const
      const error = yield* Effect.flip(engine.completeAndClaim(ends, { ...request, limit: 40_000 }))
      assert.deepInclude(error, { _tag: "DatabaseError", operation: "complete and claim", sqlState: "22023" })
      assert.strictEqual(Option.getOrThrow(yield* JobAdmin.get(id)).state, "completed")
      assert.deepStrictEqual(yield* engine.completeAndClaim(ends, request), { verdicts: ["repeated"], jobs: [] })
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("goes on where many ids lie between snapshot and claim", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      const sql = yield* SqlClient.SqlClient
      yield* Anything.enqueueMany([1, 2])
      const request = { queue: "default", limit: 1, owner, nonce: "1", deadline: null, durability: "async" } as const
      const [claimed] = yield* engine.claim(request)
      // Of the first call only: as if a burst of subtransactions had come between.
      yield* sql`create sequence bursts`
      yield* sql`alter function awa.pending_xids(pg_snapshot, xid8) rename to pending`
      yield* sql.unsafe(`create function awa.pending_xids(s pg_snapshot, x xid8) returns xid8[] language plpgsql as $$
        begin
          if nextval('public.bursts') = 1 then
            raise exception using errcode = 'AW001', message = '300 transaction ids between snapshot and claim';
          end if;
          return awa.pending(s, x);
        end $$`)
      yield* sql`grant usage on sequence bursts to public`
      const ends = [{ token: claimed!.token, outcome: { _tag: "completed" } }] as const
      const { jobs, verdicts } = yield* engine.completeAndClaim(ends, { ...request, nonce: "2" })
      assert.deepStrictEqual(verdicts, ["repeated"])
      assert.deepStrictEqual(jobs.map(({ args }) => args), [2])
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("says to the millisecond when it was", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      yield* Anything.enqueueMany(Array.from({ length: 20 }, (_, n) => n), { runAt: new Date(0) })
      const request = { queue: "default", limit: 1, owner, deadline: null, durability: "async" } as const
      let ended: ReadonlyArray<StorageEngine.Completion> = []
      for (let millis = 1001; millis < 1011; millis++) {
        const at = Effect.provideService(TimeSource.TimeSource, Effect.succeed(new Date(millis)))
        const [alone] = yield* engine.claim({ ...request, nonce: `${millis}` }).pipe(at)
        const { jobs } = yield* engine.completeAndClaim(ended, { ...request, nonce: `${2 * millis}` }).pipe(at)
        for (const claimed of [alone!, jobs[0]!]) assert.strictEqual(claimed.job.attemptedAt?.getTime(), millis)
        ended = [{ token: jobs[0]!.token, outcome: { _tag: "completed" } }]
      }
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("takes what its session calls by the same names for something else", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* sql`create schema evil`
      yield* sql.unsafe(`create function evil.date_part(text, timestamptz) returns float8 language sql as 'select 0'`)
      yield* sql.unsafe(`create function evil.times(float8, integer) returns float8 language sql as 'select 0'`)
      yield* sql.unsafe(`create operator evil.* (function = evil.times, leftarg = float8, rightarg = integer)`)
      yield* Anything.enqueue(1)
      const row = yield* sql.reserve.pipe(Effect.flatMap((session) =>
        Effect.gen(function*() {
          yield* session.executeUnprepared("set search_path = evil, pg_catalog", [], undefined)
          const [row] = yield* session.executeUnprepared(
            `call awa.complete_and_claim(
              '${owner}', '[]', '[]', null, 'default', 1, 1, null, true, '2026-01-01 00:00:00Z', null, null, null, null
            )`,
            [],
            undefined
          )
          return row
        })
      ))
      assert.strictEqual(row.claimed_at, Date.UTC(2026, 0, 1))
    }).pipe(Effect.scoped, Effect.provide(MigratedLive())))
})

describe("attempts that do not succeed", () => {
  it.effect("are ended at a cost that does not grow with their slot", () =>
    Effect.scoped(Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      // A session that planned its statements when the slot was nearly empty.
      const session = yield* sql.reserve
      const run = (text: string) => session.executeUnprepared(text, [], undefined)
      const blocks = Effect.gen(function*() {
        yield* run(`select from awa.claim('default', 20, '${owner}', 7, null, true, null)`)
        const [row] = yield* run(`explain (analyze, buffers, format json)
          select awa.complete('${owner}', '[]', jsonb_agg(jsonb_build_object(
            'slot', b.slot, 'batch', b.batch_id, 'nonce', b.nonce, 'member', m.member, 'act', 'fail', 'error', 'no'
          )), null)
          from (select * from awa.claim_batches order by batch_id desc limit 1) b
          cross join lateral generate_series(1, b.n) m(member)`)
        const [{ Plan: plan }] = row["QUERY PLAN"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
      })
      yield* Anything.enqueueMany(Array.from({ length: 60 }, (_, n) => n))
      yield* blocks
      const before = yield* blocks
      yield* Anything.enqueueMany(Array.from({ length: 5000 }, (_, n) => n))
      const after = yield* blocks
      assert.isBelow(after, 1.5 * before, JSON.stringify({ before, after }))
    })).pipe(Effect.provide(MigratedLive())))
})

describe("what plain SQL may enqueue", () => {
  const refused = [
    `enqueue('[{"kind":"k","run_at":"-infinity"}]')`,
    `enqueue('[{"kind":"k","run_at":"infinity"}]')`,
    `enqueue('[{"kind":"k"}]', 'infinity')`,
    `enqueue_one('k', '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), 'infinity')`,
    `enqueue_alike('k', '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), '-infinity')`,
    `enqueue_one('', '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), null)`,
    `enqueue_one('k', '1', 'default', 2::smallint, 0::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), null)`,
    `enqueue_one('k', '1', 'default', 2::smallint, 5::smallint, 42, awa.lock_key('default'), null)`,
    `enqueue_one('k', '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), 42, null)`,
    `enqueue_one('k', '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), null, null)`,
    `enqueue_alike('k', '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), 42, null)`,
    ...["{", "", "1 2", `"\\u0000"`, `"\\ud800"`, `{"\\udc00": 1}`, "null\u001e1"].map((args) =>
      `enqueue_one('k', '${args}', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), null)`
    ),
    ...["1\u001e", "1\u001e[", `1\u001e"\\u0000"`].map((args) =>
      `enqueue_alike('k', '${args}', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), null)`
    ),
    `enqueue_alike('k', repeat('1' || chr(30), 10000) || '1', 'default', 2::smallint, 5::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), null)`,
    `enqueue('[{"kind":"k","priority":5}]')`,
    `enqueue('[{"kind":"k","metadata":[]}]')`,
    `enqueue('{}')`
  ]
  it.effect("is nothing that a claim could not hand out", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      for (const call of refused) {
        const error = yield* Effect.flip(sql.unsafe(`select * from awa.${call}`))
        assert.strictEqual(error._tag, "SqlError", call)
      }
      yield* Anything.enqueue(1)
      const engine = yield* QueueStorage.make
      const claimed = yield* engine.claim({
        queue: "default",
        limit: 10,
        owner: "00000000-0000-4000-8000-000000000001",
        nonce: "1",
        deadline: null,
        durability: "async"
      })
      assert.deepStrictEqual(claimed.map(({ args }) => args), [1])
    }).pipe(Effect.provide(MigratedLive())))
})

describe("the slots a claim looks at", () => {
  it.effect("are found again when the session remembers something else, and may be none", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const { claim } = yield* QueueStorage.make
      const claimed = (nonce: string) =>
        claim({ queue: "default", limit: 1, owner, nonce, deadline: null, durability: "async" })
      yield* Anything.enqueueMany([1, 2, 3, 4, 5])
      const remember = (layout: string) =>
        sql`select set_config('awa.queue_' || awa.layout_key('default'), ${layout}, false)`
      const [now] = yield* sql<{ table: number; version: string }>`
        select 'awa.lanes'::regclass::oid::int as table, awa.layout_version()::text as version`
      const nowhere = `{5,5,5,5},{7},{2},f,f,f`.replace(/({[^}]*})/g, "\"$1\"")
      const others = [
        `(${now!.table},0,default,${nowhere})`,
        `(${now!.table},,default,${nowhere})`,
        `(${now!.table},${now!.version},other,${nowhere})`,
        `(1,${now!.version},default,${nowhere})`,
        ""
      ]
      for (const [nonce, layout] of others.entries()) {
        yield* remember(layout)
        assert.strictEqual((yield* claimed(String(nonce))).length, 1, layout)
      }
      yield* sql`truncate awa.slots`
      yield* remember("")
      assert.deepStrictEqual(yield* claimed("9"), [])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.effect("are two ranges with as few others in them as can be", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const [row] = yield* sql<{ sets: number; missed: number; wasteful: number }>`
        with subset as materialized (
          select array(select i::smallint from generate_series(0, 9) i where n >> i & 1 = 1 order by i) as slots
          from generate_series(1, 1023) n
        ),
        ranged as materialized (
          select s.slots, awa.ranges_of(s.slots) as ranges,
            (
              select min(s.slots[g] - s.slots[1] + s.slots[cardinality(s.slots)] - s.slots[least(g + 1, cardinality(s.slots))])
              from generate_series(1, cardinality(s.slots)) g
            ) as least
          from subset s
        )
        select
          count(*)::int as sets,
          (count(*) filter (where exists (select from unnest(slots) t where not awa.is_within(t, ranges))))::int as missed,
          (count(*) filter (where ranges[2] - ranges[1] + ranges[4] - ranges[3] > least))::int as wasteful
        from ranged`
      assert.deepStrictEqual(row, { sets: 1023, missed: 0, wasteful: 0 })
    }).pipe(Effect.provide(MigratedLive())))
})
