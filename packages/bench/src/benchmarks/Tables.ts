/**
 * What PostgreSQL did to the tables of the log during a drain with retries, snoozes, cancellations, failures and rescues:
 * rows inserted, updated and deleted.
 */
import { Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import * as Report from "../Report.js"
import { awaitTrue, freshDatabase, query, type Server } from "../Server.js"
import { monotonicMillis } from "../Statistics.js"
import type { System } from "../System.js"
import { checkHistory, load, workerOf } from "./Drain.js"
import { inRounds } from "./inRounds.js"

/** The partitioned tables of the log, and beside them the tables whose rows do change. */
const log = ["ready_entries", "claim_batches", "closures"]
const beside = ["leases", "deferred_jobs", "finished_jobs", "lanes", "slots"]

interface TableCounts {
  readonly table: string
  readonly inserted: number
  readonly updated: number
  readonly deleted: number
}

const countsOf = (url: string) =>
  query<TableCounts>(
    url,
    `select
      regexp_replace(relname, '_\\d+$', '') as table,
      sum(n_tup_ins)::int as inserted, sum(n_tup_upd)::int as updated, sum(n_tup_del)::int as deleted
    from pg_stat_user_tables
    where schemaname = 'awa' and regexp_replace(relname, '_\\d+$', '') = any ($1)
    group by 1`,
    [[...log, ...beside]]
  )

/** Backends report what they did a moment after they did it, at the latest when they end. */
const allReported = `select bool_and(s.inserted >= t.present) as settled
  from (values
    ('ready_entries', (select count(*) from awa.ready_entries)),
    ('claim_batches', (select count(*) from awa.claim_batches)),
    ('closures', (select count(*) from awa.closures))
  ) t(name, present)
  join (
    select regexp_replace(relname, '_\\d+$', '') as name, sum(n_tup_ins) as inserted
    from pg_stat_user_tables where schemaname = 'awa' group by 1
  ) s on s.name = t.name`

interface Result {
  readonly tables: ReadonlyArray<TableCounts>
  /** Attempts by the way they ended. */
  readonly acts: Readonly<Record<string, number>>
}

const measure = (server: Server, system: System, jobs: number) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    const { settled, throughput: settings } = workerOf(system)
    yield* load(system, { url, jobs, settings })

    const first = yield* ChildProcess.start(system.name)
    yield* first.call("work", { url, settings: { ...settings, hangs: true } })
    yield* first.call("handled", { jobs: Math.floor(jobs / 2) })
    yield* awaitTrue(url, "select count(*) > 0 as settled from awa.leases", monotonicMillis)
    yield* first.kill
    yield* Effect.scoped(Effect.gen(function*() {
      const second = yield* ChildProcess.start(system.name)
      yield* second.call("work", { url, settings })
      yield* awaitTrue(url, settled, monotonicMillis)
    }))

    yield* checkHistory(system, url, jobs)
    yield* awaitTrue(url, allReported, monotonicMillis)
    const acts = yield* query<{ act: string; n: number }>(
      url,
      "select act::text as act, sum(n)::int as n from awa.closures group by 1 order by 1"
    )
    return {
      tables: yield* countsOf(url),
      acts: Object.fromEntries(acts.map(({ act, n }) => [act, n]))
    }
  }).pipe(Effect.scoped)

const changed = ({ tables }: Result): number =>
  tables.filter(({ table }) => log.includes(table)).reduce((sum, { deleted, updated }) => sum + updated + deleted, 0)

const figuresOf = (results: ReadonlyArray<Result>): Report.Figures => {
  const figure = (read: (counts: TableCounts) => number, table: string) =>
    Report.figure(
      results.map(({ tables }) => tables.filter((counts) => counts.table === table).reduce((n, t) => n + read(t), 0)),
      "rows"
    )
  const acts = new Set(results.flatMap((result) => Object.keys(result.acts)))
  return {
    "updates and deletes in the log": Report.figure(results.map(changed), "rows"),
    ...Object.fromEntries([...log, ...beside].map((table) => [table, {
      inserted: figure(({ inserted }) => inserted, table),
      updated: figure(({ updated }) => updated, table),
      deleted: figure(({ deleted }) => deleted, table)
    }])),
    "attempts ended by": Object.fromEntries(
      [...acts].map((act) => [act, Report.figure(results.map((result) => result.acts[act] ?? 0), "attempts")])
    )
  }
}

export const tables: Benchmark = {
  summary: "rows inserted, updated and deleted in the log by a drain with every kind of outcome",
  systems: () => ["awa-mixed"],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 20_000
    return inRounds({
      benchmark: `tables: ${jobs} jobs of every outcome, one worker killed`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 1,
      server,
      configuration: (system) => Report.configurationOf(system, { settings: workerOf(system).throughput }),
      measure: ({ system }) => measure(server, system, jobs),
      show: (result) => `${changed(result)} updates and deletes in the log; ended by ${JSON.stringify(result.acts)}`,
      figures: figuresOf
    })
  }
}
