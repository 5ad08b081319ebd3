/**
 * A plain node-postgres client in the shape of @effect/sql.
 */
import * as Reactivity from "@effect/experimental/Reactivity"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import type { Connection } from "@effect/sql/SqlConnection"
import { SqlError } from "@effect/sql/SqlError"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Pg from "pg"

/** @internal */
export const fromClient = (client: Pg.ClientBase): Connection => {
  const run = (text: string, params: ReadonlyArray<unknown>) => query(client, { text, values: [...params] })
  const execute: Connection["execute"] = (text, params, transform) =>
    Effect.map(run(text, params), ({ rows }) => transform === undefined ? rows : transform(rows))
  return {
    execute,
    executeUnprepared: execute,
    executeRaw: run,
    executeValues: (text, params) =>
      Effect.map(query(client, { text, values: [...params], rowMode: "array" }), ({ rows }) => rows),
    executeStream: (text, params, transform) => Stream.fromIterableEffect(execute(text, params, transform))
  }
}

const query = (
  client: Pg.ClientBase,
  config: Pg.QueryConfig & { readonly rowMode?: "array" }
): Effect.Effect<Pg.QueryResult, SqlError> =>
  Effect.tryPromise({
    try: () => client.query(config),
    catch: (cause) => new SqlError({ cause, message: "Failed to execute statement" })
  })

/**
 * A client for nothing but the transaction it is used in: there is no connection for what leaves that, and on the caller's
 * it would end his transaction.
 *
 * @internal
 */
export const joinedSqlClient: Effect.Effect<SqlClient.SqlClient> = Effect.suspend(() =>
  SqlClient.make({
    acquirer: Effect.fail(noOtherConnection()),
    compiler: PgClient.makeCompiler(),
    spanAttributes: [["db.system.name", "postgresql"]]
  }).pipe(Effect.provideServiceEffect(Reactivity.Reactivity, Reactivity.make))
)

const noOtherConnection = (): SqlError =>
  new SqlError({
    message: "Failed to acquire connection",
    cause: new Error(
      "this runs outside of the joined transaction and needs a connection of its own; " +
        "provide a SqlClient beside it (Database.layer)"
    )
  })
