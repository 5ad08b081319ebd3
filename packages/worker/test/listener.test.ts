import { Locks } from "@awa/model"
import { TestDatabase, Wait } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Listener from "../src/internal/listener.js"

describe("listener", () => {
  it.scopedLive("hears for whoever subscribes while it begins to listen", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const sql = yield* SqlClient.SqlClient
      const queues: Array<string> = []
      const heard = new Set<string>()
      const notifier = yield* Listener.make({ config: { connectionString: url }, schema: "awa", signal: () => {} })
      // From before it connects until it says that it listens, which takes a statement for each. No more than so many:
      // where a subscription is as quick as a `listen`, it would never catch up.
      while (!notifier.isListening() && queues.length < 200) {
        const queue = `queue ${queues.length}`
        queues.push(queue)
        yield* notifier.subscribe(queue, (event) => {
          if (event === "notified") heard.add(queue)
        })
        yield* sql`select 1` // the connection gets on meanwhile
      }
      yield* Wait.eventually(Effect.sync(() => assert.isTrue(notifier.isListening())))
      const channels = queues.map((queue) => Locks.wakeChannel("awa", queue))
      yield* sql`select pg_notify(c, '') from unnest(${channels}::text[]) c`
      yield* Wait.eventually(Effect.sync(() => assert.strictEqual(heard.size, queues.length)))
    }).pipe(Effect.provide(TestDatabase.layer())))
})
