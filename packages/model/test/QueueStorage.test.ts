import { Job, QueueStorage } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { MigratedLive } from "./support/database.js"

const Anything = Job.make("anything", { payload: Schema.Unknown })

/** What the engine says when it starts on a database that was tampered with. */
const startsWith = (tamper: string) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    yield* Anything.enqueueMany([1, 2, 3])
    yield* sql.unsafe(tamper)
    return yield* Effect.flip(QueueStorage.make)
  }).pipe(Effect.provide(MigratedLive()))

describe("the engine at its start", () => {
  it.effect("accepts what it wrote itself", () =>
    Effect.gen(function*() {
      yield* QueueStorage.make
      yield* Anything.enqueueMany([1, 2, 3])
      yield* QueueStorage.make
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("refuses the data of another cluster", () =>
    Effect.gen(function*() {
      const error = yield* startsWith("update awa.epochs set system_identifier = 42")
      assert.strictEqual(error._tag, "ForeignDatabase")
      assert.include(error.message, "cluster 42")
    }))

  it.effect("refuses a sequence that caches values", () =>
    Effect.gen(function*() {
      const error = yield* startsWith("alter sequence awa.pos_seq cache 10")
      assert.strictEqual(error._tag, "StorageInconsistent")
      assert.include(error.message, "awa.pos_seq")
    }))

  it.effect("refuses a sequence that is behind the data", () =>
    Effect.gen(function*() {
      const error = yield* startsWith("select setval('awa.pos_seq', 2)")
      assert.strictEqual(error._tag, "StorageInconsistent")
      assert.include(error.message, "sequence pos_seq is behind")
    }))
})
