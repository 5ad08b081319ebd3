import { EmbeddedPostgres } from "@awa/embedded"
import { Effect, Exit, Scope } from "effect"
import { randomInt } from "node:crypto"
import * as Pg from "pg"

/**
 * One server for the whole run, or the one of `DATABASE_URL`. `AWA_TEST_POSTGRES` chooses its version. Every test file makes databases of its own on it, and names them
 * with the run's prefix. Tests find both in the environment.
 */
export default async function setup(): Promise<() => Promise<void>> {
  const given = process.env["DATABASE_URL"]
  const { close, prefix, url } = given === undefined ? await ownServer() : await givenServer(given)
  process.env["AWA_TEST_ADMIN_URL"] = url
  process.env["AWA_TEST_PREFIX"] = prefix
  return close
}

interface Server {
  readonly url: string
  readonly prefix: string
  readonly close: () => Promise<void>
}

const prefixOf = (run: number): string => `awa_test_${run}_`

const ownServer = async (): Promise<Server> => {
  const scope = Effect.runSync(Scope.make())
  const server = EmbeddedPostgres.make({
    version: versionOf(process.env),
    fsync: false,
    settings: {
      max_connections: 500,
      // With so many short-lived databases autovacuum does nothing but visit them, and changes what tests measure.
      autovacuum: "off",
      jit: "off",
      wal_level: "minimal",
      max_wal_senders: 0,
      max_wal_size: "8GB",
      checkpoint_timeout: "1h"
    }
  })
  const { url } = await Effect.runPromise(Scope.extend(server, scope))
  return { url, prefix: prefixOf(0), close: () => Effect.runPromise(Scope.close(scope, Exit.void)) }
}

const versionOf = ({ AWA_TEST_POSTGRES: chosen = "18" }: NodeJS.ProcessEnv): 15 | 16 | 17 | 18 => {
  const version = ([15, 16, 17, 18] as const).find((version) => String(version) === chosen)
  if (version === undefined) throw new Error(`AWA_TEST_POSTGRES: must be 15, 16, 17 or 18, not ${chosen}`)
  return version
}

/** The lock says that a run is alive, so that another one can clear away what an interrupted run has left. */
const runLock = (run: number): string => `(hashtext('awa test run'), ${run})`

const givenServer = async (url: string): Promise<Server> => {
  const client = new Pg.Client({ connectionString: url })
  await client.connect().catch((cause: Error) => {
    const advice = "Start that server, or unset DATABASE_URL to use an embedded one."
    throw new Error(`DATABASE_URL: cannot connect to ${client.host}:${client.port}: ${cause.message}. ${advice}`)
  })
  client.on("error", () => {}) // a test may end every connection of a server
  const run = randomInt(1, 1_000_000_000)
  await client.query(`select pg_advisory_lock${runLock(run)}`)
  await dropAbandoned(client)
  const close = async () => {
    await dropDatabases(client, run)
    await client.end()
  }
  return { url, prefix: prefixOf(run), close }
}

const dropAbandoned = async (client: Pg.Client): Promise<void> => {
  const { rows } = await client.query<{ run: number }>(
    "select distinct substring(datname from '^awa_test_(\\d{1,9})_')::int as run from pg_database where datname ~ '^awa_test_\\d{1,9}_'"
  )
  for (const { run } of rows) {
    const lock = await client.query<{ ours: boolean }>(`select pg_try_advisory_lock${runLock(run)} as ours`)
    if (lock.rows[0]?.ours === true) await dropDatabases(client, run)
  }
}

const dropDatabases = async (client: Pg.Client, run: number): Promise<void> => {
  const { rows } = await client.query<{ name: string }>(
    "select datname as name from pg_database where starts_with(datname, $1)",
    [prefixOf(run)]
  )
  for (const { name } of rows) await client.query(`drop database if exists ${Pg.escapeIdentifier(name)} with (force)`)
}
