import { EmbeddedPostgres } from "@awa/embedded"
import { Database, Migrations } from "awa"
import { Effect, Layer } from "effect"

/** A server of its own, with a migrated database on it. */
export const layer = Layer.unwrapScoped(
  Effect.map(EmbeddedPostgres.make({ fsync: false }), (server) =>
    Layer.effectDiscard(Migrations.run()).pipe(
      Layer.provideMerge(Database.layer({ url: server.url, connectTimeout: "2 seconds" })),
      Layer.merge(Layer.succeed(EmbeddedPostgres.EmbeddedPostgres, server))
    ))
)
