import { Database, Errors } from "@awa/model"
import { SqlClient, type SqlError } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import {
  Cause,
  Config,
  ConfigProvider,
  Context,
  Deferred,
  Effect,
  Exit,
  Fiber,
  Layer,
  Option,
  Redacted,
  Ref,
  TestClock
} from "effect"
import * as Pg from "pg"
import { emptyDatabase, EmptyLive } from "./support/database.js"

const failureOf = <A, E>(exit: Exit.Exit<A, E>): E | undefined =>
  Option.getOrUndefined(Option.flatMap(Exit.causeOption(exit), Cause.failureOption))

const table = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) =>
    sql.unsafe(
      "create table t (n int); create table parent (id int primary key); " +
        "create table child (id int references parent deferrable initially deferred)"
    )
)

const insert = (n: number) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql`insert into t values (${n})`)

const numbers = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) => Effect.map(sql<{ n: number }>`select n from t order by n`, (rows) => rows.map(({ n }) => n))
)

const backend = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) => Effect.map(sql<{ pid: number }>`select pg_backend_pid() as pid`, ([row]) => row!.pid)
)

describe("transaction", () => {
  it.scopedLive("commits on success, rolls back on failure, defect and interruption", () =>
    Effect.gen(function*() {
      yield* table
      assert.strictEqual(yield* Database.transaction(Effect.as(insert(1), "done")), "done")
      assert.strictEqual(yield* Effect.flip(Database.transaction(Effect.zipRight(insert(2), Effect.fail("no")))), "no")
      assert.isTrue(
        Exit.isFailure(yield* Effect.exit(Database.transaction(Effect.zipRight(insert(3), Effect.die("bug")))))
      )
      const inside = yield* Deferred.make<void>()
      const fiber = yield* Effect.fork(
        Database.transaction(
          Effect.zipRight(insert(4), Effect.zipRight(Deferred.succeed(inside, undefined), Effect.never))
        )
      )
      yield* Deferred.await(inside)
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(yield* numbers, [1])
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it.scopedLive("nests as savepoints, in itself and in the client's own transactions", () =>
    Effect.gen(function*() {
      yield* table
      const sql = yield* SqlClient.SqlClient
      const failing = (n: number) => Effect.zipRight(insert(n), Effect.fail("no"))
      yield* Database.transaction(Effect.gen(function*() {
        yield* insert(1)
        yield* Effect.flip(Database.transaction(failing(2)))
        yield* Database.transaction(insert(3))
        yield* Effect.flip(sql.withTransaction(failing(4)))
        yield* Database.transaction(Effect.zipRight(insert(5), Effect.ignore(Database.transaction(failing(6)))))
      }))
      yield* sql.withTransaction(Effect.zipRight(insert(7), Effect.ignore(Database.transaction(failing(8)))))
      assert.deepStrictEqual(yield* numbers, [1, 3, 5, 7])
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it.scopedLive("fails, typed, when COMMIT does", () =>
    Effect.gen(function*() {
      yield* table
      const sql = yield* SqlClient.SqlClient
      const exit = yield* Effect.exit(
        Database.transaction(Effect.zipRight(insert(1), sql`insert into child values (1)`))
      )
      const error = failureOf(exit)
      assert.deepInclude(error, { _tag: "DatabaseError", operation: "commit", sqlState: "23503" })
      assert.isFalse(Database.isTransient(error))
      assert.deepStrictEqual(yield* numbers, [])
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it.scopedLive("fails, typed, when a swallowed failure made COMMIT a ROLLBACK", () =>
    Effect.gen(function*() {
      yield* table
      const sql = yield* SqlClient.SqlClient
      const swallowing = Effect.zipRight(insert(1), Effect.ignore(sql`select 1/0`))
      const error = yield* Effect.flip(Database.transaction(swallowing))
      assert.deepInclude(error, { _tag: "DatabaseError", operation: "commit", sqlState: "25P02" })
      assert.include(error.message, "a statement in it had failed and its failure was ignored")

      yield* Database.transaction(Effect.gen(function*() {
        yield* insert(2)
        const inner = yield* Effect.flip(Database.transaction(swallowing))
        assert.deepInclude(inner, { _tag: "DatabaseError", operation: "release savepoint", sqlState: "25P02" })
        yield* insert(3)
      }))
      assert.deepStrictEqual(yield* numbers, [2, 3])
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it.scopedLive("fails, typed, when the connection dies, and the pool recovers", () =>
    Effect.gen(function*() {
      yield* table
      const kill = Effect.gen(function*() {
        const pid = yield* backend
        const sql = yield* SqlClient.SqlClient
        yield* Database.outsideTransaction(sql`select pg_terminate_backend(${pid}, 5000)`)
      })
      const first = yield* Effect.exit(Database.transaction(Effect.zipRight(kill, insert(1))))
      assert.strictEqual((failureOf(first) as SqlError.SqlError)._tag, "SqlError")
      assert.isTrue(Database.isTransient(failureOf(first)))
      const atCommit = failureOf(yield* Effect.exit(Database.transaction(Effect.zipRight(insert(2), kill))))
      assert.deepInclude(atCommit, { _tag: "DatabaseError", operation: "commit" })
      assert.isFalse(Database.isTransient(atCommit), "a COMMIT in doubt must not be repeated blindly")
      assert.include((atCommit as Errors.DatabaseError).message, "Whether the transaction took effect is unknown")
      const failed = failureOf(yield* Effect.exit(Database.transaction(Effect.zipRight(kill, Effect.fail("mine")))))
      assert.strictEqual(failed, "mine")
      yield* Database.transaction(insert(3))
      assert.deepStrictEqual(yield* numbers, [3])
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 2 }))))

  it.scopedLive("sets the isolation of the outermost", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const isolation = Effect.map(sql`show transaction_isolation`, ([row]) => row!["transaction_isolation"])
      for (const level of ["read committed", "repeatable read", "serializable"] as const) {
        const nested = Database.transaction(isolation, { isolation: "read committed" })
        assert.deepStrictEqual(yield* Database.transaction(Effect.zip(isolation, nested), { isolation: level }), [
          level,
          level
        ])
      }
    }).pipe(Effect.provide(EmptyLive())))

  it.scopedLive("outsideTransaction leaves it", () =>
    Effect.gen(function*() {
      yield* table
      yield* Effect.flip(Database.transaction(Effect.gen(function*() {
        yield* insert(1)
        yield* Database.outsideTransaction(Effect.zipRight(insert(2), Database.transaction(insert(3))))
        return yield* Effect.fail("no")
      })))
      assert.deepStrictEqual(yield* numbers, [2, 3])
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 2 }))))
})

describe("pinned", () => {
  it.scopedLive("keeps one connection, on which a transaction is a real one", () =>
    Effect.gen(function*() {
      yield* table
      yield* Database.pinned(Effect.gen(function*() {
        const pid = yield* backend
        const sql = yield* SqlClient.SqlClient
        yield* sql`set application_name = 'pinned'`
        assert.strictEqual(yield* Database.transaction(Effect.zipRight(insert(1), backend)), pid)
        assert.strictEqual(yield* sql.withTransaction(Effect.zipRight(insert(2), backend)), pid)
        yield* Effect.flip(Database.transaction(Effect.zipRight(insert(3), Effect.fail("no"))))
        assert.strictEqual(yield* backend, pid)
        assert.deepStrictEqual(yield* Database.outsideTransaction(numbers), [1, 2])
      }))
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 2 }))))

  it.scopedLive("gives the connection back when it is interrupted while waiting for it", () =>
    Effect.gen(function*() {
      const held = yield* Deferred.make<void>()
      const letGo = yield* Deferred.make<void>()
      const holder = yield* Effect.fork(
        Database.pinned(Effect.zipRight(Deferred.succeed(held, undefined), Deferred.await(letGo)))
      )
      yield* Deferred.await(held)
      const waiting = yield* Effect.forEach([Database.pinned(backend), Database.transaction(backend)], (effect) =>
        Effect.fork(effect))
      const interruption = yield* Effect.fork(Fiber.interruptAll(waiting))
      yield* Deferred.succeed(letGo, undefined)
      yield* Fiber.join(holder)
      yield* Fiber.join(interruption)
      assert.isNumber(yield* Database.pinned(backend))
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it.scopedLive("fails, typed, when the pool stays busy", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Database.pinned(Database.pinned(backend)))
      assert.deepInclude(error, { _tag: "ConnectionFailed", reason: "timeout" })
      assert.include(error.message, "raise connectTimeout or maxConnections")
      assert.strictEqual(
        (yield* Effect.flip(Database.pinned(Database.outsideTransaction(Database.transaction(backend)))))._tag,
        "ConnectionFailed"
      )
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1, connectTimeout: "2 seconds" }))))
})

describe("failures", () => {
  const failing = (sqlState: string | null, operation = "test") =>
    Effect.fail(new Errors.DatabaseError({ operation, sqlState, cause: new Error("no") }))

  const triesOf = <E>(
    failing: Effect.Effect<never, E>,
    wrap: (self: Effect.Effect<never, E>) => Effect.Effect<never, E>
  ) =>
    Effect.gen(function*() {
      const tries = yield* Ref.make(0)
      const fiber = yield* Effect.fork(wrap(Effect.zipRight(Ref.update(tries, (n) => n + 1), failing)))
      yield* TestClock.adjust("1 minute")
      yield* Effect.exit(Fiber.join(fiber))
      return yield* Ref.get(tries)
    })

  it.effect("retryTransient repeats what may succeed", () =>
    Effect.gen(function*() {
      const refused = new Errors.ConnectionFailed({ reason: "refused", target: "here", cause: new Error("no") })
      const denied = new Errors.ConnectionFailed({ reason: "authentication", target: "here", cause: new Error("no") })
      for (
        const effect of [
          failing("40001"),
          failing("40P01"),
          failing("57P01"),
          failing("08006"),
          failing(null),
          Effect.fail(refused)
        ]
      ) {
        assert.strictEqual(yield* triesOf<unknown>(effect, Database.retryTransient), 6)
      }
      for (
        const effect of [
          failing("22012"),
          failing("42501"),
          failing(null, "commit"),
          failing("57P01", "commit"),
          Effect.fail(denied),
          Effect.fail("x")
        ]
      ) {
        assert.strictEqual(yield* triesOf<unknown>(effect, Database.retryTransient), 1)
      }
    }))

  it.effect("retryTransient repeats nothing inside a transaction, for that is what must be repeated", () =>
    Effect.gen(function*() {
      const inside = (depth: number) => (self: Effect.Effect<never, unknown>) =>
        Effect.provideService(Database.retryTransient(self), SqlClient.TransactionConnection, [
          undefined as never,
          depth
        ])
      assert.strictEqual(yield* triesOf(failing("40001"), inside(0)), 1)
      assert.strictEqual(yield* triesOf(failing("40001"), inside(-1)), 6)
    }))

  it.scopedLive("fromSqlError tells what an operator must act upon", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const failure = (text: string) =>
        Effect.flip(Effect.catchTag(sql.unsafe(text), "SqlError", Database.fromSqlError("test")))
      for (const text of ["select * from awa.nothing", "select nothing.at_all()", "select awa()"]) {
        assert.deepInclude(yield* failure(text), { _tag: "SchemaMissing", schema: "awa" })
      }
      const denied = yield* failure(
        "do $$ begin raise insufficient_privilege using message = 'permission denied for x'; end $$"
      )
      assert.strictEqual(
        denied.message,
        "Database operation \"test\" is not permitted to this role: permission denied for x. The owner of the schema can grant it: see Migrations.grants."
      )
      const other = yield* failure("select 1/0")
      assert.deepInclude(other, { _tag: "DatabaseError", operation: "test", sqlState: "22012" })
      assert.strictEqual(
        other.message,
        "Database operation \"test\" failed: division by zero (SQLSTATE 22012). Trying again will not help: see the cause."
      )
      const sqlError = yield* Effect.flip(sql`select 1/0`)
      assert.strictEqual(Database.describe(sqlError), "division by zero")
      assert.deepStrictEqual([sqlError, other, "nothing"].map(Database.sqlState), [
        Option.some("22012"),
        Option.some("22012"),
        Option.none()
      ])
    }).pipe(Effect.provide(EmptyLive())))
})

