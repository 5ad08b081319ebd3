import { maintenanceLock } from "@awa/model/Locks"
import type { StorageError } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import type * as Pg from "pg"
import * as PgConnection from "./pgConnection.js"

/** How one worker becomes the one that maintains. */
export interface Leadership {
  /** Tries to take the lead. It is kept until the scope closes or the term is lost. */
  readonly acquire: Effect.Effect<Option.Option<Term>, PgConnection.ConnectionLost | StorageError, Scope.Scope>
}

export interface Term {
  /** Fails when the lead may be gone. */
  readonly check: Effect.Effect<unknown, PgConnection.ConnectionLost>
  /** Fails as soon as the lead is known to be gone. */
  readonly lost: Effect.Effect<never, PgConnection.ConnectionLost>
}

/**
 * Everybody leads. Maintenance is safe to run side by side, only wasteful: for databases where no lock can be held
 * longer than a transaction.
 */
export const shared: Leadership = {
  acquire: Effect.succeed(Option.some({ check: Effect.void, lost: Effect.never }))
}

/**
 * The lead is a session lock on a connection of its own, which is closed when the term ends, however it ends: so no
 * session that somebody else uses ever holds it. `isFree` spares the others a connection each time they try.
 */
export const exclusive = (options: {
  readonly config: Pg.ClientConfig
  readonly schema: string
  readonly isFree: Effect.Effect<boolean, StorageError>
}): Leadership => ({
  acquire: Effect.gen(function*() {
    if (!(yield* options.isFree)) return Option.none()
    const connection = yield* PgConnection.open(options.config)
    const [row] = yield* connection.query(
      "select pg_try_advisory_lock($1, $2) as held",
      maintenanceLock(options.schema)
    )
    return row?.["held"] === true
      ? Option.some({ check: connection.query("select 1"), lost: connection.ended })
      : Option.none()
  })
})
