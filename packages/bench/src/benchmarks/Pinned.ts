/**
 * Jobs at a fixed rate, once as usual and once while a transaction stays open that has a snapshot and a transaction id:
 * nothing that dies meanwhile can be cleaned up.
 */
import { Console, Effect, Either, type Scope } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as ChildProcess from "../ChildProcess.js"
import * as Report from "../Report.js"
import * as Rounds from "../Rounds.js"
import { environment, freshDatabase, holdTransaction, query, type Server, settle } from "../Server.js"
import { monotonicMillis, percentile } from "../Statistics.js"
import type { System } from "../System.js"
import { workerOf } from "./Drain.js"

const connections = 16

/** Jobs are sent in slices: every job that is to come costs memory. */
const sliceSeconds = 5

/** How long after the last enqueue call a system is waited for that has fallen behind. */
const patienceMillis = 30_000

interface Result {
  /** Jobs a second, from the first enqueue call to the last handler that was waited for. */
  readonly rate: number
  /** Jobs that had not been handled by then. */
  readonly behind: number
  readonly latencies: ReadonlyArray<number>
  /** Those of the last tenth: what an open transaction costs grows. */
  readonly lastLatencies: ReadonlyArray<number>
  readonly claims: ReadonlyArray<number>
  readonly lastClaims: ReadonlyArray<number>
  readonly deadRows: number
  readonly changedLogRows: number
}

const counts = `select
    coalesce(sum(n_dead_tup), 0)::int as dead,
    coalesce(sum(n_tup_upd + n_tup_del) filter (
      where schemaname = 'awa' and relname ~ '^(ready_entries|claim_batches|closures|tombstones)_'
    ), 0)::int as changed
  from pg_stat_user_tables`

const measure = (
  server: Server,
  system: System,
  { pin, rate, seconds }: { readonly pin: boolean; readonly rate: number; readonly seconds: number },
  round: number
) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    const { latency: settings } = workerOf(system)
    const flow: Effect.Effect<Omit<Result, "deadRows" | "changedLogRows">, ChildProcess.ChildFailed, Scope.Scope> =
      Effect.gen(function*() {
        const producer = yield* ChildProcess.start(system.name)
        const worker = yield* ChildProcess.start(system.name)
        yield* producer.call("install", { url, settings })
        yield* settle(url)
        yield* producer.call("connect", { url, connections })
        yield* worker.call("work", { url, settings })
        let jobs = yield* producer.call("enqueueAtRate", { rate: 50, seconds: 3, seed: 1 })
        yield* worker.call("handled", { jobs })
        if (pin) yield* holdTransaction(url)
        yield* worker.call("latencies", undefined)
        yield* worker.call("claimTimes", undefined)

        const warm = jobs
        const latencies: Array<ReadonlyArray<number>> = []
        const claims: Array<ReadonlyArray<number>> = []
        const started = monotonicMillis()
        for (let sent = 0; sent < seconds; sent += sliceSeconds) {
          const slice = Math.min(sliceSeconds, seconds - sent)
          jobs += yield* producer.call("enqueueAtRate", { rate, seconds: slice, seed: round * 10_000 + sent })
          latencies.push(yield* worker.call("latencies", undefined))
          claims.push(yield* worker.call("claimTimes", undefined))
        }
        const ended = monotonicMillis()
        const handled = yield* Effect.iterate(0, {
          while: (handled) => handled < jobs && monotonicMillis() - ended < patienceMillis,
          body: () => Effect.delay(worker.call("handledSoFar", undefined), "20 millis")
        })
        const elapsed = (monotonicMillis() - started) / 1000
        latencies.push(yield* worker.call("latencies", undefined))
        claims.push(yield* worker.call("claimTimes", undefined))
        const tail = -Math.ceil(latencies.length / 10)
        return {
          rate: (handled - warm) / elapsed,
          behind: jobs - handled,
          latencies: latencies.flat(),
          lastLatencies: latencies.slice(tail).flat(),
          claims: claims.flat(),
          lastClaims: claims.slice(tail).flat()
        }
      })
    // Connections report what they did when they end, at the latest.
    const result = yield* Effect.scoped(flow)
    const [found] = yield* query<{ dead: number; changed: number }>(url, counts)
    return { ...result, deadRows: found?.dead ?? 0, changedLogRows: found?.changed ?? 0 }
  }).pipe(Effect.scoped)