describe("clients", () => {
  it.scopedLive("layerConfig reads the options from Config", () =>
    Effect.gen(function*() {
      const url = yield* emptyDatabase
      yield* backend.pipe(
        Effect.provide(
          Database.layerConfig({ url: Config.redacted("DATABASE_URL"), maxConnections: Config.integer("POOL") })
        ),
        Effect.withConfigProvider(ConfigProvider.fromMap(new Map([["DATABASE_URL", url], ["POOL", "3"]])))
      )
    }))

  it.scopedLive("options come before the URL", () =>
    Effect.gen(function*() {
      const url = new URL(yield* emptyDatabase)
      const password = url.password
      url.password = ""
      url.searchParams.set("application_name", "from the URL")
      const name = Effect.flatMap(SqlClient.SqlClient, (sql) => sql`select current_setting('application_name') as name`)
      let asked = 0
      const provider = async () => {
        asked++
        return password
      }
      assert.deepStrictEqual(yield* Effect.provide(name, Database.layer({ url: url.href, password })), [{
        name: "from the URL"
      }])
      assert.deepStrictEqual(
        yield* Effect.provide(name, Database.layer({ url: url.href, password: provider, applicationName: "mine" })),
        [{ name: "mine" }]
      )
      assert.strictEqual(asked, 1)
      url.searchParams.delete("application_name")
      assert.deepStrictEqual(
        yield* Effect.provide(name, Database.layer({ url: url.href, password: Redacted.make(password) })),
        [{ name: "awa" }]
      )
    }))

  it.scopedLive("clone and connectionConfig connect like the original, password function included", () =>
    Effect.gen(function*() {
      const url = new URL(yield* emptyDatabase)
      const { password } = url
      url.password = ""
      const types = { getTypeParser: () => String } as never
      const context = yield* Layer.build(Database.layer({ url: url.href, password: async () => password, types }))
      const original = Context.get(context, PgClient.PgClient)
      const cloned = yield* Database.clone(original, { maxConnections: 1, applicationName: "clone" })
      assert.deepStrictEqual(
        yield* cloned`select current_setting('application_name') as name, 1 as n`,
        [{ name: "clone", n: 1 }]
      )
      const again = yield* Database.clone(cloned.withoutTransforms(), { maxConnections: 1 })
      assert.lengthOf(yield* again`select 1`, 1)
      const client = new Pg.Client(Redacted.value(yield* Database.connectionConfig(original)))
      yield* Effect.promise(() => client.connect())
      yield* Effect.promise(() => client.end())
    }))
})
