import { Effect } from "effect"
import type { ChildFailed } from "../ChildProcess.js"
import * as Report from "../Report.js"
import * as Rounds from "../Rounds.js"
import { environment, type Server } from "../Server.js"
import type { System } from "../System.js"

/** Measures the contenders in rounds, and reports the figures of each and ours by those of the others. */
export const inRounds = <A, R>(options: {
  readonly benchmark: string
  readonly contenders: ReadonlyArray<Rounds.Contender>
  readonly rounds: number
  readonly server: Server
  readonly configuration: (system: System) => unknown
  readonly measure: (contender: Rounds.Contender, round: number) => Effect.Effect<A, ChildFailed, R>
  readonly show: (result: A) => string
  readonly figures: (rounds: ReadonlyArray<A>) => Report.Figures
}): Effect.Effect<Report.Report, ChildFailed, R> =>
  Effect.gen(function*() {
    const results = yield* Rounds.run(options)
    const figures = Report.figuresOf(results.of, options.figures)
    return {
      benchmark: options.benchmark,
      figures,
      failures: results.failures,
      ratios: Report.ratiosTo("awa", figures),
      configurations: Object.fromEntries(
        options.contenders.map(({ system }) => [system.name, options.configuration(system)])
      ),
      environment: yield* environment(options.server)
    }
  })

/** Of rounds that answer jobs a second. */
export const throughput = <R>(
  options: Omit<Parameters<typeof inRounds<number, R>>[0], "show" | "figures">
): Effect.Effect<Report.Report, ChildFailed, R> =>
  inRounds({
    ...options,
    show: (rate) => `${Report.round(rate)} jobs/s`,
    figures: (rates) => Report.figure(rates, "jobs/s")
  })
