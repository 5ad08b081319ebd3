/**
 * The least that storing one job costs: a bare insert of the columns of our log into a table with the same indexes, on
 * the same client, one statement a transaction. As in any table of jobs, the id comes from a sequence and is returned.
 */
import { Database, Migrations } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { Effect, Layer } from "effect"
import type { ClientBase, QueryConfig } from "pg"
import type { Payload, System } from "../System.js"

const insert = `insert into bare_entries (
    lane_id, pos, xid, job_id, run_lease, run_at, created_at, slot, attempt, max_attempts, kind, args, envelope
  ) values (
    1, nextval('bare_seq'), pg_current_xact_id(), currval('bare_seq'), 0, now(), now(), 0, 0, 25, 'bench', $1::json, null
  )
  returning pos`

type Query = (query: string | QueryConfig, ...rest: ReadonlyArray<unknown>) => unknown

/** Names the statement, so that PostgreSQL plans it once a connection as it does with ours. */
const prepareInsert = async (client: ClientBase): Promise<void> => {
  const query = client.query.bind(client) as Query
  const named: Query = (first, ...rest) =>
    first === insert
      ? query({ name: "bare_insert", text: insert, values: rest[0] as Array<unknown> }, ...rest.slice(1))
      : typeof first === "object" && first.text === insert
      ? query({ ...first, name: "bare_insert" }, ...rest)
      : query(first, ...rest)
  Object.assign(client, { query: named })
}

export const bareInsert: System = {
  name: "bare-insert",
  remarks: [
    "Baseline: one insert a transaction through Database.layer's client, prepared, into a table like awa.ready_entries_0",
    "(same columns, same indexes, two of them partial and left empty, as with ours). The id comes from a sequence and is",
    "returned; nothing is checked or notified."
  ],
  install: ({ url }) =>
    Effect.gen(function*() {
      yield* Migrations.run()
      const sql = yield* SqlClient.SqlClient
      yield* sql`create table bare_entries (like awa.ready_entries_0 including all)`
      yield* sql`create sequence bare_seq`
    }).pipe(Effect.provide(Database.layer({ url })), Effect.orDie),
  producer: ({ connections, url }) =>
    Effect.gen(function*() {
      const context = yield* Layer.build(
        Database.layer({ url, maxConnections: connections, onConnect: prepareInsert })
      ).pipe(Effect.orDie)
      const one = (payload: Payload) =>
        Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(insert, [JSON.stringify(payload)])).pipe(
          Effect.provide(context),
          Effect.orDie,
          Effect.asVoid
        )
      return { one, many: (payloads) => Effect.forEach(payloads, one, { discard: true }) }
    }),
  worker: null
}
