import { SqlClient } from "@effect/sql"
import { Effect, FastCheck as fc } from "effect"
import { command } from "../support/command.js"

/** New jobs go to another slot from here on; in between, producers that have not heard of it still write to the old one. */
export const rotate = command("rotate", {
  weight: 2,
  fields: { publishes: fc.boolean() },
  run: ({ publishes }, model) =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* sql`select awa.rotate(0, ${new Date(model.now)})`
      if (publishes) yield* sql`select awa.publish_slot()`
    })
})

/** The further steps of a slot's life, for all that are sealed: none of them changes what a reader sees, but the last. */
export const tidy = command("tidy", {
  weight: 2,
  fields: { evictAge: fc.constantFrom(0, 60_000), parkAge: fc.constantFrom(0, 100_000_000), frees: fc.boolean() },
  run: ({ evictAge, frees, parkAge }, model) =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const now = new Date(model.now)
      yield* sql`select awa.publish_slot()`
      for (const { slot } of yield* sql<{ slot: number }>`select slot from awa.sealed_slots()`) {
        yield* sql`select awa.count_slot(${slot}::smallint)`
        const [evicted] = yield* sql<{ n: number }>`select awa.evict(${slot}::smallint, ${evictAge}, 500, ${now}) as n`
        if (evicted?.n !== 0) model.forgets = true
        yield* sql`select awa.drain_slot(${slot}::smallint, ${parkAge}, 100, ${now})`
        if (!frees) continue
        const [answer] = yield* sql<{ is: string }>`select awa.free_slot(${slot}::smallint, 0, 0, ${now}) as is`
        if (answer?.is === "freed") model.forgets = true
      }
    })
})
