/**
 * Bytes of write-ahead log for each job: enqueued, claimed and completed in batches of 128. Without the full-page images
 * that follow a checkpoint, which say more about the checkpoint than about the queue.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import * as Report from "../Report.js"
import { awaitTrue, freshDatabase, query, script, type Server } from "../Server.js"
import { monotonicMillis } from "../Statistics.js"
import type { Settings, System } from "../System.js"
import { workerOf } from "./Drain.js"
import { inRounds } from "./inRounds.js"

const batch = 128

/** Of ours; the batches of the others are what their best configuration makes them. */
const batched: Settings = { maxWorkers: 4 * batch, batchSize: batch }

const settingsOf = (system: System): Settings => system.name === "awa" ? batched : workerOf(system).throughput

/** Full-page images are a setting of the server, not of a session. */
const withoutFullPages = (server: Server) =>
  Effect.acquireRelease(
    script(server.url, ["alter system set full_page_writes = off", "select pg_reload_conf()"]),
    () => script(server.url, ["alter system reset full_page_writes", "select pg_reload_conf()"])
  ).pipe(Effect.zipRight(awaitTrue(
    server.url,
    "select current_setting('full_page_writes') = 'off' as settled",
    monotonicMillis
  )))

const position = (url: string) =>
  Effect.map(
    query<{ bytes: string }>(url, "select pg_current_wal_insert_lsn() - '0/0' as bytes"),
    ([row]) => Number(row!.bytes)
  )

interface Sample {
  readonly enqueued: number
  readonly worked: number
}

const measure = (server: Server, system: System, jobs: number) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    const settings = settingsOf(system)
    const producer = yield* ChildProcess.start(system.name)
    const worker = yield* ChildProcess.start(system.name)
    yield* producer.call("install", { url, settings })
    yield* producer.call("connect", { url, connections: 1 })
    const before = yield* position(url)
    yield* producer.call("enqueueMany", { jobs, perStatement: batch, concurrency: 1 })
    const between = yield* position(url)
    yield* worker.call("work", { url, settings })
    yield* worker.call("handled", { jobs })
    yield* awaitTrue(url, workerOf(system).settled, monotonicMillis)
    const after = yield* position(url)
    const sample: Sample = { enqueued: (between - before) / jobs, worked: (after - between) / jobs }
    return sample
  }).pipe(Effect.scoped)

const figuresOf = (rounds: ReadonlyArray<Sample>): Report.Figures => {
  const figure = (read: (sample: Sample) => number) => Report.figure(rounds.map(read), "bytes")
  return {
    enqueue: figure(({ enqueued }) => enqueued),
    work: figure(({ worked }) => worked),
    "whole way": figure(({ enqueued, worked }) => enqueued + worked)
  }
}

export const wal: Benchmark = {
  summary: "bytes of write-ahead log for each job, in batches of 128",
  systems: (peers) => ["awa", ...peers],
  run: ({ options, server, systems }) => {
    const jobs = Math.ceil((options.jobs ?? 50_000) / batch) * batch
    return Effect.zipRight(
      withoutFullPages(server),
      inRounds({
        benchmark: `wal: ${jobs} jobs, enqueued ${batch} a statement, full_page_writes off`,
        contenders: systems.map((system) => ({ system })),
        rounds: options.rounds ?? 1,
        server,
        configuration: (system) => Report.configurationOf(system, { settings: settingsOf(system) }),
        measure: ({ system }) => measure(server, system, jobs),
        show: ({ enqueued, worked }) => `${Report.round(enqueued + worked)} bytes a job`,
        figures: figuresOf
      })
    )
  }
}
