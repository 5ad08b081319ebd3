// `npm run conformance [-- MAJOR… TEST_FILE…]`: the conformance suite, or the given tests, on one PostgreSQL after the other.
import { fetchPostgres, majors } from "./postgres.mjs"
import { run } from "./supervise.mjs"

/** What an engine must do, and what random programs find. */
const suite = ["packages/testing/test/Conformance.test.ts", "test/programs"]

const args = process.argv.slice(2)
const chosen = args.filter((arg) => /^\d+$/.test(arg)).map(Number)
const tests = args.filter((arg) => !/^\d+$/.test(arg))
const unknown = chosen.find((major) => !majors.includes(major))
if (unknown !== undefined) {
  console.error(`There is no PostgreSQL ${unknown} here: choose among ${majors.join(", ")}.`)
  process.exit(1)
}

/** The server of a run is always its own: `DATABASE_URL` would have one version. */
const { DATABASE_URL: _, ...environment } = process.env

const runOn = async (major) => {
  const path = await fetchPostgres(run, major)
  console.log(`\n── PostgreSQL ${major} ──`)
  return run(
    process.execPath,
    ["node_modules/vitest/vitest.mjs", "run", ...(tests.length === 0 ? suite : tests)],
    { ...environment, AWA_TEST_POSTGRES: String(major), ...(path === undefined ? {} : { NODE_PATH: path }) }
  )
}

const results = []
for (const major of chosen.length === 0 ? majors : chosen) results.push({ major, code: await runOn(major) })
console.log()
for (const { code, major } of results) console.log(`PostgreSQL ${major}: ${code === 0 ? "passed" : "FAILED"}`)
process.exit(results.every(({ code }) => code === 0) ? 0 : 1)
