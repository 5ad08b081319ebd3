import { Effect } from "effect"
import type { System } from "../System.js"

/** Loaded on demand: a measured process holds the code of one system only. */
const systems: Readonly<Record<string, () => Promise<System>>> = {
  awa: async () => (await import("./Awa.js")).awa,
  "awa-mixed": async () => (await import("./Awa.js")).mixed,
  "awa-4-shards": async () => (await import("./Awa.js")).sharded,
  "bare-insert": async () => (await import("./BareInsert.js")).bareInsert,
  "graphile-worker": async () => (await import("./GraphileWorker.js")).batched,
  "graphile-worker-default": async () => (await import("./GraphileWorker.js")).defaults,
  "pg-boss": async () => (await import("./PgBoss.js")).pgBoss,
  "bare-listen": async () => (await import("./BareListen.js")).bareListen,
  "bare-listen-insert": async () => (await import("./BareListen.js")).bareListenInsert
}

export const names: ReadonlyArray<string> = Object.keys(systems)

/** One of `names`. */
export const loadSystem = (name: string): Effect.Effect<System> => {
  const load = systems[name]
  return load === undefined ? Effect.dieMessage(`Unknown system "${name}"`) : Effect.promise(load)
}
