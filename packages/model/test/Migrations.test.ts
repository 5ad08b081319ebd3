import { Database, Migrations, StorageSchemas } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer } from "effect"
import { migrations, rewrite } from "../src/internal/migrationText.js"
import { databaseWith, emptyDatabase, EmptyLive } from "./support/database.js"

const versions = migrations.map(({ version }) => version)
const newest = versions.at(-1)!
const lastOfControl = migrations.findLast(({ schema }) => schema === "control")!.version
const firstOfEngine = migrations.find(({ schema }) => schema === "engine")!.version

const ledger = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) =>
    sql<
      { target_schema: string; version: number }
    >`select target_schema, version from awa.schema_migrations order by 2, 1`
)

describe("run", () => {
  it.scopedLive("brings an empty database to the newest version, once", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* Migrations.status(), { _tag: "missing", schema: "awa" })
      assert.deepStrictEqual((yield* Migrations.run()).map(({ version }) => version), versions)
      assert.deepStrictEqual(yield* Migrations.status(), { _tag: "current" })
      assert.deepStrictEqual(yield* ledger, versions.map((version) => ({ target_schema: "awa", version })))
      assert.deepStrictEqual(yield* Migrations.run(), [])
      yield* Migrations.verify
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it.scopedLive("stops at a version and goes on from there", () =>
    Effect.gen(function*() {
      yield* Migrations.run({ through: firstOfEngine })
      assert.deepStrictEqual((yield* ledger).at(-1), { target_schema: "awa", version: firstOfEngine })
      const outdated = { schema: "awa", found: firstOfEngine, expected: newest }
      assert.deepStrictEqual(yield* Migrations.status(), { _tag: "outdated", ...outdated })
      assert.deepInclude(yield* Effect.flip(Migrations.verify), { _tag: "SchemaOutdated", ...outdated })
      const rest = yield* Migrations.run()
      assert.deepStrictEqual(rest.map(({ version }) => version), versions.filter((version) => version > firstOfEngine))
      yield* Migrations.verify
    }).pipe(Effect.provide(EmptyLive())))

  it.scopedLive("is safe when twenty processes start at once", () =>
    Effect.gen(function*() {
      const url = yield* emptyDatabase
      const applied = yield* Effect.forEach(
        Array.from({ length: 20 }),
        () => Effect.provide(Migrations.run(), Layer.fresh(Database.layer({ url, maxConnections: 1 }))),
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(
        applied.map(({ length }) => length).sort(),
        [...Array.from({ length: 19 }, () => 0), versions.length].sort()
      )
    }))

  it.scopedLive("refuses a database of another encoding, whose hashes of names would be others", () =>
    Effect.gen(function*() {
      const url = yield* databaseWith("encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
      yield* Effect.gen(function*() {
        const error = yield* Effect.flip(Migrations.run())
        assert.deepInclude(error, { _tag: "DatabaseError", sqlState: "0A000" })
        assert.include(error.message, "the encoding of the database is LATIN1 and must be UTF8")
        assert.deepStrictEqual(yield* Migrations.status(), { _tag: "missing", schema: "awa" })
      }).pipe(Effect.provide(Database.layer({ url })))
    }))

  it.scopedLive("refuses a server that is too old", () =>
    Effect.gen(function*() {
      const script = yield* Migrations.sql()
      const ofTheFuture = script.replace("< 150000", "< 990000")
      assert.notStrictEqual(ofTheFuture, script)
      const error = yield* Effect.flip(Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(ofTheFuture)))
      assert.match((error.cause as Error).message, /^PostgreSQL 15 or later is needed, this is \d/)
    }).pipe(Effect.provide(EmptyLive())))

  it.scopedLive("leaves no lock behind, and no trace of a run that failed", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* sql`create schema awa`
      yield* sql`create table awa.lanes (in_the_way int)`
      assert.deepInclude(yield* Effect.flip(Migrations.run()), {
        _tag: "DatabaseError",
        operation: "migrate",
        sqlState: "42P07"
      })
      assert.deepStrictEqual(yield* Migrations.status(), { _tag: "missing", schema: "awa" })
      yield* sql`drop table awa.lanes`
      yield* Migrations.run()
      assert.deepStrictEqual(
        yield* sql`select 1 from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`,
        []
      )
    }).pipe(Effect.provide(EmptyLive())))

  it.scopedLive("tries again after a deadlock", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* sql`create sequence tries`
      yield* sql.unsafe(`create function deadlock() returns event_trigger language plpgsql as $$
        begin if nextval('public.tries') <= 2 then raise exception using errcode = '40P01'; end if; end $$`)
      yield* sql`create event trigger deadlock on ddl_command_start execute function deadlock()`
      assert.lengthOf(yield* Migrations.run(), versions.length)
    }).pipe(Effect.provide(EmptyLive())))

  it.scopedLive("works whatever the connection's defaults are", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const [row] = yield* sql<{ name: string }>`select quote_ident(current_database()) as name`
      yield* sql.unsafe(`alter database ${row!.name} set default_transaction_isolation = 'serializable';
        alter database ${row!.name} set search_path = ''; alter database ${row!.name} set statement_timeout = '5s'`)
      const fresh = yield* Database.clone(yield* PgClient.PgClient, { maxConnections: 1 })
      yield* Migrations.run().pipe(Effect.provideService(SqlClient.SqlClient, fresh))
      yield* Migrations.verify
    }).pipe(Effect.provide(EmptyLive())))

  it.scopedLive("refuses names and numbers that cannot be", () =>
    Effect.gen(function*() {
      const settings: ReadonlyArray<readonly [Migrations.Options, string]> = [
        [{ through: 1.5 }, "through"],
        [{ schemas: { control: "Awa" } }, "schemas.control"],
        [{ schemas: { engine: "pg_jobs" } }, "schemas.engine"],
        [{ schemas: { engine: "a\"; drop schema public; --" } }, "schemas.engine"],
        [{ schemas: { engine: "x".repeat(64) } }, "schemas.engine"]
      ]
      for (const [options, setting] of settings) {
        assert.deepInclude(yield* Effect.flip(Migrations.run(options)), { _tag: "InvalidSetting", setting })
      }
    }).pipe(Effect.provide(EmptyLive())))
})

