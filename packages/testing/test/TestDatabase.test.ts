import { Database, Job, Migrations, StorageSchemas } from "@awa/model"
import { Jobs, TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Config, ConfigProvider, Console, Effect, Layer, Schema } from "effect"

const Work = Job.make("work", { payload: Schema.Int })

const prefix = Config.string("AWA_TEST_PREFIX")

/** As the administrator. */
const admin = <A, E>(use: (sql: SqlClient.SqlClient) => Effect.Effect<A, E>) =>
  Effect.flatMap(
    Config.string("AWA_TEST_ADMIN_URL"),
    (url) => Effect.provide(Effect.flatMap(SqlClient.SqlClient, use), Database.layer({ url, maxConnections: 1 }))
  )

const existing = (name: string) =>
  Effect.map(admin((sql) => sql`select from pg_database where datname = ${name}`), (rows) => rows.length)

const on = (database: { readonly url: string }) => Database.layer({ url: database.url, maxConnections: 2 })

describe("TestDatabase", () => {
  it.effect("every database is migrated, empty and gone with its scope", () =>
    Effect.gen(function*() {
      const databases = yield* Effect.scoped(Effect.gen(function*() {
        const [one, two] = yield* Effect.all([TestDatabase.make(), TestDatabase.make()])
        yield* Effect.provide(Work.enqueue(1), on(one))
        yield* Effect.forEach([one, two], (database) => Effect.provide(Migrations.verify, on(database)))
        const counts = yield* Effect.forEach([one, two], (database) => Effect.provide(Jobs.list(), on(database)))
        assert.deepStrictEqual(counts.map((jobs) => jobs.length), [1, 0])
        return [one, two]
      }))
      assert.deepStrictEqual(yield* Effect.forEach(databases, ({ name }) => existing(name)), [0, 0])
    }))

  it.effect("the layer brings a client for its database", () =>
    Effect.gen(function*() {
      const { name, url } = yield* TestDatabase.TestDatabase
      const sql = yield* SqlClient.SqlClient
      const rows = yield* sql`select current_database() as name`
      assert.deepStrictEqual(rows, [{ name }])
      assert.strictEqual(new URL(url).pathname, `/${name}`)
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.effect("the database of a failed test is kept, and its URL is printed without the password", () =>
    Effect.gen(function*() {
      const printed: Array<string> = []
      const console = yield* Console.consoleWith(Effect.succeed)
      const recording = { ...console, error: (line: string) => Effect.sync(() => void printed.push(line)) }
      const failing = Effect.flatMap(TestDatabase.TestDatabase, (database) => Effect.fail(database))
      const { name, url } = yield* failing.pipe(
        Effect.provide(TestDatabase.layer()),
        Effect.catchIf((error) => "name" in error && "url" in error, (database) => Effect.succeed(database)),
        Effect.withConsole(recording)
      )
      const shown = new URL(url)
      assert.isNotEmpty(shown.password)
      shown.password = ""
      assert.deepStrictEqual(printed, [`Kept the database of a failed test: ${shown.href}`])
      assert.strictEqual(yield* existing(name), 1)
      yield* admin((sql) => sql`drop database ${sql(name)}`)
    }))

  it.effect("tests that start at the same time share one template", () =>
    Effect.gen(function*() {
      const options = { prefix: `${yield* prefix}cold_` }
      const makeAndVerify = Effect.flatMap(TestDatabase.make(options), (database) =>
        Effect.provide(Migrations.verify, on(database)))
      yield* Effect.scoped(Effect.all([makeAndVerify, makeAndVerify, makeAndVerify], { concurrency: "unbounded" }))
      assert.strictEqual(yield* existing(`${options.prefix}template`), 1)
      assert.strictEqual(yield* existing(`${options.prefix}template_draft`), 0)
    }))

  it.effect("a template that an older version left behind is replaced", () =>
    Effect.gen(function*() {
      const options = { prefix: `${yield* prefix}old_` }
      const name = `${options.prefix}template`
      yield* admin((sql) => sql`create database ${sql(name)}`)
      const url = new URL(yield* Config.string("AWA_TEST_ADMIN_URL"))
      url.pathname = `/${name}`
      yield* Effect.provide(Migrations.run({ through: 1 }), on({ url: url.href }))
      const database = yield* TestDatabase.make(options)
      yield* Effect.provide(Migrations.verify, on(database))
    }).pipe(Effect.scoped))

  it.effect("other schemas are migrated where they are named", () =>
    Effect.gen(function*() {
      const { id } = yield* Work.enqueue(1)
      assert.strictEqual((yield* Jobs.get(id)).state, "available")
      const sql = yield* SqlClient.SqlClient
      const schemas =
        yield* sql`select nspname as name from pg_namespace where nspname in ('awa', 'ctl', 'eng') order by 1`
      assert.deepStrictEqual(schemas.map((row) => row["name"]), ["ctl", "eng"])
    }).pipe(
      Effect.provide(
        Layer.provideMerge(TestDatabase.layer(), StorageSchemas.layer({ control: "ctl", engine: "eng" }))
      )
    ))

  it.effect("says which setting is missing or wrong", () =>
    Effect.gen(function*() {
      const none = ConfigProvider.fromMap(new Map())
      const missing = yield* Effect.flip(Effect.withConfigProvider(TestDatabase.make(), none))
      assert.include(String(missing), "AWA_TEST_ADMIN_URL")
      const wrong = yield* Effect.flip(TestDatabase.make({ prefix: "Wrong\"" }))
      assert.include(String(wrong), "prefix")
      const unreachable = yield* Effect.flip(
        TestDatabase.make({ adminUrl: "postgres://nobody:secret@127.0.0.1:1/none" })
      )
      assert.include(String(unreachable), "127.0.0.1:1")
      assert.notInclude(String(unreachable), "secret")
    }).pipe(Effect.scoped))
})
