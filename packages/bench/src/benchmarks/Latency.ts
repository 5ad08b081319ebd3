/**
 * Milliseconds from the start of the enqueue call in one process to the start of the handler in another, jobs arriving
 * at random (Poisson) at a low and a high rate.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import * as Report from "../Report.js"
import * as Rounds from "../Rounds.js"
import { environment, freshDatabase, type Server, settle } from "../Server.js"
import { percentile } from "../Statistics.js"
import type { System } from "../System.js"
import { workerOf } from "./Drain.js"

const connections = 4

interface Phase {
  readonly rate: number
  readonly seconds: number
}

type Samples = ReadonlyMap<number, ReadonlyArray<number>>

const warmUp: Phase = { rate: 50, seconds: 3 }

const measure = (server: Server, system: System, phases: ReadonlyArray<Phase>, round: number) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    const { latency: settings } = workerOf(system)
    const producer = yield* ChildProcess.start(system.name)
    const worker = yield* ChildProcess.start(system.name)
    yield* producer.call("install", { url, settings })
    yield* settle(url)
    yield* producer.call("connect", { url, connections })
    yield* worker.call("work", { url, settings })

    const samples = new Map<number, ReadonlyArray<number>>()
    let jobs = 0
    for (const phase of [warmUp, ...phases]) {
      jobs += yield* producer.call("enqueueAtRate", { ...phase, seed: round * 1000 + phase.rate })
      yield* worker.call("handled", { jobs })
      samples.set(phase.rate, yield* worker.call("latencies", undefined))
      yield* Effect.sleep("1 second") // the worker comes to rest, as it is between arrivals
    }
    return samples as Samples
  }).pipe(Effect.scoped)

const percentiles = { p50: 0.5, p95: 0.95, p99: 0.99 }

const figuresOf = (rounds: ReadonlyArray<Samples>, phases: ReadonlyArray<Phase>): Report.Figures =>
  Object.fromEntries(phases.map(({ rate }) => [
    `${rate}/s`,
    Object.fromEntries(
      Object.entries(percentiles).map(([name, p]) => [
        name,
        Report.figure(rounds.map((samples) => percentile(samples.get(rate) ?? [], p)), "ms")
      ])
    )
  ]))

export const latency: Benchmark = {
  summary: "enqueue call to handler start at 5 and 200 jobs a second",
  systems: (peers) => ["awa", "bare-listen", "bare-listen-insert", ...peers],
  run: ({ options, server, systems }) =>
    Effect.gen(function*() {
      const jobs = options.jobs ?? 2000
      const phases: ReadonlyArray<Phase> = [
        { rate: 5, seconds: jobs / 10 / 5 },
        { rate: 200, seconds: jobs / 200 }
      ]
      const results = yield* Rounds.run({
        contenders: systems.map((system) => ({ system })),
        rounds: options.rounds ?? 3,
        measure: ({ system }, round) => measure(server, system, phases, round),
        show: (samples) =>
          phases.map(({ rate }) => {
            const values = samples.get(rate) ?? []
            return `${rate}/s p50 ${Report.round(percentile(values, 0.5))} p99 ${
              Report.round(percentile(values, 0.99))
            } ms`
          }).join(", ")
      })
      const figures = Report.figuresOf(results.of, (rounds) => figuresOf(rounds, phases))
      return {
        benchmark: `latency: about ${jobs / 10} jobs a round at 5/s and ${jobs} at 200/s`,
        figures,
        failures: results.failures,
        ratios: Report.ratiosTo("awa", figures),
        configurations: Object.fromEntries(systems.map((system) => [
          system.name,
          Report.configurationOf(system, { producerConnections: connections, settings: workerOf(system).latency })
        ])),
        environment: yield* environment(server)
      }
    })
}
