/**
 * `npm run bench -- BENCHMARK [options]`
 */
import { Console, Effect } from "effect"
import { parseArgs } from "node:util"
import { type Benchmark } from "./Benchmark.js"
import { backlog } from "./benchmarks/Backlog.js"
import { claimers } from "./benchmarks/Claimers.js"
import { drain } from "./benchmarks/Drain.js"
import { enqueue } from "./benchmarks/Enqueue.js"
import { latency } from "./benchmarks/Latency.js"
import { memory } from "./benchmarks/Memory.js"
import { pinned } from "./benchmarks/Pinned.js"
import { reading } from "./benchmarks/Reading.js"
import { single } from "./benchmarks/Single.js"
import { sweep } from "./benchmarks/Sweep.js"
import { tables } from "./benchmarks/Tables.js"
import { wal } from "./benchmarks/Wal.js"
import * as CommandLine from "./CommandLine.js"
import * as Report from "./Report.js"
import { startServer } from "./Server.js"
import { loadSystem, names } from "./systems/index.js"

const benchmarks: Readonly<Record<string, Benchmark>> = {
  enqueue,
  single,
  drain,
  latency,
  pinned,
  claimers,
  memory,
  tables,
  wal,
  backlog,
  reading,
  sweep
}

const usage = `npm run bench -- BENCHMARK [options]

${Object.entries(benchmarks).map(([name, { summary }]) => `  ${name.padEnd(9)}${summary}`).join("\n")}

  --jobs N          jobs of one measurement
  --rounds N        rounds (3)
  --connections N   concurrent producers (enqueue: 1, single: 16)
  --minutes N       length of each run of pinned (10)
  --free-minutes N  length of its runs without the open transaction (as --minutes)
  --rate N          jobs a second of pinned (1,000)
  --processes N     worker processes of claimers (16)
  --peers a,b       queues to compare with (graphile-worker,pg-boss)
  --only a,b        measure exactly these systems
  --json FILE       write the results as JSON too

A fresh PostgreSQL 18 is started unless DATABASE_URL names a server whose role may create databases.`

const parse = CommandLine.parse(usage, () => {
  const { positionals, values } = parseArgs({
    allowPositionals: true,
    options: {
      jobs: { type: "string" },
      rounds: { type: "string" },
      connections: { type: "string" },
      minutes: { type: "string" },
      "free-minutes": { type: "string" },
      rate: { type: "string" },
      processes: { type: "string" },
      peers: { type: "string", default: "graphile-worker,pg-boss" },
      only: { type: "string" },
      json: { type: "string" }
    }
  })
  const [name, ...more] = positionals
  if (name === undefined || more.length > 0) throw new CommandLine.UsageError({ message: "Name one benchmark" })
  const benchmark = benchmarks[name]
  if (benchmark === undefined) {
    throw new CommandLine.UsageError({ message: `"${name}" is not one of ${Object.keys(benchmarks).join(", ")}` })
  }
  const peers = CommandLine.list(values.peers)
  const systems = values.only === undefined ? benchmark.systems(peers) : CommandLine.list(values.only)
  const unknown = systems.find((name) => !names.includes(name))
  if (unknown !== undefined) {
    throw new CommandLine.UsageError({ message: `"${unknown}" is not one of ${names.join(", ")}` })
  }
  return {
    benchmark,
    systems,
    json: values.json,
    options: {
      jobs: CommandLine.positive("jobs", values.jobs),
      rounds: CommandLine.positive("rounds", values.rounds),
      connections: CommandLine.positive("connections", values.connections),
      minutes: CommandLine.positive("minutes", values.minutes),
      freeMinutes: CommandLine.positive("free-minutes", values["free-minutes"]),
      rate: CommandLine.positive("rate", values.rate),
      processes: CommandLine.positive("processes", values.processes),
      peers
    }
  }
})

const program = Effect.gen(function*() {
  const { benchmark, json, options, systems } = yield* parse
  const report = yield* Effect.scoped(Effect.gen(function*() {
    const server = yield* startServer
    return yield* benchmark.run({ server, options, systems: yield* Effect.forEach(systems, loadSystem) })
  }))
  yield* Console.log(Report.toText(report))
  yield* CommandLine.writeJson(json, report)
})

CommandLine.main(program)
