/**
 * `npm run stress -- programs [--seconds N] [--seed N] [--length N]`: random programs on a server of their own, for as long as
 * one likes. A failure is told as the shortest program that shows it, with the seed that brings it back.
 */
import { EmbeddedPostgres } from "@awa/embedded"
import { Effect, FastCheck as fc } from "effect"
import { parseArgs } from "node:util"
import { programs } from "./support/program.js"
import { makeHost } from "./support/real.js"

const { values } = parseArgs({
  options: { seconds: { type: "string" }, seed: { type: "string" }, length: { type: "string" } }
})
const number = (name: keyof typeof values, otherwise: number): number => {
  const value = Number(values[name] ?? otherwise)
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`--${name} takes a positive whole number`)
  return value
}
const seconds = number("seconds", 60)
const first = number("seed", 1 + Date.now() % 1_000_000)
const length = number("length", 80)

/** So many programs a seed: one that failed is found again in seconds. */
const runs = 25

const stress = async (url: string): Promise<number> => {
  process.env["AWA_TEST_ADMIN_URL"] = url
  const end = performance.now() + seconds * 1000
  let done = 0
  for (let seed = first; performance.now() < end; seed++) {
    const host = makeHost()
    const result = await fc.check(programs(host, length), { seed, numRuns: runs, unbiased: true })
    await host.close()
    done += result.numRuns
    if (result.failed) {
      console.error(fc.defaultReportMessage(result))
      console.error(`Again: npm run stress -- programs --seed ${seed} --length ${length} --seconds 1`)
      return 1
    }
  }
  console.log(JSON.stringify({ programs: done, length, seed: first, failed: 0 }))
  return 0
}

const server = EmbeddedPostgres.make({ fsync: false, settings: { max_connections: 200, autovacuum: "off" } })

process.exitCode = await Effect.runPromise(
  Effect.scoped(Effect.flatMap(server, ({ url }) => Effect.promise(() => stress(url))))
)
