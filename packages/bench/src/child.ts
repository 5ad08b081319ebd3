/**
 * A child process: serves the calls of `Protocol` for the system named on its command line until the parent lets go.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Cause, Effect, Logger, LogLevel, Runtime, Scope } from "effect"
import type { Calls, Request, Response } from "./Protocol.js"
import { watchStatements } from "./Statements.js"
import { monotonicMillis, poissonArrivals } from "./Statistics.js"
import { payload, type Producer, type System, type Worker } from "./System.js"
import { loadSystem } from "./systems/index.js"

const required = <A>(value: A | null | undefined, what: string): A => {
  if (value === null || value === undefined) throw new Error(`${what} is missing`)
  return value
}

const timed = (self: Effect.Effect<void>): Effect.Effect<number> =>
  Effect.suspend(() => {
    const started = monotonicMillis()
    return Effect.map(self, () => (monotonicMillis() - started) / 1000)
  })

const range = (from: number, count: number) => Array.from({ length: count }, (_, i) => payload(from + i, 0))

type Handlers = {
  readonly [Name in keyof Calls]: (
    input: Calls[Name]["input"]
  ) => Effect.Effect<Calls[Name]["output"], never, Scope.Scope>
}

const makeHandlers = (system: System): Handlers => {
  let producer: Producer | undefined
  let enqueued = 0
  let handled = 0
  let latencies: Array<number> = []
  const claims = watchStatements(system.worker?.claims)
  let awaited: { readonly jobs: number; readonly resume: () => void } | undefined

  const handle: Parameters<Worker["start"]>[0]["handle"] = (job) => {
    if (job.sentAt > 0) latencies.push(monotonicMillis() - job.sentAt)
    handled += 1
    if (awaited !== undefined && handled >= awaited.jobs) awaited.resume()
  }

  return {
    install: (options) => Effect.asVoid(system.install(options)),
    connect: (options) =>
      Effect.map(system.producer(options), (connected) => {
        producer = connected
      }),
    enqueueMany: ({ concurrency, jobs, perStatement }) =>
      Effect.suspend(() => {
        const { many } = required(producer, "The producer")
        const batches: Array<ReturnType<typeof range>> = []
        for (let done = 0; done < jobs; done += perStatement) {
          batches.push(range(enqueued + done, Math.min(perStatement, jobs - done)))
        }
        enqueued += jobs
        return timed(Effect.forEach(batches, many, { concurrency, discard: true }))
      }),
    enqueueEach: ({ concurrency, jobs }) =>
      Effect.suspend(() => {
        const { one } = required(producer, "The producer")
        const payloads = range(enqueued, jobs)
        enqueued += jobs
        return timed(Effect.forEach(payloads, one, { concurrency, discard: true }))
      }),
    enqueueAtRate: ({ rate, seconds, seed }) =>
      Effect.suspend(() => {
        const { one } = required(producer, "The producer")
        const arrivals = poissonArrivals(rate, seconds, seed)
        const started = monotonicMillis()
        return Effect.forEach(
          arrivals,
          (at) =>
            Effect.suspend(() => Effect.sleep(Math.max(0, started + at - monotonicMillis()))).pipe(
              Effect.zipRight(Effect.suspend(() => one(payload(enqueued++, monotonicMillis()))))
            ),
          { concurrency: "unbounded", discard: true }
        ).pipe(Effect.as(arrivals.length))
      }),
    work: ({ settings, url }) =>
      Effect.suspend(() => required(system.worker, "The worker").start({ url, settings, handle })).pipe(Effect.asVoid),
    handled: ({ jobs }) =>
      Effect.async<void>((resume) => {
        if (handled >= jobs) return resume(Effect.void)
        awaited = {
          jobs,
          resume: () => {
            awaited = undefined
            resume(Effect.void)
          }
        }
      }),
    handledSoFar: () => Effect.sync(() => handled),
    claimTimes: () => Effect.sync(() => claims.splice(0)),
    latencies: () =>
      Effect.sync(() => {
        const collected = latencies
        latencies = []
        return collected
      }),
    heapUsed: () =>
      Effect.sync(() => required(globalThis.gc, "--expose-gc")()).pipe(
        Effect.zipRight(Effect.sleep("50 millis")), // finalizers run between collections
        Effect.repeatN(4),
        Effect.map(() => process.memoryUsage().heapUsed)
      )
  }
}

const reply = (response: Response) => {
  if (process.connected) process.send?.(response)
}

const program = Effect.scoped(Effect.gen(function*() {
  const scope = yield* Effect.scope
  const runtime = yield* Effect.runtime()
  const handlers = makeHandlers(yield* loadSystem(required(process.argv[2], "The name of the system")))
  const serve = (request: Request) =>
    (handlers[request.name] as (input: unknown) => Effect.Effect<unknown, never, Scope.Scope>)(request.input).pipe(
      Scope.extend(scope),
      Effect.map((output) => reply({ id: request.id, ok: true, output })),
      Effect.catchAllCause((cause) =>
        Effect.sync(() => reply({ id: request.id, ok: false, message: Cause.pretty(cause) }))
      )
    )
  process.on("message", (request: Request) => Runtime.runFork(runtime)(serve(request)))
  process.send?.("ready")
  yield* Effect.async<void>((resume) => {
    process.once("disconnect", () => resume(Effect.void))
  })
}))

NodeRuntime.runMain(program.pipe(Logger.withMinimumLogLevel(LogLevel.Warning)))
