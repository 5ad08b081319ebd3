/**
 * Brings the schemas of a database to the version this library needs, and tells where they stand.
 *
 * @since 0.1.0
 */
import * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Database from "./Database.js"
import {
  type ConnectionFailed,
  type DatabaseError,
  InvalidSetting,
  MigrationChanged,
  type PermissionDenied,
  SchemaMissing,
  SchemaOutdated,
  SchemaTooNew
} from "./Errors.js"
import * as failures from "./internal/failures.js"
import * as internal from "./internal/migrationText.js"
import * as Layout from "./internal/storage/layout.js"
import type { QueueStorageConfig } from "./QueueStorage.js"
import * as StorageSchemas from "./StorageSchemas.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface Migration {
  readonly version: number
  readonly name: string
  /** Whether it belongs to the control schema or to the engine's. */
  readonly schema: "control" | "engine"
}

/**
 * - `missing`: nothing was ever applied to `schema`
 * - `outdated`: `schema` is complete up to `found` and needs `expected`
 * - `current`: all is there
 * - `newer`: `schema` has a migration `found`; this version of the library knows those up to `supported`
 *
 * @since 0.1.0
 * @category models
 */
export type Status =
  | { readonly _tag: "missing"; readonly schema: string }
  | { readonly _tag: "outdated"; readonly schema: string; readonly found: number; readonly expected: number }
  | { readonly _tag: "current" }
  | { readonly _tag: "newer"; readonly schema: string; readonly found: number; readonly supported: number }

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** Default: those of `StorageSchemas`. */
  readonly schemas?: Partial<StorageSchemas.Schemas> | undefined
  /** How queue storage is laid out when it is installed; without effect on one that is. */
  readonly queueStorage?: QueueStorageConfig | undefined
  /** The last version to apply. Default: the newest. */
  readonly through?: number | undefined
}

/**
 * @since 0.1.0
 * @category errors
 */
export type MigrationError =
  | ConnectionFailed
  | PermissionDenied
  | DatabaseError
  | InvalidSetting
  | MigrationChanged
  | SchemaTooNew

/**
 * Applies what is missing, in one transaction, and answers what that was. Any number of processes may do so at once: one
 * works, the others wait for it and find nothing left to do. A schema newer than the library, or a migration that was
 * applied with other contents, is refused, and nothing is changed.
 *
 * The role must own the schemas, or may create them. One connection is enough.
 *
 * @since 0.1.0
 * @category migrating
 */
export const run = (
  options?: Options
): Effect.Effect<ReadonlyArray<Migration>, MigrationError, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const schemas = yield* schemasOf(options)
    const through = yield* throughOf(options)
    const layout = yield* Layout.make(options?.queueStorage)
    return yield* Database.transaction(apply(schemas, through, layout), { isolation: "read committed" }).pipe(
      Effect.retry({
        while: (error) => error._tag === "DatabaseError" && error.sqlState === "40P01",
        schedule: Schedule.exponential("50 millis"),
        times: 5
      })
    )
  })

/**
 * What `run` would do now, as a script for psql, with its transaction and its entries in the ledger.
 *
 * @since 0.1.0
 * @category migrating
 */
export const sql = (options?: Options): Effect.Effect<string, MigrationError, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const schemas = yield* schemasOf(options)
    const through = yield* throughOf(options)
    const layout = yield* Layout.make(options?.queueStorage)
    const { missingSchemas, pending } = yield* plan(schemas, through)
    return pending.length === 0 ? "-- nothing to do\n" : internal.script(pending, schemas, missingSchemas, layout)
  })

/**
 * Where the schemas stand.
 *
 * @since 0.1.0
 * @category inspecting
 */
export const status = (
  options?: Pick<Options, "schemas">
): Effect.Effect<Status, Exclude<MigrationError, SchemaTooNew>, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const schemas = yield* schemasOf(options)
    return assess(schemas, yield* readLedger(schemas))
  })

/**
 * Succeeds when the schemas are what this version of the library needs: a check for the start of a program. Changes
 * nothing.
 *
 * @since 0.1.0
 * @category inspecting
 */
export const verify: Effect.Effect<
  void,
  MigrationError | SchemaMissing | SchemaOutdated,
  SqlClient.SqlClient
> = Effect.flatMap(status(), (status): Effect.Effect<void, SchemaMissing | SchemaOutdated | SchemaTooNew> => {
  switch (status._tag) {
    case "missing":
      return new SchemaMissing(status)
    case "outdated":
      return new SchemaOutdated(status)
    case "newer":
      return new SchemaTooNew(status)
    case "current":
      return Effect.void
  }
})

/**
 * The GRANT statements a role needs, to be run by the owner of the schemas, and again after every `run`:
 *
 * - `producer` enqueues jobs, and can do nothing else
 * - `worker` also claims, completes and maintains them
 * - `operator` pauses, drains and tunes queues, handles dead letters, looks at jobs and changes them
 * - `reader` sees every job
 *
 * No role gets rights on tables to change them: the functions run with those of their owner.
 *
 * @since 0.1.0
 * @category migrating
 */
export const grants = (options: {
  readonly role: string
  readonly as: "producer" | "worker" | "operator" | "reader"
  readonly schemas?: Partial<StorageSchemas.Schemas> | undefined
}): Effect.Effect<string, InvalidSetting> =>
  Effect.flatMap(schemasOf(options), (schemas) =>
    isRoleName(options.role)
      ? Effect.succeed(internal.grants(options.role, options.as, schemas))
      : new InvalidSetting({
        setting: "role",
        value: options.role,
        reason: "must be the name of a role: 1 to 63 bytes"
      }))

