/**
 * Jobs a second enqueued one by one, each in a transaction of its own, over 16 connections.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import { configurationOf } from "../Report.js"
import { freshDatabase, settle } from "../Server.js"
import { throughput } from "./inRounds.js"

export const single: Benchmark = {
  summary: "one job per transaction over 16 connections",
  systems: (peers) => ["awa", "bare-insert", ...peers],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 30_000
    const connections = options.connections ?? 16
    return throughput({
      benchmark: `single: ${jobs} jobs, one a transaction, ${connections} connections`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 3,
      server,
      configuration: (system) => configurationOf(system, { connections, settings: system.worker?.throughput }),
      measure: ({ system }) =>
        Effect.gen(function*() {
          const url = yield* freshDatabase(server)
          const child = yield* ChildProcess.start(system.name)
          yield* child.call("install", { url, settings: system.worker?.throughput ?? {} })
          yield* child.call("connect", { url, connections })
          yield* child.call("enqueueEach", { jobs: Math.ceil(jobs / 10), concurrency: connections })
          yield* settle(url)
          const seconds = yield* child.call("enqueueEach", { jobs, concurrency: connections })
          return jobs / seconds
        }).pipe(Effect.scoped)
    })
  }
}
