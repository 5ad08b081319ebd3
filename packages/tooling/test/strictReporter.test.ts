import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"

const vitest = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
const root = fileURLToPath(new URL("fixtures/strict", import.meta.url))

const run = (...args: ReadonlyArray<string>) => {
  const { status, stdout } = spawnSync(process.execPath, [vitest, "run", "--root", root, ...args], { encoding: "utf8" })
  return { status, lines: stdout.trimEnd().split("\n") }
}

describe("a run of tests", () => {
  it("ends with one line of numbers", () => {
    const { lines, status } = run("good")
    assert.strictEqual(status, 0)
    assert.strictEqual(lines.at(-1), "2 passed, 0 failed")
  })

  it("fails when a test does not run exactly once", () => {
    const { lines, status } = run("bad")
    assert.strictEqual(status, 1)
    assert.deepStrictEqual(lines.slice(-6), [
      "bad.fixture.ts > is skipped: was not run (skip)",
      "bad.fixture.ts > is to be written: was not run (todo)",
      "bad.fixture.ts > skips itself: was not run (run)",
      "bad.fixture.ts > may be retried: may be retried",
      "bad.fixture.ts > is meant to fail: is meant to fail",
      "3 passed, 5 failed"
    ])
  })

  it("may leave tests out by name", () => {
    const { lines, status } = run("bad", "-t", "^runs$")
    assert.strictEqual(status, 0)
    assert.strictEqual(lines.at(-1), "1 passed, 0 failed")
  })
})
