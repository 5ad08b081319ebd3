import { afterEach, assert, beforeEach, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { mkdtempSync, readdirSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { prepare } from "../src/internal/binaries.js"

const systemTmp = tmpdir()
let tmp = ""

beforeEach(() => {
  tmp = mkdtempSync(join(systemTmp, "awa-binaries-test-"))
  process.env["TMPDIR"] = tmp
})

afterEach(() => {
  process.env["TMPDIR"] = systemTmp
  rmSync(tmp, { recursive: true })
})

const entries = (folder: string) => readdirSync(folder, { recursive: true }).length

describe("the copy of the programs", () => {
  it.live("is made once by many starts at once, and again when something is missing", () =>
    Effect.gen(function*() {
      const copies = yield* Effect.all([prepare(18), prepare(18), prepare(18)], { concurrency: "unbounded" })
      const folder = copies[0]
      assert.deepStrictEqual(copies, [folder, folder, folder])
      const complete = entries(folder)
      rmSync(join(folder, "share"), { recursive: true })
      assert.deepStrictEqual(yield* Effect.all([prepare(18), prepare(18)], { concurrency: 2 }), [folder, folder])
      assert.strictEqual(entries(folder), complete)
      assert.lengthOf(readdirSync(join(folder, "..")), 1)
    }))
})
