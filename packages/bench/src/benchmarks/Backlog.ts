/**
 * Milliseconds of a claim while a backlog of millions is worked off: whether the first job costs what the last one does.
 */
import { Database, QueueStorage } from "awa"
import { Effect } from "effect"
import { randomUUID } from "node:crypto"
import type { Benchmark } from "../Benchmark.js"
import * as Report from "../Report.js"
import { freshDatabase, type Server } from "../Server.js"
import { median, monotonicMillis } from "../Statistics.js"
import type { System } from "../System.js"
import { load } from "./Drain.js"
import { inRounds } from "./inRounds.js"

const queue = "bench"

/** Jobs a claim. */
const claimSize = 1000

const parts = 10

/** Claims and completes everything; answers what each claim took. */
const workOff = (jobs: number) =>
  Effect.gen(function*() {
    const engine = yield* QueueStorage.make
    const owner = randomUUID()
    const millis: Array<number> = []
    for (let taken = 0, nonce = 1; taken < jobs; nonce++) {
      const started = monotonicMillis()
      const claimed = yield* engine.claim({
        queue,
        limit: claimSize,
        owner,
        nonce: String(nonce),
        deadline: null,
        durability: "async"
      })
      millis.push(monotonicMillis() - started)
      if (claimed.length === 0) return yield* Effect.dieMessage(`${jobs - taken} jobs are missing`)
      taken += claimed.length
      yield* engine.complete(owner, claimed.map(({ token }) => ({ token, outcome: { _tag: "completed" } })))
    }
    return millis
  })

const measure = (server: Server, system: System, jobs: number) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    yield* load(system, { url, jobs, settings: {} })
    return yield* workOff(jobs).pipe(Effect.provide(Database.layer({ url, maxConnections: 1 })), Effect.orDie)
  }).pipe(Effect.scoped)

/** The median claim of each tenth of the way. */
const courseOf = (millis: ReadonlyArray<number>): ReadonlyArray<number> =>
  Array.from(
    { length: parts },
    (_, i) => median(millis.slice(Math.floor(i * millis.length / parts), Math.floor((i + 1) * millis.length / parts)))
  )

const figuresOf = (rounds: ReadonlyArray<ReadonlyArray<number>>): Report.Figures => {
  const courses = rounds.map(courseOf)
  return {
    ...Object.fromEntries(
      courses[0]!.map((_, i) => [`tenth ${i + 1}`, Report.figure(courses.map((course) => course[i]!), "ms")])
    ),
    "last to first": Report.figure(courses.map((course) => course.at(-1)! / course[0]!), "times")
  }
}

export const backlog: Benchmark = {
  summary: "a claim of 1,000 jobs, from the first to the last of 2,000,000",
  systems: () => ["awa"],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 2_000_000
    return inRounds({
      benchmark: `backlog: claims of ${claimSize} of ${jobs} waiting jobs of one queue, medians of each tenth`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 1,
      server,
      configuration: (system) => Report.configurationOf(system),
      measure: ({ system }) => measure(server, system, jobs),
      show: (millis) => courseOf(millis).map((part) => `${Report.round(part)} ms`).join(", "),
      figures: figuresOf
    })
  }
}
