import { EmbeddedPostgres } from "@awa/embedded"
import { Locks } from "@awa/model"
import { Jobs, TestDatabase, Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Awa, AwaLive, Database, Migrations } from "awa"
import { Effect, Exit, Layer, Logger } from "effect"
import * as Pg from "pg"
import { Greet, start } from "./support/worker.js"

const patient = { pollInterval: "1 hour", deadline: null } as const

const greeter = Awa.builder.pipe(Awa.queue("default", patient), Awa.handle(Greet, () => Effect.void))

/** The sessions of workers on this database. */
const sessions = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) =>
    sql<{ pid: number; application_name: string; query: string }>`
    select pid, application_name, query from pg_stat_activity
    where datname = current_database() and application_name like 'awa worker%'`
)

const terminate = (which: "listen" | "maintenance") =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const [lockClass, key] = which === "listen" ? Locks.idleLock("awa", "default") : Locks.maintenanceLock("awa")
    yield* sql`
      select pg_terminate_backend(pid) from pg_locks
      where locktype = 'advisory' and classid::bigint = ${lockClass >>> 0} and objid::bigint = ${key >>> 0}
        and database = (select oid from pg_database where datname = current_database())`
  })

const warnings = () => {
  const lines: Array<string> = []
  const layer = Logger.replace(
    Logger.defaultLogger,
    Logger.make(({ logLevel, message }) => {
      if (logLevel.label === "WARN") lines.push(String(message))
    })
  )
  return { lines, layer }
}

