import * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import * as Database from "../Database.js"
import { type DatabaseFailure, InvalidSetting } from "../Errors.js"
import { StorageSchemas } from "../StorageSchemas.js"
import { nameRefusal } from "./insertOptions.js"

const maxShards = 64

/**
 * Over how many lanes each priority of a queue is spread, 1 to 64. Takes effect with the transaction it is in. While it
 * spreads, jobs of one ordering key may be claimed out of order; none is lost or refused.
 *
 * @internal
 */
export const setShards = (
  queue: string,
  shards: number
): Effect.Effect<void, InvalidSetting | DatabaseFailure, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const refusal = nameRefusal("queue", queue)
    if (refusal !== undefined) {
      return yield* new InvalidSetting({ setting: "queue", value: queue, reason: refusal.reason })
    }
    if (!Number.isInteger(shards) || shards < 1 || shards > maxShards) {
      return yield* new InvalidSetting({
        setting: "shards",
        value: shards,
        reason: `must be a whole number from 1 to ${maxShards}`
      })
    }
    const sql = yield* SqlClient.SqlClient
    const { engine } = yield* StorageSchemas
    yield* sql.unsafe(`select "${engine}".set_shards($1, $2)`, [queue, shards])
  }).pipe(Effect.catchTag("SqlError", Database.fromSqlError("set the number of shards")))
