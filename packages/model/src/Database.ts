/**
 * Connections and transactions: the one place that opens them.
 *
 * @since 0.1.0
 */
import * as Reactivity from "@effect/experimental/Reactivity"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import type { Connection } from "@effect/sql/SqlConnection"
import * as SqlError from "@effect/sql/SqlError"
import * as Config from "effect/Config"
import type * as ConfigError from "effect/ConfigError"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import type { Duplex } from "node:stream"
import type { ConnectionOptions } from "node:tls"
import type * as Pg from "pg"
import { ConnectionFailed, DatabaseError, type DatabaseFailure, type InvalidSetting, SchemaMissing } from "./Errors.js"
import * as failures from "./internal/failures.js"
import * as pgConnection from "./internal/pgConnection.js"
import * as pgErrors from "./internal/pgErrors.js"
import * as pool from "./internal/pool.js"
import * as poolConfig from "./internal/poolConfig.js"
import { StorageSchemas } from "./StorageSchemas.js"

/**
 * How to reach PostgreSQL. What is left out is taken from `url`, then from the variables `PGHOST`, `PGPORT`, … of the
 * environment, then from PostgreSQL's defaults.
 *
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** `postgres://user:password@host:port/database?sslmode=verify-full` */
  readonly url?: Redacted.Redacted | string | undefined
  /** A host name, or the folder of a Unix socket. */
  readonly host?: string | undefined
  readonly port?: number | undefined
  readonly database?: string | undefined
  readonly username?: string | undefined
  /** A function is asked for every new connection: for passwords that expire. */
  readonly password?: Redacted.Redacted | string | (() => string | Promise<string>) | undefined
  readonly ssl?: boolean | ConnectionOptions | undefined
  readonly stream?: (() => Duplex) | undefined
  /** Default: 10. */
  readonly maxConnections?: number | undefined
  /** Connections that stay open when idle. Default: 0. */
  readonly minConnections?: number | undefined
  /** Bounds connecting as well as the wait for a free connection of the pool. Default: 5 seconds. */
  readonly connectTimeout?: Duration.DurationInput | undefined
  /** How long a connection may idle before it is closed. Default: 10 seconds. */
  readonly idleTimeout?: Duration.DurationInput | undefined
  /** The age at which a connection is replaced. Default: none. */
  readonly connectionTTL?: Duration.DurationInput | undefined
  /** Shown in `pg_stat_activity`. Default: `awa`. */
  readonly applicationName?: string | undefined
  /**
   * Lets PostgreSQL keep the plans of this library's hot statements. Turn it off behind a transaction-mode pooler that
   * does not track prepared statements. Default: true.
   */
  readonly prepareStatements?: boolean | undefined
  readonly spanAttributes?: Record<string, unknown> | undefined
  readonly transformResultNames?: ((name: string) => string) | undefined
  readonly transformQueryNames?: ((name: string) => string) | undefined
  readonly transformJson?: boolean | undefined
  readonly types?: Pg.CustomTypesConfig | undefined
  /** Runs on every new connection before its first use: for settings of the session. A rejection closes it again. */
  readonly onConnect?: ((client: Pg.ClientBase) => Promise<void>) | undefined
}

// What a client was made from. A `PgClientConfig` has no room for all of it, a password function for one.
const optionsByConfig = new WeakMap<PgClient.PgClientConfig, Options>()

const optionsOf = (client: PgClient.PgClient): Options => optionsByConfig.get(client.config) ?? client.config

