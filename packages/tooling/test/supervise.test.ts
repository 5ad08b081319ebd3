import { assert, describe, it } from "@effect/vitest"
import { spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"

const program = fileURLToPath(new URL("fixtures/supervised.mjs", import.meta.url))

/** `ended` waits for everybody who holds the output open: the whole family. */
const start = async (how: string) => {
  const supervisor = spawn(process.execPath, [program, how], { stdio: ["ignore", "pipe", "inherit"] })
  const ended = once(supervisor, "close")
  const lines = createInterface(supervisor.stdout)
  await once(lines, "line")
  return { supervisor, ended }
}

describe("a supervised command", () => {
  it("hands its exit code on and takes its whole family along", async () => {
    const { ended } = await start("end")
    assert.deepStrictEqual(await ended, [5, null])
  })

  it("ends on a signal, with the family", async () => {
    const { ended, supervisor } = await start("stay")
    supervisor.kill("SIGTERM")
    assert.deepStrictEqual(await ended, [143, null])
  })
})
