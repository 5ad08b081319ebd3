/**
 * From a failure of the SQL client to an error of this library.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import type { SqlError } from "@effect/sql/SqlError"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import { ConnectionFailed, DatabaseError, PermissionDenied } from "../Errors.js"
import * as pgErrors from "./pgErrors.js"

/** @internal */
export interface Server {
  readonly host?: string | undefined
  readonly port?: number | undefined
  readonly database?: string | undefined
}

/**
 * What a client knows of its server.
 *
 * @internal
 */
export const serverOf = (sql: SqlClient.SqlClient): Server =>
  Predicate.hasProperty(sql, PgClient.TypeId) ? (sql as PgClient.PgClient).config : {}

/** @internal */
export const connectionFailed = (cause: unknown, { database, host, port }: Server): ConnectionFailed =>
  new ConnectionFailed({
    reason: Option.getOrElse(pgErrors.connectionReason(cause), () => "other" as const),
    target: `${host ?? "localhost"}:${port ?? 5432}/${database ?? ""}`,
    cause
  })

/** @internal */
export const databaseError = (operation: string, cause: unknown): DatabaseError =>
  new DatabaseError({ operation, sqlState: Option.getOrNull(pgErrors.sqlState(cause)), cause })

/**
 * No connection, no privilege, or any other failure. `advice` is for who lacks a privilege.
 *
 * @internal
 */
export const fromSqlError =
  (operation: string, advice: string) =>
  ({ cause }: SqlError): Effect.Effect<never, ConnectionFailed | PermissionDenied | DatabaseError> =>
    Effect.flatMap(Effect.serviceOption(SqlClient.SqlClient), (sql) =>
      Effect.fail(
        Option.contains(pgErrors.sqlState(cause), "42501")
          ? new PermissionDenied({ operation, hint: `${pgErrors.describe(cause)}. ${advice}` })
          : Option.isSome(pgErrors.connectionReason(cause))
          ? connectionFailed(cause, Option.match(sql, { onNone: () => ({}), onSome: serverOf }))
          : databaseError(operation, cause)
      ))

/** No such schema, function or table. */
const missing = new Set(["3F000", "42883", "42P01"])

/** @internal */
export const isMissing = ({ cause }: SqlError): boolean =>
  Option.exists(pgErrors.sqlState(cause), (state) => missing.has(state))
