/**
 * A real database for every test, made in a tenth of a second.
 *
 * @since 0.1.0
 */
import * as Database from "@awa/model/Database"
import * as Errors from "@awa/model/Errors"
import * as Migrations from "@awa/model/Migrations"
import * as QueueStorage from "@awa/model/QueueStorage"
import type { StorageEngine, StorageError } from "@awa/model/StorageEngine"
import { StorageSchemas } from "@awa/model/StorageSchemas"
import * as Reactivity from "@effect/experimental/Reactivity"
import type * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Config from "effect/Config"
import type * as ConfigError from "effect/ConfigError"
import * as Console from "effect/Console"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { createHash, randomBytes } from "node:crypto"

/**
 * The database of a test.
 *
 * @since 0.1.0
 * @category tags
 */
export class TestDatabase extends Context.Tag("@awa/testing/TestDatabase")<TestDatabase, {
  readonly name: string
  /** Contains the password: for further clients and for child processes. */
  readonly url: string
}>() {}

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /**
   * The URL of any database of the server, as a role that may create databases.
   * Default: the variable `AWA_TEST_ADMIN_URL`.
   */
  readonly adminUrl?: string | undefined
  /**
   * How the names of all databases made here begin: at most 40 lower-case letters, digits and underscores.
   * Default: the variable `AWA_TEST_PREFIX`, or else `awa_test_`.
   */
  readonly prefix?: string | undefined
  /** Connections of the `SqlClient`. Default: 10. */
  readonly maxConnections?: number | undefined
  /** How queue storage is laid out. Default: small, with 4 and 2 slots, which makes databases faster to copy and open. */
  readonly queueStorage?: QueueStorage.QueueStorageConfig | undefined
}

/**
 * What can keep a test from getting its database.
 *
 * @since 0.1.0
 * @category errors
 */
export type TestDatabaseError =
  | ConfigError.ConfigError
  | Exclude<
    Errors.AwaError,
    Errors.InvalidJob | Errors.UniqueConflict
  >

interface Settings {
  readonly adminUrl: string
  readonly prefix: string
  readonly queueStorage: QueueStorage.QueueStorageConfig
}

const small: QueueStorage.QueueStorageConfig = { queueSlotCount: 4, leaseSlotCount: 2 }

const settingsOf = (options: Options | undefined) =>
  Config.unwrap<Settings>({
    adminUrl: fallback(options?.adminUrl, Config.string("AWA_TEST_ADMIN_URL")),
    prefix: fallback(options?.prefix, Config.withDefault(Config.string("AWA_TEST_PREFIX"), "awa_test_")),
    queueStorage: Config.succeed(options?.queueStorage ?? small)
  }).pipe(Effect.filterOrFail(
    ({ prefix }) => /^[a-z_][a-z0-9_]{0,39}$/.test(prefix),
    ({ prefix }) =>
      new Errors.InvalidSetting({
        setting: "prefix",
        value: prefix,
        reason: "use at most 40 lower-case letters, digits and underscores, not starting with a digit"
      })
  ))

const fallback = (given: string | undefined, config: Config.Config<string>): Config.Config<string> =>
  given === undefined ? config : Config.succeed(given)

const urlOf = (adminUrl: string, database: string): string => {
  const url = new URL(adminUrl)
  url.pathname = `/${database}`
  return url.href
}

const withoutPassword = (url: string): string => {
  const shown = new URL(url)
  shown.password = ""
  return shown.href
}

type Run = (statement: string) => Effect.Effect<ReadonlyArray<object>, Errors.DatabaseFailure>

/** One at a time opens a connection. */
const opening = Effect.unsafeMakeSemaphore(1)

const administrators = new Map<string, PgClient.PgClient>()

/**
 * The client of an administrator, one for the whole process: to connect takes as long as to copy a database. Its
 * connection closes after a second without work, so that it keeps no process from ending.
 */
const administrator = (adminUrl: string) =>
  Effect.suspend(() => {
    const known = administrators.get(adminUrl)
    if (known !== undefined) return Effect.succeed(known)
    return Effect.flatMap(Scope.make(), (scope) =>
      Database.make({
        url: adminUrl,
        maxConnections: 1,
        idleTimeout: "1 second",
        connectTimeout: "1 minute",
        applicationName: "awa test databases"
      }).pipe(
        Scope.extend(scope),
        Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause))),
        Effect.tap((client) => Effect.sync(() => administrators.set(adminUrl, client))),
        Effect.provide(Reactivity.layer)
      ))
  }).pipe(opening.withPermits(1))

/** Runs statements of an administrator, over one connection. */
const asAdmin = <A, E>(
  { adminUrl }: Settings,
  use: (run: Run) => Effect.Effect<A, E>
): Effect.Effect<A, E | Errors.DatabaseFailure | Errors.InvalidSetting> =>
  Effect.flatMap(
    administrator(adminUrl),
    (client) =>
      Database.pinned(use((statement) =>
        client.unsafe(statement).pipe(Effect.catchTag("SqlError", Database.fromSqlError("manage test databases")))
      )).pipe(Effect.provideService(SqlClient.SqlClient, client))
  )

/** On a short-lived client of a database made here, not on the administrator's connection. */
const inside = (settings: Settings, database: string) => <A, E>(self: Effect.Effect<A, E, SqlClient.SqlClient>) =>
  Database.outsideTransaction(self).pipe(
    Effect.provide(Database.layer({ url: urlOf(settings.adminUrl, database), maxConnections: 1 }))
  )

