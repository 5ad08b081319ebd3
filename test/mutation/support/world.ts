import type * as Pg from "pg"
import { connect } from "./host.js"

/** One connection, used statement by statement. */
export interface Session {
  readonly pid: number
  readonly query: <Row extends Pg.QueryResultRow>(
    text: string,
    ...values: ReadonlyArray<unknown>
  ) => Promise<Array<Row>>
}

/** A database and the sessions on it. */
export interface World {
  readonly url: string
  readonly session: () => Promise<Session>
  /** A session that waits in the gate while it is closed. */
  readonly gatedSession: () => Promise<Session>
  /** Returns when the running statement of a session waits for another session, or has ended. */
  readonly waitsOrEnds: (session: Session, running: Promise<unknown>) => Promise<void>
  /** Returns when some session waits for `holder`. */
  readonly waitedFor: (holder: Session) => Promise<void>
  readonly closeGate: () => Promise<void>
  readonly openGate: () => Promise<void>
}

export const withWorld = async <A>(url: string, use: (world: World) => Promise<A>): Promise<A> => {
  const clients: Array<Pg.Client> = []
  const session = async (): Promise<Session> => {
    const client = await connect(url)
    clients.push(client)
    const { rows } = await client.query<{ pid: number }>("select pg_backend_pid() as pid")
    return {
      pid: rows[0]?.pid ?? 0,
      query: async (text, ...values) => (await client.query(text, values as Array<unknown>)).rows
    }
  }
  const keeper = await session()
  const holds = async (condition: string, pid: number): Promise<boolean> => {
    const [row] = await keeper.query<{ holds: boolean }>(`select ${condition} as holds`, pid)
    return row?.holds === true
  }
  try {
    return await use({
      url,
      session,
      gatedSession: async () => {
        const gated = await session()
        await gated.query("set gate.waits = 'on'")
        return gated
      },
      waitsOrEnds: async ({ pid }, running) => {
        let ended = false
        const end = () => {
          ended = true
        }
        running.then(end, end)
        while (!ended && !(await holds("pg_blocking_pids($1) <> '{}'", pid)));
      },
      waitedFor: async ({ pid }) => {
        while (!(await holds("exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", pid)));
      },
      closeGate: async () => {
        await keeper.query("select pg_advisory_lock(7, 7)")
      },
      openGate: async () => {
        await keeper.query("select pg_advisory_unlock(7, 7)")
      }
    })
  } finally {
    await Promise.all(clients.map((client) => client.end()))
  }
}
