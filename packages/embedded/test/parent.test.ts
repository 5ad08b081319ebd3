import { assert, describe, it } from "@effect/vitest"
import { Effect, Schedule } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync } from "node:fs"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"

const holder = fileURLToPath(new URL("fixtures/holder.ts", import.meta.url))

interface Held {
  readonly pid: number
  readonly home: string
}

/** A process of its own group, as a terminal gives to each command. */
const startHolder = (how = "hold") =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, ["--conditions=awa-source", "--import", "tsx", holder, how], {
        detached: true,
        stdio: ["pipe", "pipe", "ignore"]
      })
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  )

const held = (child: ChildProcess) =>
  Effect.promise(async () => {
    const [line] = await once(createInterface(child.stdout!), "line") as [string]
    return JSON.parse(line) as Held
  })

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

const gone = ({ home, pid }: Held) =>
  Effect.sync(() => !isAlive(pid) && !existsSync(home)).pipe(
    Effect.repeat({ until: (done) => done, schedule: Schedule.spaced("20 millis") }),
    Effect.timeout("20 seconds")
  )

describe("the server ends with its parent", () => {
  for (const signal of ["SIGKILL", "SIGTERM"] as const) {
    it.scopedLive(signal, () =>
      Effect.gen(function*() {
        const child = yield* startHolder()
        const server = yield* held(child)
        assert.isTrue(isAlive(server.pid))
        child.kill(signal)
        yield* gone(server)
      }))
  }

  it.scopedLive("Ctrl-C, which goes to the whole process group", () =>
    Effect.gen(function*() {
      const child = yield* startHolder()
      const server = yield* held(child)
      process.kill(-child.pid!, "SIGINT")
      yield* gone(server)
    }))

  for (const how of ["exit", "throw"]) {
    it.scopedLive(`the parent's own ${how}`, () =>
      Effect.gen(function*() {
        const child = yield* startHolder(how)
        yield* gone(yield* held(child))
      }))
  }

  it.scopedLive("even when the server does not react", () =>
    Effect.gen(function*() {
      const child = yield* startHolder()
      const server = yield* held(child)
      process.kill(server.pid, "SIGSTOP")
      child.kill("SIGKILL")
      yield* gone(server)
    }))
})
