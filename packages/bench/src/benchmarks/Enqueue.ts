/**
 * Jobs a second through the bulk call of each system, 1,000 a statement, one call after the other.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import { configurationOf } from "../Report.js"
import { freshDatabase, settle } from "../Server.js"
import { throughput } from "./inRounds.js"

const perStatement = 1000

export const enqueue: Benchmark = {
  summary: "bulk enqueue, 1,000 jobs a statement",
  systems: (peers) => ["awa", ...peers],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 100_000
    const connections = options.connections ?? 1
    return throughput({
      benchmark: `enqueue: ${jobs} jobs, ${perStatement} a statement, ${connections} connection(s)`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 3,
      server,
      configuration: (system) =>
        configurationOf(system, { perStatement, connections, settings: system.worker?.throughput }),
      measure: ({ system }) =>
        Effect.gen(function*() {
          const url = yield* freshDatabase(server)
          const child = yield* ChildProcess.start(system.name)
          yield* child.call("install", { url, settings: system.worker?.throughput ?? {} })
          yield* child.call("connect", { url, connections })
          yield* child.call("enqueueMany", { jobs: perStatement * 3, perStatement, concurrency: connections })
          yield* settle(url)
          const seconds = yield* child.call("enqueueMany", { jobs, perStatement, concurrency: connections })
          return jobs / seconds
        }).pipe(Effect.scoped)
    })
  }
}