const exists = (run: Run, name: string) =>
  Effect.map(run(`select from pg_database where datname = '${name}'`), (rows) => rows.length > 0)

const drop = (run: Run, name: string) => run(`drop database if exists "${name}" with (force)`)

/** A server may outlive several versions of the library. */
const isCurrent = (settings: Settings, template: string) =>
  Migrations.verify.pipe(
    Effect.as(true),
    Effect.catchTags({
      MigrationChanged: () => Effect.succeed(false),
      SchemaMissing: () => Effect.succeed(false),
      SchemaOutdated: () => Effect.succeed(false),
      SchemaTooNew: () => Effect.succeed(false)
    }),
    inside(settings, template)
  )

/** Templates this process has seen to. */
const ready = new Set<string>()

/**
 * Makes the migrated database that the others are copies of, unless there is one. It gets its name when it is complete.
 * One process at a time may look into it: copies wait, but only for five seconds, until nobody is connected to it.
 */
const ensureTemplate = (settings: Settings, run: Run, template: string) =>
  Effect.gen(function*() {
    const draft = `${template}_draft`
    yield* run(`select pg_advisory_lock(hashtextextended('${template}', 0))`)
    if (!((yield* exists(run, template)) && (yield* isCurrent(settings, template)))) {
      yield* drop(run, template)
      yield* drop(run, draft)
      yield* run(`create database "${draft}" template template0`)
      yield* inside(settings, draft)(Migrations.run({ queueStorage: settings.queueStorage }))
      yield* run(`alter database "${draft}" rename to "${template}"`)
    }
    yield* run("select pg_advisory_unlock_all()")
  })

const copyTemplate = (settings: Settings, name: string) =>
  Effect.flatMap(StorageSchemas, ({ control, engine }) => {
    const template = `${settings.prefix}template` +
      (control === "awa" && engine === "awa" && settings.queueStorage === small
        ? ""
        : digest(control, engine, JSON.stringify(settings.queueStorage)))
    const key = `${settings.adminUrl} ${template}`
    return asAdmin(settings, (run) =>
      Effect.gen(function*() {
        if (!ready.has(key)) yield* ensureTemplate(settings, run, template)
        ready.add(key)
        yield* run(`create database "${name}" template "${template}" strategy file_copy`)
      }))
  })

const digest = (...names: ReadonlyArray<string>): string =>
  createHash("sha256").update(names.join()).digest("hex").slice(0, 8)

/**
 * A fresh, migrated database that lasts as long as the scope. When a failure ends the scope the database is kept and its
 * URL is printed, so that one can look at it: whoever owns the server drops it.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (
  options?: Options
): Effect.Effect<Context.Tag.Service<TestDatabase>, TestDatabaseError, Scope.Scope> =>
  Effect.gen(function*() {
    const settings = yield* settingsOf(options)
    const name = `${settings.prefix}${randomBytes(6).toString("hex")}`
    return yield* Effect.acquireRelease(
      Effect.map(copyTemplate(settings, name), () => ({ name, url: urlOf(settings.adminUrl, name) })),
      ({ url }, exit) =>
        Exit.isSuccess(exit)
          ? Effect.orDie(asAdmin(settings, (run) => drop(run, name)))
          : Console.error(`Kept the database of a failed test: ${withoutPassword(url)}`)
    )
  })

/**
 * A fresh, migrated database, and a client for it. It is dropped when the layer is released, unless a failure releases
 * it: then it is kept and its URL is printed.
 *
 * Databases are copies of one template, which is made once for each version of the migrations. Every call makes a layer
 * of its own: name the result if several tests are to share it. Other schemas than `awa` are migrated when
 * `StorageSchemas` names them where the layer is built. Needs PostgreSQL 15 or later.
 *
 * @example
 * ```ts
 * import { Job } from "@awa/model"
 * import { Jobs, TestDatabase } from "@awa/testing"
 * import { assert, it } from "@effect/vitest"
 * import { Effect, Schema } from "effect"
 *
 * const SendEmail = Job.make("send_email", { payload: { to: Schema.String } })
 *
 * it.effect("an enqueued job waits", () =>
 *   Effect.gen(function*() {
 *     const { id } = yield* SendEmail.enqueue({ to: "ada@example.com" })
 *     const job = yield* Jobs.get(id)
 *     assert.strictEqual(job.state, "available")
 *   }).pipe(Effect.provide(TestDatabase.layer())))
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options?: Options
): Layer.Layer<TestDatabase | SqlClient.SqlClient | PgClient.PgClient, TestDatabaseError> =>
  Layer.unwrapScoped(Effect.map(make(options), (database) =>
    Layer.merge(
      Layer.succeed(TestDatabase, database),
      Database.layer({ url: database.url, maxConnections: options?.maxConnections })
    )))

/**
 * `layer` with queue storage on it. Merge `TimeSource.layerFromClock` into it for a test that moves `TestClock`.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerQueueStorage = (
  options?: Options
): Layer.Layer<
  TestDatabase | SqlClient.SqlClient | PgClient.PgClient | StorageEngine,
  TestDatabaseError | StorageError
> => Layer.provideMerge(QueueStorage.layer, layer(options))
