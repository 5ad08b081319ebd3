import { EmbeddedPostgres } from "@awa/embedded"
import { Effect, Exit, Scope } from "effect"
import { randomUUID } from "node:crypto"
import * as Pg from "pg"
import { afterAll, beforeAll } from "vitest"
import { shipped } from "./shipped.js"

/** Where the databases of a test file live. */
export interface Host {
  /** Runs `use` on a database that has the shipped SQL and the gate, and drops it. */
  readonly withDatabase: <A>(use: (url: string) => Promise<A>) => Promise<A>
}

/**
 * A session that has said `set gate.waits = 'on'` waits in `test_gate.pass` while somebody holds the gate. The second
 * form stands inside an expression and hands its value through.
 */
const gate = `
create schema test_gate;
create function test_gate.pass() returns void language plpgsql as $$
begin
  if current_setting('gate.waits', true) = 'on' then
    perform pg_advisory_xact_lock_shared(7, 7);
  end if;
end
$$;
create function test_gate.pass(p_value anyelement) returns anyelement language plpgsql as $$
begin
  perform test_gate.pass();
  return p_value;
end
$$;
`

/** The server of the run, which other test files use at the same time. */
export const sharedServer = (): Host =>
  host(async () => ({ url: process.env["AWA_TEST_ADMIN_URL"] ?? "", close: noop }))

/** That of the run's server, whose set-up has checked it. */
const version = Number(process.env["AWA_TEST_POSTGRES"] ?? 18) as 15 | 16 | 17 | 18

/** A server on which no transaction id is given out, and no checkpoint written, but by the test itself. */
export const quietServer = (): Host =>
  host(async () => {
    const scope = Effect.runSync(Scope.make())
    const settings = {
      autovacuum: "off",
      checkpoint_timeout: "1d",
      max_connections: 100,
      max_prepared_transactions: 50
    }
    const server = EmbeddedPostgres.make({ version, fsync: false, settings })
    const { url } = await Effect.runPromise(Scope.extend(server, scope))
    return { url, close: () => Effect.runPromise(Scope.close(scope, Exit.void)) }
  })

const noop = async (): Promise<void> => {}

const host = (start: () => Promise<{ readonly url: string; readonly close: () => Promise<void> }>): Host => {
  const prefix = `${process.env["AWA_TEST_PREFIX"]}${randomUUID().slice(0, 8)}_`
  const template = `${prefix}template`
  let made = 0
  let server: Awaited<ReturnType<typeof start>> | undefined
  let admin: Pg.Client | undefined

  const run = async (text: string): Promise<void> => {
    await admin?.query(text)
  }
  const urlOf = (database: string): string => Object.assign(new URL(server?.url ?? ""), { pathname: database }).href

  beforeAll(async () => {
    server = await start()
    admin = await connect(server.url)
    await run(`create database ${template}`)
    const client = await connect(urlOf(template))
    await client.query(gate + shipped)
    await client.end()
  })

  afterAll(async () => {
    await run(`drop database if exists ${template}`)
    await admin?.end()
    await server?.close()
  })

  return {
    withDatabase: async (use) => {
      const database = `${prefix}${made++}`
      await run(`create database ${database} template ${template} strategy file_copy`)
      try {
        return await use(urlOf(database))
      } finally {
        await run(`drop database ${database} with (force)`)
      }
    }
  }
}

export const connect = async (url: string): Promise<Pg.Client> => {
  const client = new Pg.Client({ connectionString: url })
  client.on("error", () => {}) // a connection that dies is told by its queries
  await client.connect()
  return client
}