/**
 * A client over a pool of its own, which was reached once before the client is handed out.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (
  options: Options
): Effect.Effect<PgClient.PgClient, ConnectionFailed | InvalidSetting, Scope.Scope | Reactivity.Reactivity> =>
  Effect.gen(function*() {
    const config = yield* poolConfig.make(options)
    const acquired = yield* pool.make(config, options.prepareStatements ?? true)
    const client = yield* Effect.orDie(PgClient.fromPool({ ...options, acquire: Effect.succeed(acquired) }))
    const clientConfig = poolConfig.toClientConfig(config, options)
    optionsByConfig.set(clientConfig, options)
    pool.register(client, acquired)
    return Object.assign(client, { config: clientConfig })
  })

const toLayer = <E>(
  client: Effect.Effect<PgClient.PgClient, E, Scope.Scope | Reactivity.Reactivity>
): Layer.Layer<SqlClient.SqlClient | PgClient.PgClient, E> =>
  Layer.scopedContext(
    Effect.map(
      client,
      (client) => Context.make(PgClient.PgClient, client).pipe(Context.add(SqlClient.SqlClient, client))
    )
  ).pipe(Layer.provide(Reactivity.layer))

/**
 * The recommended client, for applications and workers: `SqlClient` and `PgClient` over one pool, with typed connection
 * failures and prepared hot statements.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options
): Layer.Layer<SqlClient.SqlClient | PgClient.PgClient, ConnectionFailed | InvalidSetting> => toLayer(make(options))

/**
 * `layer` with its options read from `Config`.
 *
 * @example
 * ```ts
 * import { Database } from "@awa/model"
 * import { Config } from "effect"
 *
 * const DatabaseLive = Database.layerConfig({ url: Config.redacted("DATABASE_URL") })
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layerConfig = (
  config: Config.Config.Wrap<Options>
): Layer.Layer<
  SqlClient.SqlClient | PgClient.PgClient,
  ConnectionFailed | InvalidSetting | ConfigError.ConfigError
> => toLayer(Effect.flatMap(Config.unwrap(config), make))

/**
 * A second client, connected like the first but over a pool of its own and free of the application's name transforms and
 * type parsers.
 *
 * @since 0.1.0
 * @category constructors
 */
export const clone = (
  client: PgClient.PgClient,
  overrides: Pick<
    Options,
    "maxConnections" | "minConnections" | "connectTimeout" | "applicationName" | "stream" | "onConnect"
  >
): Effect.Effect<PgClient.PgClient, ConnectionFailed | InvalidSetting, Scope.Scope> =>
  make({
    ...optionsOf(client),
    transformJson: undefined,
    transformQueryNames: undefined,
    transformResultNames: undefined,
    types: undefined,
    ...overrides
  }).pipe(Effect.provideServiceEffect(Reactivity.Reactivity, Reactivity.make))

/**
 * What node-postgres needs to open one more connection like those of a client: for a connection that must not be shared,
 * such as a listener's. (A client of `PgClient.layerFromPool` does not know its password function.)
 *
 * @since 0.1.0
 * @category accessors
 */
export const connectionConfig = (
  client: PgClient.PgClient
): Effect.Effect<Redacted.Redacted<Pg.ClientConfig>, InvalidSetting> =>
  Effect.map(poolConfig.make({ ...optionsOf(client), types: undefined }), Redacted.make)

// Transactions

/**
 * @since 0.1.0
 * @category models
 */
export type Isolation = "read committed" | "repeatable read" | "serializable"

/**
 * Runs an effect in a transaction: committed when it succeeds, rolled back when it fails or is interrupted. Every
 * statement of the effect joins it, an `enqueue` too.
 *
 * Inside another transaction it is a savepoint, and `isolation` has no effect. A COMMIT that fails is a typed failure,
 * and so is one that PostgreSQL answers with a rollback because the effect ignored the failure of a statement.
 *
 * @since 0.1.0
 * @category transactions
 */
export const transaction = <A, E, R>(
  self: Effect.Effect<A, E, R>,
  options?: { readonly isolation?: Isolation | undefined }
): Effect.Effect<A, E | ConnectionFailed | DatabaseError, R | SqlClient.SqlClient> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.flatMap(ambient, (outer) => {
      const run = (depth: number) => (connection: Connection) =>
        Effect.flatMap(begin(connection, depth, options?.isolation), () =>
          Effect.flatMap(Effect.exit(restore(within(self, connection, depth))), (exit) =>
            Effect.zipRight(Exit.isSuccess(exit) ? commit(connection, depth) : rollback(connection, depth), exit)))
      return outer === undefined ? withReserved(run(0)) : run(outer[1] + 1)(outer[0])
    })
  ).pipe(Effect.withSpan("sql.transaction", { kind: "client", captureStackTrace: false }))

/**
 * Runs an effect outside the transaction it is called in: for what must be visible before that ends, or survive its
 * rollback.
 *
 * @since 0.1.0
 * @category transactions
 */