const isRoleName = (role: string): boolean => role !== "" && !role.includes("\0") && Buffer.byteLength(role) <= 63

const schemasOf = (options: Pick<Options, "schemas"> | undefined) =>
  options?.schemas === undefined ? StorageSchemas.StorageSchemas : StorageSchemas.make(options.schemas)

const throughOf = ({ through }: Options = {}): Effect.Effect<number, InvalidSetting> =>
  through === undefined
    ? Effect.succeed(Infinity)
    : Number.isInteger(through) && through >= 0
    ? Effect.succeed(through)
    : new InvalidSetting({ setting: "through", value: through, reason: "must be the number of a migration" })

// The database

const execute = (text: string) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(text)).pipe(
    Effect.catchTag(
      "SqlError",
      failures.fromSqlError("migrate", "Migrate as a role that may create the schemas, or owns them.")
    )
  )

const select = <Row extends object>(text: string, values: ReadonlyArray<unknown>) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe<Row>(text, values).withoutTransform).pipe(
    Effect.catchTag(
      "SqlError",
      failures.fromSqlError("check of the schemas", "The owner of the schemas can grant it: see Migrations.grants.")
    )
  )

const apply = (schemas: StorageSchemas.Schemas, through: number, layout: Layout.Layout) =>
  Effect.gen(function*() {
    // Waiting for another process may take its time; what comes then obeys the limits of the role again.
    yield* execute("set local statement_timeout = 0; set local lock_timeout = 0")
    yield* execute(`${internal.lock(schemas)}; set local lock_timeout to default`)
    const { missingSchemas, pending } = yield* plan(schemas, through)
    if (pending.length > 0) yield* execute(internal.preparation(schemas, missingSchemas))
    for (const migration of pending) yield* execute(internal.step(migration, schemas, layout))
    return pending.map(({ name, schema, version }): Migration => ({ version, name, schema }))
  })

const plan = (schemas: StorageSchemas.Schemas, through: number) =>
  Effect.gen(function*() {
    const ledger = yield* readLedger(schemas)
    const status = assess(schemas, ledger)
    if (status._tag === "newer") return yield* new SchemaTooNew(status)
    return {
      missingSchemas: yield* readMissingSchemas(schemas),
      pending: internal.migrations.filter((migration) =>
        migration.version <= through && !isApplied(ledger, schemas, migration)
      )
    }
  })

const readMissingSchemas = ({ control, engine }: StorageSchemas.Schemas) =>
  Effect.map(
    select<{ readonly name: string }>(
      "select distinct n.name from unnest(array[$1, $2]) as n(name) " +
        "where not exists (select from pg_namespace s where s.nspname = n.name)",
      [control, engine]
    ),
    (rows) => rows.map(({ name }) => name)
  )

// The ledger

interface Entry {
  readonly schema: string
  readonly version: number
  readonly checksum: string
}

type Ledger = ReadonlyArray<Entry>

/** Looks into the catalog first, so that a missing ledger is no failed statement of a transaction. */
const readLedger = (schemas: StorageSchemas.Schemas) =>
  Effect.gen(function*() {
    const tables = yield* select(
      "select from pg_class c join pg_namespace n on n.oid = c.relnamespace " +
        "where n.nspname = $1 and c.relname = 'schema_migrations'",
      [schemas.control]
    )
    if (tables.length === 0) return []
    const ledger: Ledger = yield* select<Entry>(
      `select target_schema as schema, version, checksum from "${schemas.control}".schema_migrations ` +
        "where target_schema in ($1, $2) order by version",
      [schemas.control, schemas.engine]
    )
    for (const { checksum, schema, version } of ledger) {
      const known = internal.migrations.find((migration) => migration.version === version)
      if (known !== undefined && known.checksum !== checksum) {
        return yield* new MigrationChanged({ schema, version, name: known.name })
      }
    }
    return ledger
  })

const isApplied = (
  ledger: Ledger,
  schemas: StorageSchemas.Schemas,
  { schema, version }: internal.Migration
): boolean => ledger.some((entry) => entry.version === version && entry.schema === schemas[schema])

/** What is newest in the library decides what is too new for it, whatever schema it belongs to. */
const assess = (schemas: StorageSchemas.Schemas, ledger: Ledger): Status => {
  const supported = internal.migrations.at(-1)?.version ?? 0
  const unknown = ledger.findLast(({ version }) => !internal.migrations.some((known) => known.version === version))
  if (unknown !== undefined) return { _tag: "newer", schema: unknown.schema, found: unknown.version, supported }
  for (const role of ["control", "engine"] as const) {
    const schema = schemas[role]
    const needed = internal.migrations.filter((migration) => migration.schema === role)
    const applied = needed.filter((migration) => isApplied(ledger, schemas, migration))
    if (applied.length === 0) return { _tag: "missing", schema }
    if (applied.length < needed.length) {
      const gap = needed.findIndex((migration) => !isApplied(ledger, schemas, migration))
      return {
        _tag: "outdated",
        schema,
        found: needed[gap - 1]?.version ?? 0,
        expected: needed.at(-1)!.version
      }
    }
  }
  return { _tag: "current" }
}
