import * as Database from "@awa/model/Database"
import { type ConnectionFailed, ForeignDatabase, type InvalidSetting, StorageInconsistent } from "@awa/model/Errors"
import { maintenanceLock } from "@awa/model/Locks"
import * as QueueStorage from "@awa/model/QueueStorage"
import { StorageSchemas } from "@awa/model/StorageSchemas"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Redacted from "effect/Redacted"
import * as Scope from "effect/Scope"
import { Socket } from "node:net"
import type * as Pg from "pg"
import type { Service as Notifier } from "../Notifier.js"
import { pollOnly } from "../Notifier.js"
import { Signals } from "../Signals.js"
import * as Leadership from "./leadership.js"
import * as Listener from "./listener.js"
import type { Settings } from "./settings.js"

export interface Connections {
  /** For the storage engine. */
  readonly sql: SqlClient.SqlClient
  readonly notifier: Notifier
  readonly leadership: Leadership.Leadership
}

/** A network that swallows packets is noticed this long after the statement should have ended. */
const silenceMarginMillis = 5_000

/** No statement of ours waits longer for a lock. */
const lockTimeoutMillis = 10_000

/** A transaction of ours that idles this long has lost its worker. */
const idleInTransactionMillis = 60_000

/**
 * The connections of one worker, apart from the application's pool, which user code may exhaust or leave in an odd
 * state: a small pool for the storage engine, one connection that listens, one that leads.
 *
 * They are opened with the configuration of the application's client. One that cannot tell it, as when its pool was made
 * elsewhere with a password function, is used itself; then the worker only polls.
 */
export const open = (
  settings: Settings["connections"],
  instanceId: string
): Effect.Effect<
  Connections,
  ConnectionFailed | InvalidSetting | ForeignDatabase | StorageInconsistent,
  PgClient.PgClient | Scope.Scope
> =>
  Effect.gen(function*() {
    const client = yield* PgClient.PgClient
    const scope = yield* Scope.fork(yield* Effect.scope, ExecutionStrategy.sequential)
    return yield* Scope.extend(dedicated(client, settings, instanceId), scope).pipe(
      Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause))),
      Effect.catchIf(
        (error) => error._tag === "ConnectionFailed" && error.reason === "authentication",
        (error) =>
          Effect.as(
            Effect.logWarning(
              "The PgClient does not tell what its connections are made with. The worker shares its pool and polls; " +
                "use Database.layer of @awa/model to give it connections of its own",
              error
            ),
            { sql: client, notifier: pollOnly, leadership: Leadership.shared }
          )
      )
    )
  })

const dedicated = (client: PgClient.PgClient, settings: Settings["connections"], instanceId: string) =>
  Effect.gen(function*() {
    const schemas = yield* StorageSchemas
    const schema = schemas.engine
    const applicationName = `awa worker ${instanceId.slice(0, 8)}`
    const polls = settings.notifications === "poll"

    const makeSocket = yield* impatientSockets(Duration.toMillis(settings.statementTimeout) + silenceMarginMillis)

    const sql = yield* Database.clone(client, {
      applicationName,
      maxConnections: settings.poolSize,
      connectTimeout: settings.connectTimeout,
      stream: makeSocket,
      onConnect: async (connection) => {
        // Behind a pooler a session is somebody else's the next moment: leave it as it is.
        if (!polls) await connection.query(sessionSettings(settings.statementTimeout))
        const { problem, text } = QueueStorage.identityCheck(schemas)
        const { rows } = await connection.query(text)
        const found = problem(rows[0])
        if (found !== undefined) throw found
      }
    }).pipe(Effect.catchTag("ConnectionFailed", (error) => Effect.fail(unwelcome(error.cause) ?? error)))

    if (polls) return { sql, notifier: pollOnly, leadership: Leadership.shared }

    const base = Redacted.value(yield* Database.connectionConfig(client))
    const config: Pg.ClientConfig = {
      ...base,
      application_name: applicationName,
      connectionTimeoutMillis: Duration.toMillis(settings.connectTimeout)
    }
    const notifier = yield* Listener.make({ config, schema, signal: yield* Signals })
    const leadership = Leadership.exclusive({ config, schema, isFree: isLeadFree(sql, schema) })
    return { sql, notifier, leadership }
  })

/**
 * Sockets that end themselves after a silence: what waits on one then fails instead of hanging for a quarter of an hour.
 * None outlives the scope: node-postgres forgets one whose password it did not have, and the server waits for it.
 */
const impatientSockets = (silenceMillis: number): Effect.Effect<() => Socket, never, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => new Set<Socket>()),
      (sockets) => Effect.sync(() => sockets.forEach((socket) => socket.destroy()))
    ),
    (sockets) => () => {
      const socket = new Socket()
      sockets.add(socket)
      socket.once("close", () => sockets.delete(socket))
      // Not before it is connected: nobody hears the error of a socket that an unused client holds.
      return socket.once("connect", () => {
        // The idle time-out of the socket itself: a network that is gone moves no clock of a fiber.
        socket.setTimeout(silenceMillis, () => socket.destroy(new Error(`No answer for ${silenceMillis} ms`)))
      })
    }
  )

/** What the check of a new connection found, if it was that which made connecting fail. */
const unwelcome = (cause: unknown): ForeignDatabase | StorageInconsistent | undefined =>
  cause instanceof ForeignDatabase || cause instanceof StorageInconsistent ? cause : undefined

const sessionSettings = (statementTimeout: Duration.Duration): string => `
  set session characteristics as transaction isolation level read committed;
  set statement_timeout = ${Math.ceil(Duration.toMillis(statementTimeout))};
  set lock_timeout = ${lockTimeoutMillis};
  set idle_in_transaction_session_timeout = ${idleInTransactionMillis}
`

/** Whether nobody held the maintenance lock just now: taken and given back within one statement. */
const isLeadFree = (sql: SqlClient.SqlClient, schema: string) => {
  const [lockClass, key] = maintenanceLock(schema)
  return sql<{ free: boolean }>`select pg_try_advisory_xact_lock(${lockClass}, ${key}) as free`.pipe(
    Effect.map(([row]) => row?.free === true),
    Effect.catchAll(Database.fromSqlError("look for the leader")),
    Effect.provideService(SqlClient.SqlClient, sql)
  )
}