export const outsideTransaction = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  // No effect requires the transaction: statements look for it and do without. Mostly there is none to be taken away.
  Effect.contextWithEffect((context: Context.Context<R>) =>
    context.unsafeMap.has(SqlClient.TransactionConnection.key)
      ? Effect.mapInputContext(self, () => Context.omit(SqlClient.TransactionConnection)(context) as Context.Context<R>)
      : self
  )

/**
 * Runs all statements of an effect on one connection that is theirs alone, outside any transaction of the caller. A
 * `transaction` in it is a real one.
 *
 * @since 0.1.0
 * @category transactions
 */
export const pinned = <A, E, R>(
  self: Effect.Effect<A, E, R>
): Effect.Effect<A, E | ConnectionFailed, R | SqlClient.SqlClient> =>
  withReserved((connection) => within(self, connection, -1))

/**
 * Runs an effect in a transaction that was opened on a node-postgres client, by an ORM perhaps: send BEGIN before, COMMIT
 * after. Brings its own `SqlClient` if there is none, so that this is all it takes to enqueue a job there; what needs a
 * connection of its own (`Queues.pause`, `outsideTransaction`) then fails with `ConnectionFailed`.
 *
 * @example
 * ```ts
 * import { Database, Job } from "@awa/model"
 * import { Effect, Schema } from "effect"
 * import type { PoolClient } from "pg"
 *
 * const SendEmail = Job.make("send_email", { payload: { to: Schema.String } })
 *
 * const enqueue = (client: PoolClient) =>
 *   Effect.runPromise(SendEmail.enqueue({ to: "ada@example.com" }).pipe(Database.joinPgTransaction(client)))
 * ```
 *
 * @since 0.1.0
 * @category transactions
 */
export const joinPgTransaction =
  (client: Pg.ClientBase) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, Exclude<R, SqlClient.SqlClient>> => {
    const connection = pgConnection.fromClient(client)
    const sql = Effect.flatMap(
      Effect.serviceOption(SqlClient.SqlClient),
      Option.match({ onNone: () => pgConnection.joinedSqlClient, onSome: Effect.succeed })
    )
    return Effect.provideServiceEffect(within(self, connection, 0), SqlClient.SqlClient, sql)
  }

/** The caller's transaction, or a pinned connection (at depth -1). */
const ambient: Effect.Effect<readonly [connection: Connection, depth: number] | undefined> = Effect.map(
  Effect.serviceOption(SqlClient.TransactionConnection),
  Option.getOrUndefined
)

const within = <A, E, R>(self: Effect.Effect<A, E, R>, connection: Connection, depth: number): Effect.Effect<A, E, R> =>
  Effect.mapInputContext(
    self,
    (context: Context.Context<R>) => Context.add(context, SqlClient.TransactionConnection, [connection, depth])
  )

/** Acquiring is not interruptible: a connection that arrived after an interruption would be lost to the pool. */
const withReserved = <A, E, R>(
  use: (connection: Connection) => Effect.Effect<A, E, R>
): Effect.Effect<A, E | ConnectionFailed, R | SqlClient.SqlClient> =>
  Effect.acquireUseRelease(
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const scope = yield* Scope.make()
      const connection = yield* Effect.mapError(
        Scope.extend(sql.reserve, scope),
        ({ cause }) => failures.connectionFailed(cause, failures.serverOf(sql))
      )
      return [connection, scope] as const
    }),
    ([connection]) => use(connection),
    ([, scope], exit) => Scope.close(scope, exit)
  )

const send = (connection: Connection, operation: string, text: string): Effect.Effect<unknown, DatabaseError> =>
  Effect.mapError(connection.executeRaw(text, []), ({ cause }) => failures.databaseError(operation, cause))

const begin = (connection: Connection, depth: number, isolation: Isolation | undefined) =>
  depth > 0
    ? Effect.mapError(send(connection, "savepoint", `SAVEPOINT effect_sql_${depth}`), withoutBegin)
    : send(connection, "begin", isolation === undefined ? "BEGIN" : `BEGIN ISOLATION LEVEL ${isolation.toUpperCase()}`)

