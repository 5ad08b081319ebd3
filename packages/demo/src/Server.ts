/**
 * Where the demo's data lives: a database of its own, on the server of `DATABASE_URL` or else on an embedded one.
 */
import { EmbeddedPostgres } from "@awa/embedded"
import { SqlClient, type SqlError } from "@effect/sql"
import { Database } from "awa"
import { Config, Data, Effect, Option, Redacted, type Scope } from "effect"
import { randomBytes } from "node:crypto"

export interface OwnDatabase {
  /** Of the server, as it was given. */
  readonly url: string
  readonly name: string
  readonly version: string
  readonly isEmbedded: boolean
}

export class NoDatabase extends Data.TaggedError("NoDatabase")<{ readonly message: string }> {}

/** Makes the database; it is dropped when the scope closes. */
export const ownDatabase: Effect.Effect<
  OwnDatabase,
  NoDatabase | EmbeddedPostgres.EmbeddedPostgresError,
  Scope.Scope
> = Effect.gen(function*() {
  const given = yield* Effect.orDie(Config.option(Config.nonEmptyString("DATABASE_URL")))
  const url = Option.isSome(given) ? given.value : (yield* EmbeddedPostgres.make()).url
  const name = `awa_demo_${randomBytes(4).toString("hex")}`
  const version = yield* Effect.acquireRelease(
    asAdministrator(url, (sql) =>
      Effect.gen(function*() {
        yield* sql`create database ${sql(name)} template template0`
        const [row] = yield* sql<{ readonly version: string }>`select current_setting('server_version') as version`
        return row!.version
      })),
    () =>
      Effect.catchAll(
        asAdministrator(url, (sql) => sql`drop database if exists ${sql(name)} with (force)`),
        (error) => Effect.logWarning(`The database ${name} is left behind: ${error.message}`)
      )
  )
  return { url, name, version, isEmbedded: Option.isNone(given) }
})

const asAdministrator = <A>(
  url: string,
  use: (sql: SqlClient.SqlClient) => Effect.Effect<A, SqlError.SqlError>
): Effect.Effect<A, NoDatabase> =>
  Effect.flatMap(SqlClient.SqlClient, use).pipe(
    Effect.provide(Database.layer({ url: Redacted.make(url), maxConnections: 1 })),
    Effect.mapError((error) =>
      new NoDatabase({
        message: error._tag === "SqlError"
          ? `The demo cannot have a database of its own on the server of DATABASE_URL: ${Database.describe(error)}. ` +
            "Give it a role that may create databases, or unset DATABASE_URL to use an embedded server."
          : error.message
      })
    )
  )
