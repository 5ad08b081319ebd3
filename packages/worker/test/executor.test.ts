import { Job } from "@awa/model"
import { Awa, JobContext, JobError, JobResult } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Context, Data, Deferred, Effect, Fiber, Logger, Option, Queue, Schema, Scope, Tracer } from "effect"
import { Count, Greet, start } from "./support/harness.js"
import * as MemoryEngine from "./support/memoryEngine.js"

class MailboxGone extends Data.TaggedError("MailboxGone")<{ readonly to: string }> {}

class Greeting extends Context.Tag("Greeting")<Greeting, string>() {}

const worker = Awa.builder.pipe(Awa.queue("default"))

const greeter = worker.pipe(Awa.handle(Greet, () => Effect.void))

/** Runs one job to its end and answers how it is stored. */
const runOne = <E, R, K extends string>(builder: Awa.Builder<E, R, K>, job: MemoryEngine.NewJob) =>
  Effect.gen(function*() {
    const engine = MemoryEngine.make()
    const [stored] = engine.add(job)
    const { signals } = yield* start(builder, { engine })
    yield* signals.untilCount("flushed", 1)
    return { ...stored!, outcome: signals.flushed()[0]!.outcome }
  })

const greet = { kind: "greet", args: { name: "Ada" } }

describe("executor", () => {
  it.scoped("a handler that succeeds completes the job and gets the decoded payload", () =>
    Effect.gen(function*() {
      const seen: Array<number> = []
      const job = yield* runOne(
        worker.pipe(Awa.handle(Count, ({ n }) => Effect.sync(() => void seen.push(n)))),
        { kind: "count", args: { n: "41" } }
      )
      assert.deepStrictEqual(seen, [41])
      assert.strictEqual(job.state, "completed")
    }))

  it.scoped("the services of the handler come from the layer, JobContext and a scope from the attempt", () =>
    Effect.gen(function*() {
      const events: Array<string> = []
      const handler = Effect.gen(function*() {
        const context = yield* JobContext.JobContext
        const greeting = yield* Greeting
        yield* Effect.addFinalizer(() => Effect.sync(() => events.push("closed")))
        events.push(`${greeting} ${context.job.kind} ${context.attempt} ${context.isLastAttempt} ${context.fence}`)
      })
      const engine = MemoryEngine.make()
      engine.before("complete", Effect.sync(() => events.push("stored")))
      engine.add({ ...greet, maxAttempts: 1 })
      const { signals } = yield* start(worker.pipe(Awa.handle(Greet, () => handler)), { engine }).pipe(
        Effect.provideService(Greeting, "hello")
      )
      yield* signals.untilCount("flushed", 1)
      assert.deepStrictEqual(events, [`hello greet 1 true ${signals.flushed()[0]!.fence}`, "closed", "stored"])
    }))

  it.scoped("a scope closes in reverse order, with the exit of the handler, in its services", () =>
    Effect.gen(function*() {
      const events: Array<string> = []
      const close = (name: string) =>
        Effect.addFinalizer((exit) =>
          Effect.map(JobContext.JobContext, ({ job }) => void events.push(`${name} ${exit._tag} ${job.id}`))
        )
      const job = yield* runOne(
        worker.pipe(
          Awa.handle(Greet, () => Effect.zipRight(close("first"), Effect.zipRight(close("second"), Effect.fail("no"))))
        ),
        greet
      )
      assert.deepStrictEqual(events, ["second Failure 1", "first Failure 1"])
      assert.strictEqual(job.state, "retryable")
    }))

  it.scoped("a finalizer that dies fails the attempt, after what failed before it", () =>
    Effect.gen(function*() {
      const dying = Effect.addFinalizer(() => Effect.die(new Error("not closed")))
      const succeeded = yield* runOne(worker.pipe(Awa.handle(Greet, () => dying)), greet)
      assert.strictEqual(succeeded.state, "retryable")
      assert.include(succeeded.errors[0]!, "not closed")
      const failed = yield* runOne(
        worker.pipe(Awa.handle(Greet, () => Effect.zipRight(dying, Effect.fail("no")))),
        greet
      )
      assert.match(failed.errors[0]!, /no[^]*not closed/)
    }))

  it.scoped("children in the scope of a handler end with it, and later finalizers run at once", () =>
    Effect.gen(function*() {
      const events: Array<string> = []
      const late = yield* Deferred.make<Scope.Scope>()
      const job = yield* runOne(
        worker.pipe(Awa.handle(Greet, () =>
          Effect.gen(function*() {
            yield* Deferred.succeed(late, yield* Effect.scope)
            yield* Effect.forkScoped(Effect.onInterrupt(Effect.never, () => Effect.sync(() => events.push("child"))))
            yield* Effect.yieldNow() // it begins
          }))),
        greet
      )
      assert.deepInclude(job, { state: "completed", errors: [] })
      yield* Scope.addFinalizer(yield* Deferred.await(late), Effect.sync(() => events.push("late")))
      assert.deepStrictEqual(events, ["child", "late"])
    }))

  it.scoped("children of a handler live until its finalizers have run, which may wait for them", () =>
    Effect.gen(function*() {
      const done: Array<number> = []
      const drained = Effect.gen(function*() {
        const queue = yield* Queue.unbounded<number>()
        const take = Effect.tap(
          Queue.take(queue),
          (n) => Effect.zipRight(Effect.yieldNow(), Effect.sync(() => done.push(n)))
        )
        const child = yield* Effect.fork(Effect.repeat(take, { until: (n) => n < 0 }))
        yield* Effect.addFinalizer(() => Effect.zipRight(Queue.offer(queue, -1), Fiber.await(child)))
        yield* Queue.offerAll(queue, [1, 2, 3])
      })
      const stopped = Effect.gen(function*() {
        const queue = yield* Queue.unbounded<number>()
        yield* Effect.acquireRelease(
          Effect.fork(Effect.ignore(Effect.forever(Queue.take(queue)))), // not to be interrupted, like what acquires it
          (child) => Effect.zipRight(Queue.shutdown(queue), Fiber.await(child))
        )
      })
      assert.strictEqual((yield* runOne(worker.pipe(Awa.handle(Greet, () => drained)), greet)).state, "completed")
      assert.deepStrictEqual(done, [1, 2, 3, -1])
      assert.strictEqual((yield* runOne(worker.pipe(Awa.handle(Greet, () => stopped)), greet)).state, "completed")
    }))

  it.scoped("a scope that was not used is closed nevertheless", () =>
    Effect.gen(function*() {
      const late = yield* Deferred.make<Scope.Scope>()
      yield* runOne(
        worker.pipe(
          Awa.handle(Greet, () => Effect.asVoid(Effect.flatMap(Effect.scope, (scope) => Deferred.succeed(late, scope))))
        ),
        greet
      )
      let closed = false
      yield* Scope.addFinalizer(yield* Deferred.await(late), Effect.sync(() => void (closed = true)))
      assert.isTrue(closed)
    }))

  it.scoped("a typed failure is retried with its cause as text", () =>
    Effect.gen(function*() {
      const job = yield* runOne(
        worker.pipe(Awa.handle(Greet, () => Effect.fail(new MailboxGone({ to: "ada" })))),
        greet
      )
      assert.strictEqual(job.state, "retryable")
      assert.include(job.errors[0], "MailboxGone")
      assert.include(job.errors[0], "ada")
    }))

  it.scoped("a failure of the last attempt fails the job", () =>
    Effect.gen(function*() {
      const job = yield* runOne(worker.pipe(Awa.handle(Greet, () => Effect.fail("no"))), { ...greet, maxAttempts: 1 })
      assert.strictEqual(job.state, "failed")
    }))

  it.scoped("JobError.terminal fails the job whatever attempts are left", () =>
    Effect.gen(function*() {
      const job = yield* runOne(
        worker.pipe(Awa.handle(Greet, () =>
          Effect.fail(new MailboxGone({ to: "ada" })).pipe(
            Effect.catchTag("MailboxGone", (e) => JobError.terminal(`gone: ${e.to}`))
          ))),
        greet
      )
      assert.strictEqual(job.state, "failed")
      assert.include(job.errors[0], "gone: ada")
    }))

  it.scoped("a typed failure has no stack in the errors, a defect that of the application, traced or not", () =>
    Effect.gen(function*() {
      const broken = worker.pipe(Awa.handle(Greet, ({ name }) =>
        Effect.suspend(() => {
          if (name === "Ada") return JobError.terminal("not yet", new MailboxGone({ to: "ada" }))
          throw new TypeError("boom", { cause: new Error("deep") })
        })))
      const failed = yield* runOne(broken, greet)
      assert.deepStrictEqual(failed.errors, [
        "TerminalJobError: not yet\n  [cause]: MailboxGone: {\"to\":\"ada\",\"_tag\":\"MailboxGone\"}"
      ])
      const tracer = yield* Effect.tracer
      for (const used of [tracer, Tracer.make({ ...tracer, span: (...args) => tracer.span(...args) })]) {
        const defect = yield* runOne(broken, { ...greet, args: { name: "Bob" } }).pipe(Effect.withTracer(used))
        const [first, ...frames] = defect.errors[0]!.split("\n")
        assert.strictEqual(first, "TypeError: boom")
        assert.include(frames, "  [cause]: Error: deep")
        const places = frames.filter((line) => !line.includes("[cause]"))
        assert.isAtLeast(places.length, 2)
        for (const place of places) assert.match(place, /^ +at .*\/executor\.test\.ts:\d+:\d+\)?$/)
      }
    }))

  it.scoped("a defect is retried with its text, and the slot comes free", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(greet, greet, greet)
      const { awa, signals } = yield* start(
        Awa.builder.pipe(
          Awa.queue("default", { maxWorkers: 1, deadline: null }),
          Awa.handle(Greet, () => Effect.die(new TypeError("boom")))
        ),
        { engine }
      )
      yield* signals.until("three are stored", () => signals.flushed().length === 3)
      assert.isTrue(engine.jobs.every((job) => job.state === "retryable" && job.errors[0]!.includes("TypeError: boom")))
      assert.strictEqual((yield* awa.healthCheck).queues["default"]!.inFlight, 0)
    }))

  it.scoped("a handler that throws instead of failing is a defect too", () =>
    Effect.gen(function*() {
      const job = yield* runOne(
        worker.pipe(Awa.handle(Greet, (): Effect.Effect<void> => {
          throw new RangeError("thrown")
        })),
        greet
      )
      assert.strictEqual(job.state, "retryable")
      assert.include(job.errors[0], "RangeError: thrown")
    }))

  it.scoped("an error that cannot be shown is retried all the same", () =>
    Effect.gen(function*() {
      const poison = {
        get message(): string {
          throw new Error("do not look")
        },
        toString() {
          throw new Error("do not look")
        }
      }
      const job = yield* runOne(worker.pipe(Awa.handle(Greet, () => Effect.fail(poison))), greet)
      assert.strictEqual(job.state, "retryable")
    }))

  it.scoped("an error text is cut, and holds nothing PostgreSQL refuses", () =>
    Effect.gen(function*() {
      const job = yield* runOne(
        worker.pipe(Awa.handle(Greet, () => Effect.fail(new Error(`a\0b\ud800c${"x".repeat(20_000)}`)))),
        greet
      )
      const [text] = job.errors
      assert.isAtMost(text!.length, 8192)
      assert.include(text, "ab\uFFFDc")
    }))

  it.scoped("interrupting itself is retried", () =>
    Effect.gen(function*() {
      const job = yield* runOne(worker.pipe(Awa.handle(Greet, () => Effect.interrupt)), greet)
      assert.strictEqual(job.state, "retryable")
      assert.include(job.errors[0], "interrupted itself")
    }))

  it.scoped("a payload that does not fit fails the job at once and names the place", () =>
    Effect.gen(function*() {
      const job = yield* runOne(worker.pipe(Awa.handle(Greet, () => Effect.void)), { kind: "greet", args: { name: 7 } })
      assert.strictEqual(job.state, "failed")
      assert.include(job.errors[0], "does not fit the job's schema")
      assert.include(job.errors[0], "name")
    }))

  it.scoped("a schema with effects is decoded with the services of the layer", () =>
    Effect.gen(function*() {
      const Async = Job.make("async", {
        payload: Schema.transformOrFail(Schema.String, Schema.String, {
          strict: true,
          decode: (name) =>
            Effect.map(Effect.zipRight(Effect.yieldNow(), Greeting), (greeting) => `${greeting} ${name}`),
          encode: Effect.succeed
        })
      })
      const seen: Array<string> = []
      const job = yield* runOne(
        worker.pipe(Awa.handle(Async, (text) => Effect.sync(() => void seen.push(text)))),
        { kind: "async", args: "Ada" }
      ).pipe(Effect.provideService(Greeting, "hello"))
      assert.strictEqual(job.state, "completed")
      assert.deepStrictEqual(seen, ["hello Ada"])
    }))

  it.scoped("the results a handler may answer", () =>
    Effect.gen(function*() {
      const engine = MemoryEngine.make()
      engine.add(
        { kind: "greet", args: { name: "retry" } },
        { kind: "greet", args: { name: "snooze" } },
        { kind: "greet", args: { name: "cancel" } },
        { kind: "greet", args: { name: "done" } }
      )
      const { signals } = yield* start(
        worker.pipe(Awa.handle(Greet, ({ name }) =>
          Effect.gen(function*() {
            switch (name) {
              case "retry":
                return yield* JobResult.retryAfter("3 seconds")
              case "snooze":
                return JobResult.snooze("4 seconds")
              case "cancel":
                return JobResult.cancel("no longer wanted")
              default:
                return JobResult.completed
            }
          }))),
        { engine }
      )
      yield* signals.until("four are stored", () => signals.flushed().length === 4)
      const [retry, snooze, cancel, done] = engine.jobs
      assert.deepInclude(retry, { state: "retryable", runAt: 3000, attempt: 1 })
      assert.deepInclude(snooze, { state: "scheduled", runAt: 4000, attempt: 0 })
      assert.deepInclude(cancel, { state: "cancelled", errors: ["no longer wanted"] })
      assert.deepInclude(done, { state: "completed" })
    }))

  it.scoped("a job of an unknown kind is retried", () =>
    Effect.gen(function*() {
      const job = yield* runOne(greeter, { kind: "stranger" })
      assert.strictEqual(job.state, "retryable")
      assert.include(job.errors[0], "\"stranger\"")
      assert.include(job.errors[0], "unknown job kind")
    }))

  it.scoped("a job of an unknown kind fails where the worker is told so", () =>
    Effect.gen(function*() {
      const job = yield* runOne(greeter.pipe(Awa.unknownKinds("fail")), { kind: "stranger" })
      assert.strictEqual(job.state, "failed")
    }))

  it.scoped("the first attempt is a child of the enqueuer's span, later ones link to it", () =>
    Effect.gen(function*() {
      const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
      const spans: Array<Tracer.Span> = []
      const tracer = yield* Effect.tracer
      const recording = Tracer.make({
        context: tracer.context.bind(tracer),
        span: (...args) => {
          const span = tracer.span(...args)
          spans.push(span)
          return span
        }
      })
      let closed = 0
      const engine = MemoryEngine.make()
      engine.add({ ...greet, metadata: { "awa:traceparent": traceparent } })
      const { signals } = yield* start(
        worker.pipe(
          Awa.maintenance({ promoteInterval: "1 second" }),
          Awa.handle(Greet, () =>
            Effect.gen(function*() {
              const { attempt } = yield* JobContext.JobContext
              yield* Effect.withSpan(Effect.void, "inner")
              yield* Effect.addFinalizer(() => Effect.sync(() => void closed++))
              if (attempt === 1) return yield* Effect.fail("once")
            }))
        ),
        { engine }
      ).pipe(Effect.withTracer(recording))
      yield* signals.until("the first attempt is stored", () => signals.flushed().length === 1)
      yield* signals.advanceUntil("the job is completed", "1 second", () => engine.jobs[0]!.state === "completed")
      assert.strictEqual(closed, 2)
      const [first, second] = spans.filter(({ name }) => name === "job.execute greet")
      const [inner] = spans.filter(({ name }) => name === "inner")
      assert.strictEqual(Option.getOrThrow(inner!.parent).spanId, first!.spanId)
      assert.strictEqual(first!.traceId, "0af7651916cd43dd8448eb211c80319c")
      assert.strictEqual(Option.getOrThrow(first!.parent).spanId, "b7ad6b7169203331")
      assert.strictEqual(first!.attributes.get("job.outcome"), "retry")
      assert.isTrue(Option.isNone(second!.parent))
      assert.strictEqual(second!.links[0]!.span.spanId, "b7ad6b7169203331")
      assert.deepInclude(Object.fromEntries(second!.attributes), {
        "job.id": "1",
        "job.attempt": 2,
        "job.outcome": "completed",
        "messaging.destination.name": "default"
      })
    }))

  it.scoped("log lines of a handler say which attempt they belong to", () =>
    Effect.gen(function*() {
      const lines: Array<Record<string, unknown>> = []
      const logger = Logger.make(({ annotations }) => void lines.push(Object.fromEntries(annotations)))
      yield* runOne(worker.pipe(Awa.handle(Greet, () => Effect.log("hello"))), greet).pipe(
        Effect.provide(Logger.replace(Logger.defaultLogger, logger))
      )
      assert.deepInclude(lines, { jobId: 1n, kind: "greet", queue: "default", attempt: 1 })
    }))
})