const figuresOf = (results: ReadonlyArray<Result>): Report.Figures => {
  const figure = (read: (result: Result) => number, unit: string) => Report.figure(results.map(read), unit)
  return {
    rate: figure(({ rate }) => rate, "jobs/s"),
    "jobs behind": figure(({ behind }) => behind, "jobs"),
    "latency p50": figure(({ latencies }) => percentile(latencies, 0.5), "ms"),
    "latency p99": figure(({ latencies }) => percentile(latencies, 0.99), "ms"),
    "latency p99, last tenth": figure(({ lastLatencies }) => percentile(lastLatencies, 0.99), "ms"),
    "claim p50": figure(({ claims }) => percentile(claims, 0.5), "ms"),
    "claim p99": figure(({ claims }) => percentile(claims, 0.99), "ms"),
    "claim p99, last tenth": figure(({ lastClaims }) => percentile(lastClaims, 0.99), "ms"),
    "dead rows": figure(({ deadRows }) => deadRows, "rows"),
    "updates and deletes in the log": figure(({ changedLogRows }) => changedLogRows, "rows")
  }
}

const show = (result: Result): string =>
  `${Report.round(result.rate)} jobs/s, claim p99 ${Report.round(percentile(result.claims, 0.99))} ms, latency p99 ${
    Report.round(percentile(result.latencies, 0.99))
  } ms, ${result.behind} jobs behind, ${result.deadRows} dead rows`

/** A system may hold out free and fail pinned: the former is told all the same. */
interface Both {
  readonly free: Result
  readonly pinned: Either.Either<Result, ChildProcess.ChildFailed>
}

const bothFigures = (rounds: ReadonlyArray<Both>): Report.Figures => {
  const pinned = rounds.flatMap(({ pinned }) => Either.isRight(pinned) ? [pinned.right] : [])
  const free = figuresOf(rounds.map(({ free }) => free))
  if (pinned.length === 0) return { free }
  const claimsOf = (results: ReadonlyArray<Result>) => percentile(results.flatMap(({ claims }) => claims), 0.99)
  return {
    free,
    pinned: figuresOf(pinned),
    "claim p99, pinned to free": Report.figure([claimsOf(pinned) / claimsOf(rounds.map(({ free }) => free))], "times")
  }
}

export const pinned: Benchmark = {
  summary: "a fixed rate of jobs with and without an open transaction that holds a snapshot and an id",
  systems: (peers) => ["awa", ...peers],
  run: ({ options, server, systems }) =>
    Effect.gen(function*() {
      const minutes = options.minutes ?? 10
      const freeMinutes = options.freeMinutes ?? minutes
      const rate = options.rate ?? 1000
      const results = yield* Rounds.run({
        contenders: systems.map((system) => ({ system })),
        rounds: options.rounds ?? 1,
        measure: ({ system }, round) =>
          Effect.gen(function*() {
            const free = yield* measure(server, system, { rate, seconds: freeMinutes * 60, pin: false }, round)
            yield* Console.error(`${system.name}, free: ${show(free)}`)
            const pinned = yield* Rounds.attempt(
              system,
              measure(server, system, { rate, seconds: minutes * 60, pin: true }, round)
            )
            return { free, pinned }
          }),
        show: ({ pinned }) => Either.match(pinned, { onLeft: ({ message }) => message, onRight: show })
      })
      const figures = Report.figuresOf(results.of, bothFigures)
      const failures = Array.from(results.of).flatMap(([name, rounds]) =>
        rounds.flatMap(({ pinned }) => Either.isLeft(pinned) ? [`${name}, pinned: ${pinned.left.message}`] : [])
      )
      return {
        benchmark: `pinned: ${rate} jobs/s for ${minutes} minute(s) with an open transaction, ${freeMinutes} without`,
        figures,
        failures: [...results.failures, ...failures],
        ratios: Report.ratiosTo("awa", figures),
        configurations: Object.fromEntries(
          systems.map((system) => [
            system.name,
            Report.configurationOf(system, { producerConnections: connections, settings: workerOf(system).latency })
          ])
        ),
        environment: yield* environment(server)
      }
    })
}