describe("connections of a worker", () => {
  it.scopedLive("an idle queue is woken by the notification, long before the poll", () =>
    Effect.gen(function*() {
      const { signals } = yield* start(greeter)
      yield* signals.until("it sleeps", () => signals.all("asleep").some(({ marked }) => marked))
      yield* Greet.enqueue({ name: "Ada" })
      yield* signals.until("it ran", () => signals.flushed().length === 1)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.scopedLive("a listener that is killed comes back, claims what was missed, and is notified again", () =>
    Effect.gen(function*() {
      const { awa, signals } = yield* start(greeter)
      yield* signals.until("it sleeps", () => signals.all("asleep").some(({ marked }) => marked))
      const down = yield* Effect.fork(signals.next("listening"))
      yield* terminate("listen")
      yield* down.await
      yield* signals.until("it listens again", () => signals.all("listening").length === 3)
      yield* signals.until(
        "it sleeps, marked again",
        () => signals.all("asleep").filter(({ marked }) => marked).length >= 2
      )
      yield* Greet.enqueue({ name: "Ada" })
      yield* signals.until("it ran", () => signals.flushed().length === 1)
      assert.isTrue((yield* awa.healthCheck).listening)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.scopedLive("a leader that is killed steps down, and one of two leads again", () =>
    Effect.gen(function*() {
      const quick = greeter.pipe(Awa.maintenance({ leaderElectionInterval: "100 millis" }))
      const one = yield* start(quick)
      const two = yield* start(quick)
      const changes = () => [...one.signals.all("leader"), ...two.signals.all("leader")]
      const leading = () => changes().filter((change) => change.leading).length
      const either = (what: string, accepts: () => boolean) =>
        Effect.raceFirst(one.signals.until(what, accepts), two.signals.until(what, accepts))
      yield* either("one leads", () => leading() === 1)
      yield* terminate("maintenance")
      // The other may lead before the one whose session ended has noticed.
      yield* either("one leads again, one stepped down", () => changes().length === 3)
      assert.strictEqual(leading(), 2)
      yield* Greet.enqueue({ name: "Ada" }, { runAt: new Date(Date.now() + 500) })
      yield* either("it ran", () => one.signals.flushed().length + two.signals.flushed().length === 1)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.scopedLive("a worker leaves no session, no lock and no running job behind", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* Effect.scoped(Effect.gen(function*() {
        const { awa, signals } = yield* start(greeter)
        yield* signals.until("it leads", () => signals.all("leader").length >= 1)
        // It may sleep before it listens, but not with a mark.
        yield* signals.until("it sleeps", () => signals.all("asleep").some(({ marked }) => marked))
        assert.isAtLeast((yield* sessions).length, 3)
        assert.deepInclude(yield* awa.healthCheck, { healthy: true, leader: true, listening: true })
        yield* Greet.enqueue({ name: "Ada" })
      }))
      // The server notices a moment later.
      yield* Wait.eventually(Effect.map(sessions, (left) => assert.deepStrictEqual(left, [])))
      const [{ locks } = { locks: -1 }] = yield* sql<{ locks: number }>`
        select count(*)::int as locks from pg_locks
        where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`
      assert.strictEqual(locks, 0)
      assert.strictEqual((yield* Jobs.countByState()).running, 0)
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.scopedLive("an application's pool of one connection, all taken, does not starve the worker", () =>
    Effect.gen(function*() {
      const { signals } = yield* start(greeter)
      yield* Greet.enqueue({ name: "Ada" })
      yield* Database.transaction(signals.until("it ran", () => signals.flushed().length === 1))
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer({ maxConnections: 1 }))))

  it.scopedLive("an isolation level set for the whole database does not reach the worker", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const { name } = yield* TestDatabase.TestDatabase
      yield* sql`alter database ${sql(name)} set default_transaction_isolation to 'repeatable read'`
      const { signals } = yield* start(greeter)
      yield* Greet.enqueue({ name: "Ada" })
      yield* signals.until("it ran", () => signals.flushed().length === 1)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.scopedLive("polling only, it uses nothing that outlives a transaction", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const { awa, signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("default", { pollInterval: "50 millis" }),
          Awa.connections({ notifications: "poll" }),
          Awa.handle(Greet, () => Effect.void)
        )
      )
      yield* signals.until("it sleeps", () => signals.all("asleep").length >= 1)
      yield* Greet.enqueue({ name: "Ada" })
      yield* signals.until("it ran", () => signals.flushed().length === 1)
      const locks = yield* sql`select from pg_locks where locktype = 'advisory' and granted
        and database = (select oid from pg_database where datname = current_database())`
      assert.deepStrictEqual(locks, [])
      assert.isTrue((yield* sessions).every(({ query }) => !/listen|set session/i.test(query)))
      assert.deepInclude(yield* awa.healthCheck, { healthy: true, listening: false, leader: true })
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.scopedLive("a client that cannot tell its configuration is shared, with a warning", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.make()
      const { database, host, password, port, user } = new Pg.Client(url)
      const pool = Effect.acquireRelease(
        Effect.sync(() =>
          // It has ended before its sessions have, and the database is dropped beneath them.
          new Pg.Pool({ database, host, port, user, password: async () => String(password) }).on("error", () => {})
        ),
        (pool) => Effect.promise(() => pool.end())
      )
      const { layer, lines } = warnings()
      yield* Effect.gen(function*() {
        const { awa, signals } = yield* start(
          Awa.builder.pipe(Awa.queue("default", { pollInterval: "50 millis" }), Awa.handle(Greet, () => Effect.void))
        )
        yield* Greet.enqueue({ name: "Ada" })
        yield* signals.until("it ran", () => signals.flushed().length === 1)
        assert.isFalse((yield* awa.healthCheck).listening)
      }).pipe(Effect.scoped, Effect.provide(PgClient.layerFromPool({ acquire: pool })), Effect.provide(layer))
      assert.strictEqual(lines.filter((line) => line.includes("does not tell")).length, 1)
    }))
})

describe("starting a worker", () => {
  const failure = <E, R, Kinds extends string>(builder: Awa.Builder<E, R, Kinds>) =>
    Effect.flip(Effect.scoped(Layer.build(AwaLive(builder))))

  it.scopedLive("is refused without the schema, with an older and with a newer one", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const one = yield* failure(greeter)
      assert.strictEqual(one._tag, "SchemaMissing")
      yield* Migrations.run({ through: 10 })
      const two = yield* failure(greeter)
      assert.strictEqual(two._tag, "SchemaOutdated")
      yield* Migrations.run()
      yield* sql`insert into awa.schema_migrations (target_schema, version, name, checksum) values ('awa', 9999, 'x', 'x')`
      const three = yield* failure(greeter)
      assert.strictEqual(three._tag, "SchemaTooNew")
      assert.deepStrictEqual(yield* sessions, [])
    }).pipe(
      Effect.provide(Layer.unwrapScoped(Effect.gen(function*() {
        const server = yield* EmbeddedPostgres.make({ fsync: false })
        return Database.layer({ url: server.url })
      })))
    ))

  it.scopedLive("is refused with a wrong setting before anything is asked of the database", () =>
    Effect.gen(function*() {
      const error = yield* failure(Awa.builder.pipe(Awa.queue("default", { maxWorkers: 0 })))
      assert.strictEqual(error._tag, "InvalidMaxWorkers")
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.scopedLive("is refused when the database is gone", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      yield* Effect.gen(function*() {
        yield* Migrations.run()
        yield* server.stop("fast")
        const error = yield* failure(greeter)
        assert.strictEqual(error._tag, "ConnectionFailed")
        assert.notInclude(error.message, "password")
      }).pipe(Effect.provide(Database.layer({ url: server.url })))
    }))
})

describe("a database that goes away", () => {
  it.scopedLive("costs no result and no worker", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      yield* Effect.gen(function*() {
        yield* Migrations.run()
        const gate = yield* Effect.makeLatch(false)
        const { awa, signals } = yield* start(
          Awa.builder.pipe(
            Awa.queue("default", { maxWorkers: 20 }),
            Awa.claimDurability("sync"),
            Awa.handle(Greet, () => gate.await)
          )
        )
        const ids = yield* Greet.enqueueMany(Array.from({ length: 30 }, (_, i) => ({ name: `${i}` })))
        yield* signals.until("twenty run", () => signals.all("claimed").some(({ count }) => count === 20))
        yield* server.stop("immediate")
        yield* gate.open
        yield* signals.until("storing failed twice", () =>
          signals.all("failed").filter(({ loop }) => loop === "completion").length >= 2)
        assert.isFalse((yield* awa.healthCheck).healthy)
        yield* server.start
        yield* signals.until("all are stored", () =>
          signals.flushed().length === 30)
        assert.isTrue(signals.flushed().every(({ verdict }) => verdict !== "refused"))
        assert.strictEqual((yield* Jobs.countByState()).completed, ids.length)
        yield* signals.until("it listens again", () => signals.all("listening").at(-1)?.up === true)
        assert.isTrue((yield* awa.healthCheck).healthy)
      }).pipe(Effect.scoped, Effect.provide(Database.layer({ url: server.url })))
    }))

  it.scopedLive("does not keep a worker from shutting down in time", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      yield* Effect.gen(function*() {
        yield* Migrations.run()
        const { awa, signals } = yield* start(greeter)
        yield* signals.until("it sleeps", () => signals.all("asleep").length >= 1)
        yield* server.kill
        const exit = yield* awa.shutdown("2 seconds").pipe(Effect.timeout("4 seconds"), Effect.exit)
        assert.isTrue(Exit.isSuccess(exit))
      }).pipe(Effect.scoped, Effect.provide(Database.layer({ url: server.url })))
    }))
})
