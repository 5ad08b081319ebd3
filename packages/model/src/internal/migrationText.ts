/**
 * The SQL of the migrations, for schemas of any names.
 *
 * The files are written for a schema `awa`, so that psql can run them as they are. In a file of the engine `awa.` means
 * the engine's schema and `awa/*control*\/.` the control schema; in a file of the control plane it is the other way
 * round, with `awa/*engine*\/.`. `/*schema*\/'awa'` is the name of the file's schema as a string, `/*queueSlotCount*\/16`
 * a number of the layout.
 */
import { createHash } from "node:crypto"
import * as Locks from "../Locks.js"
import type { Schemas } from "../StorageSchemas.js"
import { migrations as generated } from "./migrations.generated.js"
import * as Layout from "./storage/layout.js"

/** @internal */
export interface Migration {
  readonly version: number
  readonly name: string
  readonly schema: keyof Schemas
  readonly sql: string
  readonly checksum: string
}

/**
 * By ascending version.
 *
 * @internal
 */
export const migrations: ReadonlyArray<Migration> = generated.map((migration) => ({
  ...migration,
  checksum: createHash("sha256").update(migration.sql).digest("hex")
}))

/** @internal */
export const rewrite = (
  { schema, sql }: Pick<Migration, "schema" | "sql">,
  schemas: Schemas,
  layout: Layout.Layout = Layout.defaults
): string =>
  sql
    .replace(/\/\*(queueSlotCount|leaseSlotCount|leaseClaimReceipts)\*\/\w+/g, (_, name: keyof Layout.Layout) =>
      String(layout[name]))
    // Who runs the text has made the schemas.
    .replace(/^create schema if not exists awa;\n/gm, "")
    .replace(/\bawa\/\*(control|engine)\*\/\./g, (_, other: keyof Schemas) =>
      `"${schemas[other]}".`)
    .replace(/\/\*schema\*\/'awa'/g, `'${schemas[schema]}'`)
    .replace(/\bschema awa\b/g, `schema "${schemas[schema]}"`)
    // Settings are named after the library, not after the schema.
    .replace(/(?<!_setting\(')(?<!set_config\(')\bawa\./g, `"${schemas[schema]}".`)

/** @internal */
export const lock = ({ control }: Schemas): string =>
  `select pg_advisory_xact_lock(${Locks.migrationLock(control).join(", ")})`

/**
 * What has to run before the first migration of a run.
 *
 * @internal
 */
export const preparation = ({ control }: Schemas, missingSchemas: ReadonlyArray<string>): string =>
  missingSchemas.map((schema) => `create schema if not exists "${schema}";\n`).join("") +
  `create table if not exists "${control}".schema_migrations (
  target_schema text not null,
  version integer not null,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default clock_timestamp(),
  primary key (target_schema, version)
);
`

/**
 * One migration and its entry in the ledger.
 *
 * @internal
 */
export const step = (migration: Migration, schemas: Schemas, layout: Layout.Layout): string => {
  const { checksum, name, schema, version } = migration
  return `${rewrite(migration, schemas, layout).trimEnd()}

insert into "${schemas.control}".schema_migrations (target_schema, version, name, checksum)
values ('${schemas[schema]}', ${version}, '${name}', '${checksum}');
`
}

/**
 * A run as a script for psql.
 *
 * @internal
 */
export const script = (
  pending: ReadonlyArray<Migration>,
  schemas: Schemas,
  missingSchemas: ReadonlyArray<string>,
  layout: Layout.Layout
): string =>
  [
    `begin;\n${lock(schemas)};\n`,
    preparation(schemas, missingSchemas),
    ...pending.map((migration) => step(migration, schemas, layout)),
    "commit;\n"
  ].join("\n")

/**
 * The functions of the engine that run with the rights of their owner: the others have none of their own to lend.
 *
 * @internal
 */
const privileged: ReadonlyArray<string> = [
  ...new Set(
    migrations.filter(({ schema }) => schema === "engine").flatMap(({ sql }) =>
      [...sql.matchAll(/^create (?:or replace )?function awa\.(\w+)\([^$]*?\bsecurity definer\b[^$]*\$\$/gm)]
        .map(([, name]) => name!)
    )
  )
]

/** What looks at queues and dead letters. */
const looking = [
  "job",
  "list_jobs",
  "queue_settings",
  "queue_depths",
  "unique_holder",
  "dlq_list",
  "dlq_get",
  "dlq_depth",
  "dlq_depth_of"
]

/** What changes queues and dead letters. */
const operating = [
  "change_jobs",
  "cancel_jobs",
  "request_cancel",
  "set_shards",
  "pause_queue",
  "await_claims",
  "resume_queue",
  "set_queue_overrides",
  "set_queue_retention",
  "set_queue_dlq",
  "drain_deferred",
  "drain_ready",
  "dlq_move",
  "dlq_retry",
  "dlq_retry_chunk",
  "dlq_purge",
  "dlq_purge_chunk"
]

/** What workers do, and operators may do too. */
const tidying = ["dlq_cleanup"]

/** @internal */
export const grants = (
  role: string,
  as: "producer" | "worker" | "operator" | "reader",
  { control, engine }: Schemas
): string => {
  const grantee = `"${role.replaceAll("\"", "\"\"")}"`
  const schemas = [...new Set([control, engine])]
  const usage = schemas.map((schema) => `grant usage on schema "${schema}" to ${grantee};`)
  const execute = (names: ReadonlyArray<string>) =>
    names.map((name) => `grant execute on function "${engine}".${name} to ${grantee};`)
  switch (as) {
    case "producer":
      return lines([
        ...usage,
        `grant insert on "${control}".jobs to ${grantee};`,
        ...execute(["enqueue", "enqueue_one", "enqueue_alike", "enqueue_unique", "unique_holder"])
      ])
    case "worker":
      return lines([
        ...usage,
        ...execute(privileged.filter((name) => !operating.includes(name))),
        `grant select on "${control}".schema_migrations to ${grantee};`
      ])
    case "operator":
      return lines([
        ...usage,
        ...execute([...operating, ...tidying, ...looking]),
        `grant select on "${control}".jobs to ${grantee};`
      ])
    case "reader":
      return lines([
        ...usage,
        ...schemas.map((schema) => `grant select on all tables in schema "${schema}" to ${grantee};`),
        ...execute(looking)
      ])
  }
}

const lines = (statements: ReadonlyArray<string>): string => statements.join("\n") + "\n"
