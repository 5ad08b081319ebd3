/**
 * The drain benchmark of the peers over a grid of their settings: shows which configuration is their best.
 */
import { Console, Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as Report from "../Report.js"
import { environment } from "../Server.js"
import { median } from "../Statistics.js"
import type { Settings } from "../System.js"
import { measure } from "./Drain.js"

type Grid = Readonly<Record<string, ReadonlyArray<number | boolean>>>

const grids: Readonly<Record<string, Grid>> = {
  awa: {
    maxWorkers: [50, 200, 500, 1000, 2000, 4000]
  },
  "graphile-worker-default": {
    concurrentJobs: [10, 24, 50],
    maxPoolSize: [12, 52],
    preparedStatements: [true],
    localQueueSize: [-1],
    batchDelay: [-1]
  },
  "graphile-worker": {
    concurrentJobs: [10, 24, 100, 500],
    maxPoolSize: [10],
    preparedStatements: [true],
    localQueueSize: [100, 500, 1000, 2000, 5000],
    batchDelay: [0, 2, 10, 50]
  },
  "pg-boss": {
    workers: [1, 2, 4, 8, 12, 20],
    batchSize: [100, 500, 1000, 2000, 5000],
    partition: [false, true],
    notify: [false]
  }
}

/** All combinations of a grid. */
const combinations = (grid: Grid): ReadonlyArray<Settings> =>
  Object.entries(grid).reduce<ReadonlyArray<Settings>>(
    (settings, [name, values]) => settings.flatMap((before) => values.map((value) => ({ ...before, [name]: value }))),
    [{}]
  )

/** The grid varies the delay of completions and failures together. */
const expand = ({ batchDelay, ...settings }: Settings): Settings =>
  batchDelay === undefined
    ? settings
    : { ...settings, completeJobBatchDelay: batchDelay, failJobBatchDelay: batchDelay }

const finalists = 3

export const sweep: Benchmark = {
  summary: "drain over a grid of the peers' settings, to find their best",
  systems: (peers) => peers,
  run: ({ options, server, systems }) =>
    Effect.gen(function*() {
      const jobs = options.jobs ?? 50_000
      const rounds = options.rounds ?? 3
      const figures: Record<string, Report.Figures> = {}
      const best: Record<string, unknown> = {}
      for (const system of systems) {
        const rates = new Map<Settings, Array<number>>()
        const run = (settings: Settings) =>
          Effect.gen(function*() {
            const rate = yield* measure(server, system, jobs, settings)
            rates.set(settings, [...rates.get(settings) ?? [], rate])
            yield* Console.error(`${system.name} ${JSON.stringify(settings)}: ${Report.round(rate)} jobs/s`)
          })
        const ranking = () => [...rates].sort(([, a], [, b]) => median(b) - median(a))

        yield* Effect.forEach(combinations(grids[system.name] ?? {}).map(expand), run, { discard: true })
        const last = ranking().slice(0, finalists).map(([settings]) => settings)
        for (let round = 1; round < rounds; round++) yield* Effect.forEach(last, run, { discard: true })

        figures[system.name] = Object.fromEntries(
          ranking().map(([settings, values]) => [JSON.stringify(settings), Report.figure(values, "jobs/s")])
        )
        const winner = ranking().find(([, values]) => values.length === rounds)
        best[system.name] = { remarks: ["The best of the sweep."], settings: winner?.[0] }
      }
      return {
        benchmark: `sweep: ${jobs} no-op jobs by one worker process, the best ${finalists} measured ${rounds} times`,
        figures,
        failures: [],
        ratios: {},
        configurations: best,
        environment: yield* environment(server)
      }
    })
}
