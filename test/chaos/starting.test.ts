/**
 * What keeps a worker from starting: each has an error of its own that says what to do, and nothing is left running.
 */
import { EmbeddedPostgres } from "@awa/embedded"
import { Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Awa, AwaLive, Database, Migrations } from "awa"
import { Effect, Layer, ManagedRuntime } from "effect"
import { Work } from "./support/work.js"

const worker = Awa.builder.pipe(Awa.queue("default"), Awa.handle(Work, () => Effect.void))

const servers = ManagedRuntime.make(EmbeddedPostgres.layer({ fsync: false }))

beforeAll(() => servers.runPromise(Effect.void))
afterAll(() => servers.dispose())

const Server = Layer.effect(
  EmbeddedPostgres.EmbeddedPostgres,
  Effect.promise(() => servers.runPromise(EmbeddedPostgres.EmbeddedPostgres))
)

/** Sessions and locks in a database, but for those of the client that looks. */
const left = Effect.flatMap(SqlClient.SqlClient, (sql) =>
  sql<{ sessions: number; locks: number }>`
    select
      (select count(*)::int from pg_stat_activity
        where datname = current_database() and application_name <> 'looking') as sessions,
      (select count(*)::int from pg_locks
        where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())) as locks`)

/** Starts a worker on a database that was prepared for it, and answers why it did not work. */
const refusal = <E, R>(
  database: string,
  prepare: Effect.Effect<unknown, E, R>,
  rewrite: (url: string) => string = (url) => url
) =>
  Effect.gen(function*() {
    const server = yield* EmbeddedPostgres.EmbeddedPostgres
    const url = yield* server.createDatabase(database)
    const look = Database.layer({ url, applicationName: "looking" })
    return yield* Effect.gen(function*() {
      yield* prepare
      const error = yield* AwaLive(worker).pipe(
        Layer.provide(Database.layer({ url: rewrite(url) })),
        Layer.build,
        Effect.scoped,
        Effect.flip
      )
      yield* Wait.eventually(Effect.map(left, (rows) => assert.deepStrictEqual(rows, [{ sessions: 0, locks: 0 }])))
      assert.notInclude(error.message, new URL(url).password)
      return error
    }).pipe(Effect.provide(look))
  }).pipe(Effect.provide(Server))

const execute = (statement: string) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(statement))

const broken = (statement: string) => Effect.zipRight(Migrations.run(), execute(statement))

describe("a worker does not start", () => {
  it.live("with a wrong password", () =>
    Effect.gen(function*() {
      const error = yield* refusal("one", Migrations.run(), (url) => {
        const wrong = new URL(url)
        wrong.password = "not-it"
        return wrong.href
      })
      assert.deepInclude(error, { _tag: "ConnectionFailed", reason: "authentication" })
      assert.include(error.message, "Check user name and password")
      assert.notInclude(error.message, "not-it")
    }))

  it.live("without the database", () =>
    Effect.gen(function*() {
      const error = yield* refusal("two", Migrations.run(), (url) => `${url}_missing`)
      assert.deepInclude(error, { _tag: "ConnectionFailed", reason: "database-missing" })
      assert.match(error.message, /two_missing.*Create the database/)
    }))

  it.live("without the schema", () =>
    Effect.gen(function*() {
      const error = yield* refusal("three", Effect.void)
      assert.strictEqual(error._tag, "SchemaMissing")
      assert.include(error.message, "Run the migrations")
    }))

  it.live("with an older schema", () =>
    Effect.gen(function*() {
      const error = yield* refusal("four", Migrations.run({ through: 10 }))
      assert.deepInclude(error, { _tag: "SchemaOutdated", found: 10 })
      assert.include(error.message, "Run the migrations")
    }))

  it.live("with a newer schema", () =>
    Effect.gen(function*() {
      const error = yield* refusal(
        "five",
        broken(
          `insert into awa.schema_migrations (target_schema, version, name, checksum) values ('awa', 9999, 'x', 'x')`
        )
      )
      assert.deepInclude(error, { _tag: "SchemaTooNew", found: 9999 })
      assert.include(error.message, "Upgrade the library")
    }))

  it.live("with a migration that is not what it was", () =>
    Effect.gen(function*() {
      const error = yield* refusal("six", broken("update awa.schema_migrations set checksum = 'x' where version = 12"))
      assert.deepInclude(error, { _tag: "MigrationChanged", version: 12 })
      assert.include(error.message, "Use the version of the library that applied it")
    }))

  it.live("on data of another cluster", () =>
    Effect.gen(function*() {
      const error = yield* refusal("seven", broken("update awa.epochs set system_identifier = 7"))
      assert.deepInclude(error, { _tag: "ForeignDatabase", expected: "7" })
      assert.include(error.message, "Connect to the cluster they belong to")
    }))

  for (const [i, sequence] of ["pos_seq", "batch_seq"].entries()) {
    it.live(`with ${sequence} caching`, () =>
      Effect.gen(function*() {
        const error = yield* refusal(`eight${i}`, broken(`alter sequence awa.${sequence} cache 10`))
        assert.strictEqual(error._tag, "StorageInconsistent")
        assert.include(error.message, `ALTER SEQUENCE awa.${sequence} CACHE 1`)
      }))
  }

  it.live("without the rights, and starts with those that are granted", () =>
    Effect.gen(function*() {
      const asRole = (url: string) => {
        const its = new URL(url)
        its.username = "worker_role"
        its.password = "secret"
        return its.href
      }
      const role = execute("create role worker_role login password 'secret'")
      const error = yield* refusal("nine", Effect.zipRight(Migrations.run(), role), asRole)
      assert.strictEqual(error._tag, "PermissionDenied")
      assert.include(error.message, "grants")

      const server = yield* EmbeddedPostgres.EmbeddedPostgres
      const url = server.urlOf("nine")
      yield* Effect.provide(
        Effect.flatMap(Migrations.grants({ role: "worker_role", as: "worker" }), execute),
        Database.layer({ url })
      )
      const health = yield* Effect.flatMap(Awa.Awa, ({ healthCheck }) => healthCheck).pipe(
        Effect.provide(AwaLive(worker)),
        Effect.provide(Database.layer({ url: asRole(url) }))
      )
      assert.isTrue(health.healthy)
    }).pipe(Effect.provide(Server)))
})
