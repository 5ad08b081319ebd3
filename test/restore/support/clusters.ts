import { EmbeddedPostgres } from "@awa/embedded"
import { Effect, Exit, Scope } from "effect"
import * as Fs from "node:fs/promises"
import * as Path from "node:path"
import { afterAll } from "vitest"
import { connect } from "../../mutation/support/host.js"
import { shipped } from "../../mutation/support/shipped.js"
import { withWorld, type World } from "../../mutation/support/world.js"

const scope = Effect.runSync(Scope.make())
afterAll(() => Effect.runPromise(Scope.close(scope, Exit.void)))

/** That of the run's server, whose set-up has checked it. */
const version = Number(process.env["AWA_TEST_POSTGRES"] ?? 18) as 15 | 16 | 17 | 18

/** Nothing but the test gives out transaction ids. */
const settings = { autovacuum: "off", checkpoint_timeout: "1d", max_connections: 50, max_prepared_transactions: 10 }

export type Cluster = EmbeddedPostgres.Service

/** A cluster of its own. */
export const cluster = (): Promise<Cluster> =>
  Effect.runPromise(Scope.extend(EmbeddedPostgres.make({ version, fsync: false, settings }), scope))

/** A database with an empty queue. */
export const newQueue = async (on: Cluster, name: string): Promise<string> => {
  const url = await Effect.runPromise(on.createDatabase(name))
  const client = await connect(url)
  await client.query(shipped)
  await client.end()
  return url
}

export const inWorld = <A>(url: string, use: (world: World) => Promise<A>): Promise<A> => withWorld(url, use)

/** Moves the ids that a cluster gives out up to `xid`. */
export const advanceTo = async (world: World, xid: bigint): Promise<void> => {
  const session = await world.session()
  const current = async (): Promise<bigint> => {
    const [row] = await session.query<{ xid: string }>("select pg_current_xact_id()::text as xid")
    return BigInt(row?.xid ?? 0)
  }
  while (await current() < xid);
}

/**
 * A restore as `pg_dump` and `pg_restore` make it: all rows as one snapshot saw them, into the tables of another database.
 * With `sequences` their values too, as in a dump that is not of the data only.
 */
export const restore = async (from: string, to: string, { sequences }: { readonly sequences: boolean }) => {
  const source = await connect(from)
  const target = await connect(to)
  try {
    await source.query("begin isolation level repeatable read read only")
    const { rows: tables } = await source.query<{ name: string }>(`
      select c.oid::regclass::text as name from pg_class c
      where c.relnamespace = 'awa'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition`)
    await target.query("begin")
    await target.query(`truncate ${tables.map(({ name }) => name).join(", ")}`)
    for (const { name } of tables) {
      const { rows } = await source.query<{ row: string }>(`select t::text as row from ${name} t`)
      const texts = rows.map(({ row }) => row)
      await target.query(`insert into ${name} select (t::${name}).* from unnest($1::text[]) t`, [texts])
    }
    const { rows: numbers } = await source.query<{ name: string; value: string; called: boolean }>(`
      select format('awa.%I', sequencename) as name, coalesce(last_value, start_value)::text as value,
        last_value is not null as called
      from pg_sequences where schemaname = 'awa'`)
    if (sequences) {
      for (const { called, name, value } of numbers) {
        await target.query("select setval($1::regclass, $2::bigint, $3)", [name, value, called])
      }
    }
    await target.query("commit")
    await source.query("commit")
  } finally {
    await Promise.all([source.end(), target.end()])
  }
}

/**
 * Makes a standby of a cluster from a copy of its files, and starts it: it follows its primary and can be read. Nobody may
 * be connected to the primary, which is stopped for the copy.
 */
export const standbyOf = async (primary: Cluster): Promise<Cluster & { readonly url: string }> => {
  const standby = await cluster()
  await Effect.runPromise(standby.stop())
  await Effect.runPromise(primary.stop())
  const owner = await Fs.stat(standby.dataFolder)
  await Fs.rm(standby.dataFolder, { recursive: true })
  await Fs.cp(primary.dataFolder, standby.dataFolder, { recursive: true })
  await Fs.rm(Path.join(standby.dataFolder, "postmaster.pid"), { force: true })
  await Fs.writeFile(Path.join(standby.dataFolder, "standby.signal"), "")
  const { hostname, password, port, username } = new URL(primary.url)
  await Fs.appendFile(
    Path.join(standby.dataFolder, "postgresql.auto.conf"),
    `primary_conninfo = 'host=${hostname} port=${port} user=${username} password=${password}'\n`
  )
  await belongTo(standby.dataFolder, owner)
  await Effect.runPromise(primary.start)
  await Effect.runPromise(standby.start)
  const at = (url: string) => Object.assign(new URL(url), { port: String(standby.port) }).href
  return { ...standby, url: at(primary.url), urlOf: (database) => at(primary.urlOf(database)) }
}

const belongTo = async (
  folder: string,
  { gid, uid }: { readonly uid: number; readonly gid: number }
): Promise<void> => {
  await Fs.chmod(folder, 0o700)
  for (const entry of ["", ...await Fs.readdir(folder, { recursive: true })]) {
    await Fs.lchown(Path.join(folder, entry), uid, gid)
  }
}

/** Waits until a standby has everything that its primary has committed. */
export const caughtUp = async (primary: World, standby: World): Promise<void> => {
  const [there, here] = [await primary.session(), await standby.session()]
  const [row] = await there.query<{ lsn: string }>("select pg_current_wal_flush_lsn()::text as lsn")
  const reached = async () => {
    const [answer] = await here.query<{ yes: boolean }>(
      "select pg_last_wal_replay_lsn() >= $1::pg_lsn as yes",
      row?.lsn
    )
    return answer?.yes === true
  }
  while (!(await reached()));
}