/** Of a joined client. */
const withoutBegin = (error: DatabaseError): DatabaseError =>
  error.sqlState === "25P01"
    ? new DatabaseError({
      operation: error.operation,
      sqlState: error.sqlState,
      cause: new Error("the client that was joined is in no transaction; send BEGIN on it before")
    })
    : error

/** A failed COMMIT may leave the transaction open, hence the rollback. */
const commit = (connection: Connection, depth: number) =>
  (depth > 0
    ? send(connection, "release savepoint", `RELEASE SAVEPOINT effect_sql_${depth}`)
    : Effect.filterOrFail(send(connection, "commit", "COMMIT"), isCommitted, rolledBackByServer)).pipe(
      Effect.tapError(() => rollback(connection, depth))
    )

const isCommitted = (result: unknown): boolean =>
  !Predicate.hasProperty(result, "command") || result.command !== "ROLLBACK"

const rolledBackByServer = () =>
  new DatabaseError({
    operation: "commit",
    sqlState: "25P02",
    cause: new Error(
      "PostgreSQL rolled the transaction back: a statement in it had failed and its failure was ignored. " +
        "Put a statement that may fail in a transaction of its own, inside the other"
    )
  })

/**
 * Never fails: the reason for the rollback is what the caller must hear, and a connection on which it cannot be sent
 * ends its transaction by dying. The second try is for a late cancel request that hit the first.
 */
const rollback = (connection: Connection, depth: number): Effect.Effect<void> =>
  send(
    connection,
    "rollback",
    depth > 0 ? `ROLLBACK TO SAVEPOINT effect_sql_${depth}; RELEASE SAVEPOINT effect_sql_${depth}` : "ROLLBACK"
  ).pipe(
    Effect.retry({ times: 1 }),
    Effect.catchAll((error) => Effect.logDebug("rollback failed", error))
  )

// Failures

/**
 * The SQLSTATE of a failure, if it was the server that failed.
 *
 * @since 0.1.0
 * @category errors
 */
export const sqlState = (error: unknown): Option.Option<string> =>
  isSqlError(error) || error instanceof ConnectionFailed
    ? pgErrors.sqlState(error.cause)
    : error instanceof DatabaseError
    ? Option.fromNullable(error.sqlState)
    : Option.none()

/**
 * Whether doing the same again may succeed: a deadlock, a serialization failure, a lost connection, a server that is
 * restarting.
 *
 * @since 0.1.0
 * @category errors
 */
export const isTransient = (error: unknown): boolean =>
  error instanceof ConnectionFailed || error instanceof DatabaseError
    ? error.isTransient
    : isSqlError(error) && pgErrors.isTransientState(Option.getOrNull(sqlState(error)))

/**
 * Repeats an effect that fails for a transient reason, up to five times within about two seconds. Inside a transaction it
 * does nothing: PostgreSQL accepts no more statements there, so it is the transaction that must be repeated.
 *
 * @since 0.1.0
 * @category errors
 */
export const retryTransient = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.flatMap(ambient, (outer) =>
    outer !== undefined && outer[1] >= 0 ? self : Effect.retry(self, {
      while: isTransient,
      schedule: Schedule.jittered(Schedule.exponential("50 millis")),
      times: 5
    }))

/**
 * Turns a failure of the SQL client into one of this library, telling apart what an operator must act upon: no
 * connection, no schema, no privilege. For `Effect.catchTag("SqlError", …)`.
 *
 * @since 0.1.0
 * @category errors
 */
export const fromSqlError = (operation: string) => {
  const failure = failures.fromSqlError(operation, "The owner of the schema can grant it: see Migrations.grants.")
  return (error: SqlError.SqlError): Effect.Effect<never, DatabaseFailure> =>
    failures.isMissing(error)
      ? Effect.flatMap(StorageSchemas, ({ engine }) => Effect.fail(new SchemaMissing({ schema: engine })))
      : failure(error)
}

/**
 * What the server, the driver or the operating system said, in a few words.
 *
 * @since 0.1.0
 * @category errors
 */
export const describe = (error: SqlError.SqlError | ConnectionFailed | DatabaseError): string =>
  pgErrors.describe(error.cause)

const isSqlError = (error: unknown): error is SqlError.SqlError => error instanceof SqlError.SqlError
