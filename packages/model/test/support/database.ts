import { Database } from "@awa/model"
import { TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { Effect, Layer } from "effect"
import * as Pg from "pg"

const adminUrl = (): string => process.env["AWA_TEST_ADMIN_URL"]!

let created = 0

/** Runs a statement as the superuser on the server's own database. */
const admin = (statement: string): Effect.Effect<void> =>
  Effect.acquireUseRelease(
    Effect.promise(async () => {
      const client = new Pg.Client({ connectionString: adminUrl() })
      await client.connect()
      return client
    }),
    (client) => Effect.promise(() => client.query(statement)),
    (client) => Effect.promise(() => client.end())
  )

/** An empty database on the test server, made with these options of CREATE DATABASE. */
export const databaseWith = (options: string): Effect.Effect<string> =>
  Effect.gen(function*() {
    const name = `${process.env["AWA_TEST_PREFIX"]}model_${process.pid}_${created++}`
    yield* admin(`create database ${name} ${options}`)
    const url = new URL(adminUrl())
    url.pathname = `/${name}`
    return url.toString()
  })

export const emptyDatabase: Effect.Effect<string> = databaseWith("")

/** The clients of an empty database. */
export const EmptyLive = (options?: Database.Options) =>
  Layer.unwrapEffect(Effect.map(emptyDatabase, (url) => Database.layer({ url, ...options })))

/** The clients of a migrated one. */
export const MigratedLive = (options?: Database.Options) =>
  Layer.unwrapScoped(Effect.map(TestDatabase.make(), ({ url }) => Database.layer({ url, ...options })))

export interface StoredJob {
  readonly id: string
  readonly kind: string
  readonly queue: string
  readonly args: unknown
  readonly state: string
  readonly priority: number
  readonly max_attempts: number
  readonly run_at: Date
  readonly created_at: Date
  readonly metadata: Record<string, unknown>
  readonly tags: ReadonlyArray<string>
}

/** These jobs as the database shows them, in the order of their ids. */
export const stored = (ids: ReadonlyArray<bigint>, schema = "awa") =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    sql.unsafe<StoredJob>(
      "select id, kind, queue, args, state::text, priority, max_attempts, run_at, created_at, metadata, tags " +
        `from ${schema}.jobs where id = any($1) order by id`,
      [ids.map(String)]
    ).withoutTransform)
