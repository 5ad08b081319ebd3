/**
 * Jobs a second through one worker process whose handler does nothing, the jobs already waiting: from the signal to
 * start until all of them are durably finished.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import { configurationOf } from "../Report.js"
import * as Rounds from "../Rounds.js"
import { awaitTrue, freshDatabase, query, type Server, settle } from "../Server.js"
import { monotonicMillis } from "../Statistics.js"
import type { Settings, System, Worker } from "../System.js"
import { throughput } from "./inRounds.js"

export const workerOf = (system: System): Worker => {
  if (system.worker === null) throw new Error(`${system.name} has no worker`)
  return system.worker
}

/** Installs the system and enqueues `jobs` in bulk. */
export const load = (system: System, options: {
  readonly url: string
  readonly jobs: number
  readonly settings: Settings
}) =>
  Effect.gen(function*() {
    const { jobs, settings, url } = options
    const child = yield* ChildProcess.start(system.name)
    yield* child.call("install", { url, settings })
    yield* child.call("connect", { url, connections: 1 })
    yield* child.call("enqueueMany", { jobs, perStatement: 1000, concurrency: 1 })
  }).pipe(Effect.scoped, Effect.zipRight(settle(options.url)))

/** Fails the benchmark if the system's history does not hold every job. */
export const checkHistory = (system: System, url: string, jobs: number) =>
  Effect.gen(function*() {
    const { finished } = workerOf(system)
    if (finished === null) return
    const rows = yield* query<{ finished: number }>(url, finished)
    if (rows[0]?.finished !== jobs) {
      yield* Effect.dieMessage(`${system.name} kept ${rows[0]?.finished} of ${jobs} finished jobs`)
    }
  })

/** Jobs a second of one drain. */
export const measure = (server: Server, system: System, jobs: number, settings: Settings) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    yield* load(system, { url, jobs, settings })
    const child = yield* ChildProcess.start(system.name)
    const started = monotonicMillis()
    yield* child.call("work", { url, settings })
    yield* child.call("handled", { jobs })
    const ended = yield* awaitTrue(url, workerOf(system).settled, monotonicMillis)
    yield* checkHistory(system, url, jobs)
    return jobs / ((ended - started) / 1000)
  }).pipe(Effect.scoped)

export const drain: Benchmark = {
  summary: "no-op jobs through one worker process, history kept",
  systems: (peers) => [
    "awa",
    ...peers,
    ...(peers.includes("graphile-worker") ? ["graphile-worker-default"] : [])
  ],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 100_000
    return throughput({
      benchmark: `drain: ${jobs} no-op jobs by one worker process`,
      contenders: systems.map(Rounds.contender),
      rounds: options.rounds ?? 3,
      server,
      configuration: (system) =>
        configurationOf(system, {
          settings: workerOf(system).throughput,
          ...(Rounds.slow.has(system.name) ? { measured: "once, with a fifth of the jobs" } : {})
        }),
      measure: ({ once, system }) =>
        measure(server, system, Math.ceil(jobs * (once?.share ?? 1)), workerOf(system).throughput)
    })
  }
}
