import { afterEach, assert, beforeEach, describe, it } from "@effect/vitest"
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { install, lockFile } from "../src/install.mjs"

const home = process.cwd()
const systemTmp = tmpdir()
let clone = ""

const makeClone = () => {
  const folder = mkdtempSync(join(systemTmp, "awa-install-test-"))
  mkdirSync(join(folder, "node_modules"))
  writeFileSync(join(folder, "package.json"), JSON.stringify({ packageManager: "pnpm@1.2.3" }))
  writeFileSync(join(folder, "pnpm-lock.yaml"), "lock: 1")
  writeFileSync(join(folder, "pnpm-workspace.yaml"), "")
  return folder
}

beforeEach(() => {
  clone = makeClone()
  process.chdir(clone)
  process.env["TMPDIR"] = clone // the lock belongs to the machine
})

afterEach(() => {
  process.chdir(home)
  process.env["TMPDIR"] = systemTmp
  rmSync(clone, { recursive: true })
})

/** Stands for npx: records what it was asked to run. */
const fakeNpx = (codes: ReadonlyArray<number> = []) => {
  const calls: Array<string> = []
  const run = async (program: string, args: ReadonlyArray<string>) => {
    calls.push([program, ...args].join(" "))
    return codes[calls.length - 1] ?? 0
  }
  return { calls, run }
}

describe("install", () => {
  it("runs the pinned pnpm once, and again only for another lock file", async () => {
    const { calls, run } = fakeNpx()
    assert.strictEqual(await install(run), 0)
    assert.strictEqual(await install(run), 0)
    assert.lengthOf(calls, 1)
    assert.match(calls[0]!, /^npx --yes pnpm@1\.2\.3 install --frozen-lockfile/)
    writeFileSync("pnpm-lock.yaml", "lock: 2")
    assert.strictEqual(await install(run), 0)
    assert.lengthOf(calls, 2)
  })

  it("answers a failure and tries again the next time", async () => {
    const { calls, run } = fakeNpx([7, 0])
    assert.strictEqual(await install(run), 7)
    assert.strictEqual(await install(run), 0)
    assert.lengthOf(calls, 2)
  })

  it("does not trip over the lock of a process that is gone", async () => {
    writeFileSync(lockFile(), String(2 ** 22 + 1))
    const { calls, run } = fakeNpx()
    assert.strictEqual(await install(run), 0)
    assert.lengthOf(calls, 1)
  })
})
