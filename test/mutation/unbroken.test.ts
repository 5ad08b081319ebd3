import { expect, it } from "vitest"
import { quietServer } from "./support/host.js"
import { type Options, run } from "./support/program.js"
import { withWorld } from "./support/world.js"

const server = quietServer()

/** The long form: AWA_MUTATION_SECONDS=30, with another AWA_MUTATION_SEED each time. */
const seconds = Number(process.env["AWA_MUTATION_SECONDS"] ?? 5)
const seed = Number(process.env["AWA_MUTATION_SEED"] ?? 1)

it.each<readonly [title: string, options: Pick<Options, "turning" | "shards">]>([
  ["the shipped SQL loses nothing, doubles nothing and keeps the order", {}],
  ["it does so while the slots of the log are rotated, emptied and freed", { turning: true }],
  ["it does so with several shards", { shards: 3 }]
])("%s", async (_title, options) => {
  const { done, wrong } = await server.withDatabase((url) =>
    withWorld(url, (world) => run(world, { seconds, seed: seed * 1000, ...options }))
  )
  console.log(JSON.stringify({ seconds, seed, ...options, done, wrong }))
  expect(wrong).toEqual(Object.fromEntries(Object.keys(wrong).map((what) => [what, 0])))
  // Those depend on who comes first; the rules of eviction have scenarios of their own.
  const uncertain = ["conflicts", "evicted"]
  expect(Object.entries(done).filter(([what, count]) => count === 0 && !uncertain.includes(what))).toEqual([])
}, seconds * 1000 + 60_000)
