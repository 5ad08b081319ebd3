/** A server for trying things out: prints its URL and runs until Ctrl-C. `--fsync` makes it durable. */
import { EmbeddedPostgres } from "@awa/embedded"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Console, Effect } from "effect"

NodeRuntime.runMain(Effect.scoped(Effect.gen(function*() {
  const server = yield* EmbeddedPostgres.make({
    fsync: process.argv.includes("--fsync"),
    settings: { max_connections: 300 }
  })
  yield* Console.log(server.url)
  return yield* Effect.never
})))