describe("what the ledger says", () => {
  const withLedger = (change: string, check: Effect.Effect<void, unknown, SqlClient.SqlClient>) =>
    Effect.gen(function*() {
      yield* Migrations.run()
      const sql = yield* SqlClient.SqlClient
      yield* sql.unsafe(change)
      const before = yield* ledger
      yield* check
      assert.deepStrictEqual(yield* ledger, before)
    }).pipe(Effect.provide(EmptyLive()))

  it.scopedLive("a newer schema is refused", () =>
    withLedger(
      "insert into awa.schema_migrations values ('awa', 9000, 'future', '')",
      Effect.gen(function*() {
        const newer = { schema: "awa", found: 9000, supported: newest }
        assert.deepStrictEqual(yield* Migrations.status(), { _tag: "newer", ...newer })
        for (const refusing of [Migrations.verify, Effect.asVoid(Migrations.run()), Effect.asVoid(Migrations.sql())]) {
          assert.deepInclude(yield* Effect.flip(refusing), { _tag: "SchemaTooNew", ...newer })
        }
      })
    ))

  it.scopedLive("a migration applied with other contents is refused", () =>
    withLedger(
      `update awa.schema_migrations set checksum = 'other' where version = ${firstOfEngine}`,
      Effect.gen(function*() {
        for (
          const refusing of [Migrations.verify, Effect.asVoid(Migrations.run()), Effect.asVoid(Migrations.status())]
        ) {
          assert.deepInclude(yield* Effect.flip(refusing), {
            _tag: "MigrationChanged",
            version: firstOfEngine,
            schema: "awa"
          })
        }
      })
    ))

  it.scopedLive("entries of another engine are nobody's business", () =>
    withLedger(
      "insert into awa.schema_migrations values ('elsewhere', 9000, 'future', '')",
      Effect.asVoid(Migrations.verify)
    ))

  it.scopedLive("control plane and engine are told apart", () =>
    Effect.gen(function*() {
      yield* Migrations.run({ through: lastOfControl, schemas: { engine: "jobs" } })
      assert.deepStrictEqual(yield* Migrations.status({ schemas: { engine: "jobs" } }), {
        _tag: "missing",
        schema: "jobs"
      })
      const missing = yield* Effect.flip(Effect.provide(Migrations.verify, StorageSchemas.layer({ engine: "jobs" })))
      assert.deepInclude(missing, { _tag: "SchemaMissing", schema: "jobs" })
    }).pipe(Effect.provide(EmptyLive())))
})

describe("sql", () => {
  const psql = (text: string) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(text))

  it.scopedLive("prints a script that does what run does", () =>
    Effect.gen(function*() {
      const schemas = { control: "ctl", engine: "jobs" }
      const first = yield* Migrations.sql({ schemas, through: lastOfControl })
      assert.deepStrictEqual(yield* Migrations.status({ schemas }), { _tag: "missing", schema: "ctl" })
      yield* psql(first)
      yield* psql(yield* Migrations.sql({ schemas }))
      assert.deepStrictEqual(yield* Migrations.status({ schemas }), { _tag: "current" })
      assert.deepStrictEqual(yield* Migrations.run({ schemas }), [])
      assert.strictEqual(yield* Migrations.sql({ schemas }), "-- nothing to do\n")
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))

  it("leaves no name of the files' own schema when the schemas are called otherwise", () => {
    for (const migration of migrations) {
      const text = rewrite(migration, { control: "ctl_x", engine: "jobs_x" })
      const left = text.split("\n").filter((line) =>
        /\bawa\b/.test(line.replace(/--.*|'awa:|'awa: .*|_(?:setting|config)\('awa\./g, ""))
      )
      assert.deepStrictEqual(left, [], migration.name)
    }
  })

  it.scopedLive("the files run under psql as they are", () =>
    Effect.gen(function*() {
      for (const { sql } of migrations) yield* psql(sql)
      const sql = yield* SqlClient.SqlClient
      assert.lengthOf(yield* sql`select ids from awa.enqueue('[{"kind":"a","args":1}]')`, 1)
    }).pipe(Effect.provide(EmptyLive({ maxConnections: 1 }))))
})
