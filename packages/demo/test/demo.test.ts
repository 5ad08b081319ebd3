import { assert, describe, it } from "@effect/vitest"
import { Effect, Schedule } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"
import * as Pg from "pg"

const program = fileURLToPath(new URL("../src/main.ts", import.meta.url))

interface Demo {
  readonly process: ChildProcess
  /** All it has said so far. */
  readonly output: () => string
  readonly exit: Effect.Effect<number | null>
}

/** A demo in a process group of its own, as a terminal gives to each command. */
const start = (environment: Record<string, string | undefined>) =>
  Effect.acquireRelease(
    Effect.sync((): Demo => {
      const child = spawn(process.execPath, ["--conditions=awa-source", "--import", "tsx", program, "--short"], {
        detached: true,
        env: { ...process.env, DATABASE_URL: undefined, ...environment },
        stdio: ["ignore", "pipe", "pipe"]
      })
      let output = ""
      for (const stream of [child.stdout, child.stderr]) {
        stream.setEncoding("utf8").on("data", (text: string) => {
          output += text
        })
      }
      const exit = once(child, "exit").then(([code]) => code as number | null)
      return { process: child, output: () => output, exit: Effect.promise(() => exit) }
    }),
    ({ process: child }) => Effect.sync(() => child.kill("SIGKILL"))
  )

const eventually = (isIt: () => boolean, otherwise: () => string) =>
  Effect.sync(isIt).pipe(
    Effect.repeat({ until: (done) => done, schedule: Schedule.spaced("20 millis") }),
    Effect.timeoutFail({ duration: "150 seconds", onTimeout: () => new Error(otherwise()) })
  )

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

const workersOf = (output: string) => [...output.matchAll(/pid (\d+)/g)].map(([, pid]) => Number(pid))

const said = (demo: Demo, what: string) =>
  Effect.raceFirst(
    eventually(() => demo.output().includes(what), demo.output),
    Effect.flatMap(demo.exit, () => Effect.fail(new Error(demo.output())))
  )

const adminUrl = () => process.env["AWA_TEST_ADMIN_URL"]!

const databaseOf = (output: string) => /database (awa_demo_\w+)/.exec(output)![1]!

const query = (text: string, database?: string) =>
  Effect.promise(async () => {
    const url = new URL(adminUrl())
    if (database !== undefined) url.pathname = database
    const client = new Pg.Client({ connectionString: url.href })
    await client.connect()
    const { rows } = await client.query(text)
    await client.end()
    return rows
  })

/** Neither processes nor a database. */
const nothingLeft = (output: string) =>
  Effect.map(query(`select from pg_database where datname = '${databaseOf(output)}'`), (databases) => {
    assert.deepStrictEqual(databases, [])
    assert.deepStrictEqual(workersOf(output).filter(isAlive), [])
  })

const honest = Effect.gen(function*() {
  const demo = yield* start({ DATABASE_URL: adminUrl() })
  assert.strictEqual(yield* demo.exit, 0, demo.output())
  assert.match(demo.output(), /Killed worker 1 while it rendered Video/)
  assert.match(demo.output(), /Video \d goes on after frame/)
  assert.match(demo.output(), /render_video +5 +5 +0 +0 +\d+ +✓/)
  assert.notMatch(demo.output(), /✗|\x1b/)
  yield* nothingLeft(demo.output())
})

const deceived = Effect.gen(function*() {
  const demo = yield* start({ DATABASE_URL: adminUrl() })
  yield* said(demo, "Enqueued")
  yield* query("insert into shop.orders values (1000, 'nobody')", databaseOf(demo.output()))
  assert.strictEqual(yield* demo.exit, 1, demo.output())
  assert.match(demo.output(), /orders, each with the job that confirms it: 10 recorded, 11 in the database/)
  yield* nothingLeft(demo.output())
})

describe("the demo", () => {
  it.scopedLive(
    "finds that all went well, while another one finds what did not",
    () => Effect.all([honest, deceived], { concurrency: 2 }),
    180_000
  )

  it.scopedLive("takes everything along when Ctrl-C ends it", () =>
    Effect.gen(function*() {
      const demo = yield* start({ DATABASE_URL: adminUrl() })
      yield* said(demo, "Started")
      assert.strictEqual(workersOf(demo.output()).filter(isAlive).length, 2)
      process.kill(-demo.process.pid!, "SIGINT")
      assert.strictEqual(yield* demo.exit, 130)
      yield* nothingLeft(demo.output())
    }), 120_000)

  it.scopedLive("takes its workers along when it is killed", () =>
    Effect.gen(function*() {
      const demo = yield* start({})
      yield* said(demo, "Started")
      const workers = workersOf(demo.output())
      assert.strictEqual(workers.filter(isAlive).length, 2)
      demo.process.kill("SIGKILL")
      yield* eventually(() => !workers.some(isAlive), () => `still alive: ${workers.filter(isAlive).join(", ")}`)
    }), 120_000)

  it.scopedLive("says what is wrong with DATABASE_URL", () =>
    Effect.gen(function*() {
      const demo = yield* start({ DATABASE_URL: "postgres://nobody@127.0.0.1:1/nothing" })
      assert.strictEqual(yield* demo.exit, 1)
      assert.match(demo.output(), /^Cannot connect to PostgreSQL at 127\.0\.0\.1:1\/nothing: .*\n$/)
    }), 60_000)
})
