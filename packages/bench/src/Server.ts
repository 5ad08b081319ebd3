/**
 * The PostgreSQL server of one invocation: a fresh embedded one with `fsync` on, or the one `DATABASE_URL` names. Every
 * measurement has a database of its own on it.
 */
import { EmbeddedPostgres } from "@awa/embedded"
import { Effect, type Scope } from "effect"
import os from "node:os"
import pg from "pg"

export interface Server {
  readonly url: string
  /** Ends the server as a crash does, and starts it again; absent where it is not ours. */
  readonly crash?: Effect.Effect<void>
}

/** Starts the server, or takes the given one; its databases end with the scope. */
export const startServer: Effect.Effect<Server, EmbeddedPostgres.EmbeddedPostgresError, Scope.Scope> = Effect.suspend(
  () => {
    const url = process.env["DATABASE_URL"]
    return url === undefined || url === ""
      ? EmbeddedPostgres.make({ fsync: true, settings: { max_connections: 200, max_prepared_transactions: 64 } }).pipe(
        Effect.map(({ restart, url }) => ({ url, crash: Effect.orDie(restart("immediate")) }))
      )
      : Effect.succeed({ url })
  }
)

const connect = (url: string): Effect.Effect<pg.Client, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      return client
    }),
    (client) => Effect.promise(() => client.end())
  )

/** Answers the rows of one statement on a connection of its own. */
export const query = <Row extends pg.QueryResultRow>(
  url: string,
  text: string,
  values: ReadonlyArray<unknown> = []
): Effect.Effect<ReadonlyArray<Row>> =>
  connect(url).pipe(
    Effect.flatMap((client) => Effect.promise(() => client.query<Row>(text, [...values]))),
    Effect.map(({ rows }) => rows),
    Effect.scoped
  )

/** Runs statements one after the other on one connection. */
export const script = (url: string, statements: ReadonlyArray<string>): Effect.Effect<void> =>
  connect(url).pipe(
    Effect.flatMap((client) =>
      Effect.forEach(statements, (text) => Effect.promise(() => client.query(text)), { discard: true })
    ),
    Effect.scoped
  )

/** Keeps a transaction open that has a snapshot and a transaction id, until the scope closes. */
export const holdTransaction = (url: string): Effect.Effect<void, never, Scope.Scope> =>
  Effect.flatMap(connect(url), (client) =>
    Effect.promise(async () => {
      await client.query("begin isolation level repeatable read")
      await client.query("select pg_current_xact_id(), count(*) from pg_class")
    }))

let databases = 0

/** A new database; dropped when the scope closes. */
export const freshDatabase = (server: Server): Effect.Effect<string, never, Scope.Scope> => {
  const name = `awa_bench_${process.pid}_${++databases}`
  const url = new URL(server.url)
  url.pathname = `/${name}`
  return Effect.as(
    Effect.acquireRelease(
      query(server.url, `create database ${name}`),
      () => query(server.url, `drop database if exists ${name} with (force)`)
    ),
    url.href
  )
}

/**
 * Puts a loaded database into the same state for every system: statistics, visibility map and a checkpoint behind it.
 * A role that may not write a checkpoint goes without.
 */
export const settle = (url: string): Effect.Effect<void> =>
  query(url, "vacuum (analyze)").pipe(
    Effect.zipRight(Effect.ignore(Effect.sandbox(query(url, "checkpoint"))))
  )

/** Repeats a query of one boolean column until it is true; answers when the successful one was sent. */
export const awaitTrue = (url: string, text: string, now: () => number): Effect.Effect<number> =>
  Effect.scoped(Effect.gen(function*() {
    const client = yield* connect(url)
    while (true) {
      const sent = now()
      const { rows } = yield* Effect.promise(() => client.query<{ settled: boolean }>({ name: "settled", text }))
      if (rows[0]?.settled === true) return sent
      yield* Effect.sleep("2 millis")
    }
  }))

const settings = [
  "server_version",
  "fsync",
  "synchronous_commit",
  "full_page_writes",
  "wal_sync_method",
  "shared_buffers",
  "max_wal_size",
  "max_connections"
]

/** Where the figures were taken. */
export const environment = (server: Server): Effect.Effect<Readonly<Record<string, string | number>>> =>
  query<{ name: string; value: string }>(
    server.url,
    "select name, current_setting(name) as value from unnest($1::text[]) as name",
    [settings]
  ).pipe(Effect.map((rows) => ({
    ...Object.fromEntries(rows.map(({ name, value }) => [`postgres ${name}`, value])),
    node: process.version,
    platform: `${os.platform()} ${os.release()} ${os.arch()}`,
    processors: `${os.availableParallelism()} × ${os.cpus()[0]?.model ?? "unknown"}`,
    memoryGiB: Math.round(os.totalmem() / 2 ** 30),
    // A report says on which day it was made.
    date: new Date().toISOString()
  })))
