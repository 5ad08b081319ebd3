/**
 * A pool of node-postgres clients that name the hot statements.
 */
import * as SqlClient from "@effect/sql/SqlClient"
import { SqlError } from "@effect/sql/SqlError"
import * as Statement from "@effect/sql/Statement"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import type * as Scope from "effect/Scope"
import * as Pg from "pg"
import type { ConnectionFailed } from "../Errors.js"
import { connectionFailed } from "./failures.js"
import { statementName } from "./statements.js"
import { isTraced } from "./trace.js"

/**
 * Lets PostgreSQL parse and plan a registered statement once a connection. @effect/sql-pg never names a statement; what
 * it sends is `(text, values, callback)` or `({ text, values }, callback)`.
 */
class NamingClient extends Pg.Client {
  override query(...args: Array<never>): never {
    return (super.query as (...args: Array<unknown>) => never).apply(this, withName(args))
  }
}

const withName = (args: Array<unknown>): Array<unknown> => {
  const [query, ...rest] = args
  if (typeof query === "string") {
    const name = Array.isArray(rest[0]) ? statementName(query) : undefined
    return name === undefined ? args : [{ name, text: query, values: rest[0] }, ...rest.slice(1)]
  }
  if (!Predicate.hasProperty(query, "text") || typeof query.text !== "string" || "name" in query) return args
  const name = statementName(query.text)
  return name === undefined ? args : [{ ...query, name }, ...rest]
}

/**
 * A pool whose server was reached once.
 *
 * @internal
 */
export const make = (
  config: Pg.PoolConfig,
  prepareStatements: boolean
): Effect.Effect<Pg.Pool, ConnectionFailed, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      // An idle connection that dies is replaced at the next checkout: nobody needs to hear of it. Who has a statement
      // under way hears of it from that.
      new Pg.Pool(prepareStatements ? { ...config, Client: NamingClient } : config)
        .on("error", () => {})
        .on("connect", (client) => client.on("error", () => {}))
    ),
    (pool) => Effect.promise(() => pool.end()).pipe(Effect.interruptible, Effect.timeoutOption("1 second"))
  ).pipe(Effect.tap(probe))

/** Takes a connection and gives it back. The pool's time limit covers the whole handshake. */
const probe = (pool: Pg.Pool): Effect.Effect<void, ConnectionFailed> =>
  Effect.tryPromise({
    try: () => pool.connect().then((client) => client.release()),
    catch: (cause) => connectionFailed(cause, new Pg.Client(pool.options))
  })

const pools = new WeakMap<SqlClient.SqlClient, Pg.Pool>()

/**
 * Remembers which pool a client stands on.
 *
 * @internal
 */
export const register = (sql: SqlClient.SqlClient, pool: Pg.Pool): void => {
  pools.set(sql, pool)
}

/** On any connection, outside any transaction. `isWanted` is asked before it is sent. */
const send = <Row>(
  pool: Pg.Pool,
  text: string,
  values: ReadonlyArray<unknown>,
  resume: (rows: Effect.Effect<ReadonlyArray<Row>, SqlError>) => void,
  isWanted: () => boolean
): void =>
  pool.connect((cause, client) => {
    if (client === undefined) {
      return resume(Effect.fail(new SqlError({ cause, message: "Failed to acquire connection" })))
    }
    if (!isWanted()) return client.release()
    client.query({ text, values: values as Array<unknown> }, (cause: Error | null, result) => {
      client.release()
      resume(
        cause === null
          ? Effect.succeed(result.rows)
          : Effect.fail(new SqlError({ cause, message: "Failed to execute statement" }))
      )
    })
  })

/**
 * Sends statements straight to the pool of a client, each on any connection and outside any transaction: a statement of
 * @effect/sql makes a span, a scope and a text of it first, which for a short one costs more than to send it. For effects
 * that are not interruptible. `undefined` for a client that `Database` has not made.
 *
 * @internal
 */
export const statementsOn = (
  sql: SqlClient.SqlClient
): (<Row>(text: string, values: ReadonlyArray<unknown>) => Effect.Effect<ReadonlyArray<Row>, SqlError>) | undefined => {
  const pool = pools.get(sql)
  return pool === undefined
    ? undefined
    : (text, values) => Effect.async((resume) => send(pool, text, values, resume, () => true))
}

/**
 * A short statement of an application: in its transaction if there is one, and with spans and a transformer of statements
 * where those are wanted; else without what @effect/sql does for them. Outside of a transaction interruption waits for
 * nothing and takes nothing back that was sent.
 *
 * @internal
 */
export const execute = <Row extends object>(
  sql: SqlClient.SqlClient,
  text: string,
  values: ReadonlyArray<unknown>
): Effect.Effect<ReadonlyArray<Row>, SqlError> =>
  Effect.withFiberRuntime((fiber) => {
    if (isTraced(fiber) || Option.isSome(fiber.getFiberRef(Statement.currentTransformer))) {
      return sql.unsafe<Row>(text, values as Array<never>).withoutTransform
    }
    const transaction = Context.getOption(fiber.currentContext, SqlClient.TransactionConnection)
    if (Option.isSome(transaction)) return transaction.value[0].execute(text, values, undefined)
    const pool = pools.get(sql)
    return pool === undefined ?
      sql.unsafe<Row>(text, values as Array<never>).withoutTransform :
      Effect.async((resume) => {
        let isWanted = true
        send(pool, text, values, resume, () => isWanted)
        return Effect.sync(() => {
          isWanted = false
        })
      })
  })
