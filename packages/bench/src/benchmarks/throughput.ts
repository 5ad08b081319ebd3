import { Effect } from "effect"
import * as Report from "../Report.js"
import * as Rounds from "../Rounds.js"
import { environment, type Server } from "../Server.js"
import type { System } from "../System.js"

/** Rounds of one figure in jobs a second for each system. */
export const throughputReport = <E, R>(options: {
  readonly benchmark: string
  readonly contenders: ReadonlyArray<Rounds.Contender>
  readonly rounds: number
  readonly server: Server
  readonly configuration: (system: System) => unknown
  readonly measure: (contender: Rounds.Contender) => Effect.Effect<number, E, R>
}): Effect.Effect<Report.Report, E, R> =>
  Effect.gen(function*() {
    const results = yield* Rounds.run({ ...options, show: (rate) => `${Report.round(rate)} jobs/s` })
    const figures = Object.fromEntries(
      Array.from(results, ([name, rates]) => [name, Report.figure(rates, "jobs/s")])
    )
    return {
      benchmark: options.benchmark,
      figures,
      ratios: Report.ratiosTo("awa", figures),
      configurations: Object.fromEntries(
        options.contenders.map(({ system }) => [system.name, options.configuration(system)])
      ),
      environment: yield* environment(options.server)
    }
  })
