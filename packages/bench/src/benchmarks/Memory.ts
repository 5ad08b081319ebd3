/**
 * The worker's heap after forced garbage collections, when it has handled a number of jobs and five times as many.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import * as Report from "../Report.js"
import { awaitTrue, freshDatabase, type Server } from "../Server.js"
import { monotonicMillis } from "../Statistics.js"
import type { System } from "../System.js"
import { checkHistory, workerOf } from "./Drain.js"
import { inRounds } from "./inRounds.js"

const mebibyte = 2 ** 20

/** Heap in MiB at each of the ascending numbers of jobs. */
const measure = (server: Server, system: System, marks: ReadonlyArray<number>) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    const { settled, throughput: settings } = workerOf(system)
    const producer = yield* ChildProcess.start(system.name)
    const worker = yield* ChildProcess.start(system.name)
    yield* producer.call("install", { url, settings })
    yield* producer.call("connect", { url, connections: 1 })
    yield* worker.call("work", { url, settings })

    const heaps: Array<number> = []
    let jobs = 0
    for (const mark of marks) {
      yield* producer.call("enqueueMany", { jobs: mark - jobs, perStatement: 1000, concurrency: 1 })
      jobs = mark
      yield* worker.call("handled", { jobs })
      yield* awaitTrue(url, settled, monotonicMillis)
      heaps.push((yield* worker.call("heapUsed", undefined)) / mebibyte)
    }
    yield* checkHistory(system, url, jobs)
    return heaps
  }).pipe(Effect.scoped)

export const memory: Benchmark = {
  summary: "heap of the worker after many jobs and after five times as many",
  systems: () => ["awa"],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 100_000
    const marks = [jobs, 5 * jobs]
    return inRounds({
      benchmark: `memory: heapUsed after forced GC at ${marks.join(" and ")} jobs`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 1,
      server,
      configuration: (system) => Report.configurationOf(system, { settings: workerOf(system).throughput }),
      measure: ({ system }) => measure(server, system, marks),
      show: (heaps) => heaps.map((heap, i) => `${marks[i]} jobs: ${Report.round(heap)} MiB`).join(", "),
      figures: (rounds) => ({
        ...Object.fromEntries(
          marks.map((mark, i) => [`${mark} jobs`, Report.figure(rounds.map((heaps) => heaps[i]!), "MiB")])
        ),
        growth: Report.figure(rounds.map((heaps) => heaps[1]! / heaps[0]!), "times")
      })
    })
  }
}
