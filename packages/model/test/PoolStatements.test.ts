/** Statements that go straight to the pool of a client `Database` made: what they share with all others. */
import { Database, Job } from "@awa/model"
import { SqlClient, Statement } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Fiber, Schema, Tracer } from "effect"
import { MigratedLive } from "./support/database.js"

const Anything = Job.make("anything", { payload: Schema.Unknown })

/** A second pool, for who looks on. */
const observer = Effect.flatMap(PgClient.PgClient, (client) => Database.clone(client, { maxConnections: 2 }))

const stored = (sql: SqlClient.SqlClient) =>
  Effect.map(sql<{ n: number }>`select args::int as n from awa.jobs order by id`, (rows) => rows.map(({ n }) => n))

/** Until an enqueue waits for a lock of somebody else. Answers its backend. */
const blocked = (sql: SqlClient.SqlClient) =>
  sql<{ pid: number }>`
    select pid from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%enqueue_one%'`.pipe(
    Effect.map(([row]) => row?.pid),
    Effect.repeat({ until: (pid) => pid !== undefined }),
    Effect.map((pid) => pid!)
  )

/** Runs an effect while somebody else keeps enqueues from writing. */
const whileLocked = <A, E, R>(sql: SqlClient.SqlClient, effect: Effect.Effect<A, E, R>) =>
  sql`lock table awa.ready_entries in access exclusive mode`.pipe(
    Effect.zipRight(Effect.provideService(Database.outsideTransaction(effect), SqlClient.SqlClient, sql)),
    Database.transaction,
    Effect.provideService(SqlClient.SqlClient, sql)
  )

describe("enqueue on a pool", () => {
  it.scopedLive("leaves the line for a connection when it is interrupted", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const taken = yield* Deferred.make<void>()
      const leave = yield* Deferred.make<void>()
      const holder = yield* Effect.fork(
        Database.pinned(Effect.zipRight(Deferred.succeed(taken, undefined), Deferred.await(leave)))
      )
      yield* Deferred.await(taken)
      const waiting = yield* Effect.fork(Anything.enqueue(1))
      yield* Effect.yieldNow()
      yield* Fiber.interrupt(waiting)
      yield* Deferred.succeed(leave, undefined)
      yield* Fiber.join(holder)
      yield* Anything.enqueue(2)
      assert.deepStrictEqual(yield* stored(sql), [2])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.scopedLive("waits for nothing when it is interrupted, and keeps its connection until the answer", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const onlooker = yield* observer
      yield* Anything.enqueue(1)
      const sent = yield* Effect.fork(
        whileLocked(
          onlooker,
          Effect.gen(function*() {
            const enqueueing = yield* Effect.forkDaemon(
              Effect.provideService(Anything.enqueue(2), SqlClient.SqlClient, sql)
            )
            yield* blocked(onlooker)
            yield* Fiber.interrupt(enqueueing)
          })
        )
      )
      yield* Fiber.join(sent)
      // The one connection answers in the order of the statements.
      assert.deepStrictEqual(yield* stored(sql), [1, 2])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.scopedLive("fails, typed, when its connection dies, and the pool recovers", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const onlooker = yield* observer
      yield* Anything.enqueue(1)
      const error = yield* whileLocked(
        onlooker,
        Effect.gen(function*() {
          const enqueueing = yield* Effect.fork(
            Effect.flip(Effect.provideService(Anything.enqueue(2), SqlClient.SqlClient, sql))
          )
          const pid = yield* blocked(onlooker)
          yield* onlooker`select pg_terminate_backend(${pid}, 5000)`
          return yield* Fiber.join(enqueueing)
        })
      )
      assert.isTrue(Database.isTransient(error))
      yield* Anything.enqueue(3)
      assert.deepStrictEqual(yield* stored(sql), [1, 3])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.scopedLive("is in the caller's transaction", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* Effect.flip(Database.transaction(Effect.zipRight(Anything.enqueue(1), Effect.fail("no"))))
      yield* Database.transaction(Anything.enqueue(2))
      assert.deepStrictEqual(yield* stored(sql), [2])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.scopedLive("goes through the application's transformer of statements", () =>
    Effect.gen(function*() {
      const seen: Array<string> = []
      yield* Anything.enqueue(1).pipe(Statement.withTransformer((statement) => {
        seen.push(statement.compile()[0])
        return Effect.succeed(statement)
      }))
      assert.strictEqual(seen.filter((text) => text.includes("enqueue_one")).length, 1)
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.scopedLive("has the span of a statement where somebody traces", () =>
    Effect.gen(function*() {
      const names: Array<string> = []
      const native = yield* Effect.tracer
      const tracer = Tracer.make({
        span: (...args) => {
          names.push(args[0])
          return native.span(...args)
        },
        context: (f) => f()
      })
      yield* Effect.withTracer(Anything.enqueue(1), tracer)
      assert.includeMembers(names, ["send default", "sql.execute"])
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  it.scopedLive("takes rows as the database sends them, whatever the client transforms", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* Anything.enqueue(1)).id, 1n)
    }).pipe(
      Effect.provide(MigratedLive({
        maxConnections: 1,
        transformResultNames: (name) => name.toUpperCase()
      }))
    ))
})
