/**
 * Jobs a second through many worker processes that work one job at a time and fetch one job at a time, all on one queue.
 * As many jobs go before those that are counted: a worker that has just started runs code that is not compiled yet, and
 * with more workers than processors that takes many jobs. Of the time of two processors with sixteen workers compiling
 * took an eighth after 20,000 of our jobs (a 25th with graphile-worker, which has less code), and nothing after 60,000.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import { configurationOf } from "../Report.js"
import { awaitTrue, freshDatabase, type Server } from "../Server.js"
import { monotonicMillis } from "../Statistics.js"
import type { Settings, System } from "../System.js"
import { checkHistory, load, workerOf } from "./Drain.js"
import { throughput } from "./inRounds.js"

const settingsOf = (system: System): Settings => workerOf(system).alone ?? workerOf(system).latency

/** Who has handled nothing for so long will not go on. */
const stuckMillis = 60_000

const measure = (server: Server, system: System, jobs: number, processes: number) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    const settings = settingsOf(system)
    yield* load(system, { url, jobs: 2 * jobs, settings })
    const workers = yield* Effect.replicateEffect(ChildProcess.start(system.name), processes, {
      concurrency: "unbounded"
    })
    yield* Effect.forEach(workers, (worker) => worker.call("work", { url, settings }), {
      concurrency: "unbounded",
      discard: true
    })
    const handled = Effect.map(
      Effect.forEach(workers, (worker) => worker.call("handledSoFar", undefined)),
      (counts) => counts.reduce((sum, count) => sum + count, 0)
    )
    const awaitHandled = (count: number) =>
      Effect.iterate({ done: 0, since: monotonicMillis() }, {
        while: ({ done }) => done < count,
        body: ({ done, since }) =>
          Effect.filterOrDieMessage(
            Effect.map(Effect.delay(handled, "20 millis"), (now) => ({
              done: now,
              since: now > done ? monotonicMillis() : since
            })),
            (progress) => monotonicMillis() - progress.since < stuckMillis,
            `${system.name} stands still at ${done} of ${count} jobs`
          )
      }).pipe(Effect.map(({ done }) => done))
    const warm = yield* awaitHandled(jobs)
    const started = monotonicMillis()
    yield* awaitHandled(2 * jobs)
    const ended = yield* awaitTrue(url, workerOf(system).settled, monotonicMillis)
    yield* checkHistory(system, url, 2 * jobs)
    return (2 * jobs - warm) / ((ended - started) / 1000)
  }).pipe(Effect.scoped)

export const claimers: Benchmark = {
  summary: "many worker processes with room for one job each, on one queue",
  systems: (peers) => [
    "awa",
    "awa-4-shards",
    ...peers.map((peer) => peer === "graphile-worker" ? "graphile-worker-default" : peer)
  ],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 60_000
    const processes = options.processes ?? 16
    return throughput({
      benchmark: `claimers: ${jobs} no-op jobs, after as many, by ${processes} processes that work one job at a time`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 3,
      server,
      configuration: (system) => configurationOf(system, { processes, settings: settingsOf(system) }),
      measure: ({ system }) => measure(server, system, jobs, processes)
    })
  }
}
