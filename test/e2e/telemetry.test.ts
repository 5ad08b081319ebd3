/**
 * What one can see of jobs from outside: spans and log lines.
 */
import { TestDatabase, Wait } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Awa, AwaLive, Job, JobResult } from "awa"
import { Effect, HashMap, Logger, Option, Schema, Tracer } from "effect"

const Greet = Job.make("greet", { payload: { name: Schema.String } })

/** Keeps every span that was begun. Ids are those a W3C traceparent can carry. */
const makeTracer = () => {
  const spans: Array<Tracer.Span> = []
  const hex = (length: number) => Array.from({ length }, () => Math.floor(Math.random() * 15 + 1).toString(16)).join("")
  const tracer = Tracer.make({
    span: (name, parent, context, links, startTime, kind) => {
      const attributes = new Map<string, unknown>()
      const span: Tracer.Span = {
        _tag: "Span",
        name,
        parent,
        context,
        links: [...links],
        kind,
        attributes,
        status: { _tag: "Started", startTime },
        sampled: true,
        spanId: hex(16),
        traceId: Option.match(parent, { onNone: () => hex(32), onSome: ({ traceId }) => traceId }),
        end: (endTime, exit) => void (Object.assign(span, { status: { _tag: "Ended", startTime, endTime, exit } })),
        attribute: (key, value) => void attributes.set(key, value),
        event: () => {},
        addLinks: () => {}
      }
      spans.push(span)
      return span
    },
    context: (f) => f()
  })
  return { tracer, named: (name: string) => spans.filter((span) => span.name === name) }
}

describe("traces", () => {
  it.live("a job continues the trace in which it was enqueued; its second attempt is a trace of its own, linked", () =>
    Effect.gen(function*() {
      const { named, tracer } = makeTracer()
      const worker = Awa.builder.pipe(
        Awa.queue("default"),
        Awa.handle(Greet, (_, { attempt }) =>
          attempt === 1
            ? JobResult.retryAfter("1 millis")
            : Effect.withSpan(Effect.void, "inner"))
      )
      const job = yield* Effect.gen(function*() {
        const job = yield* Effect.withSpan(Greet.enqueue({ name: "Ada" }), "request")
        yield* Wait.eventually(Effect.sync(() => {
          const attempts = named("job.execute greet")
          assert.deepStrictEqual(attempts.map(({ status }) => status._tag), ["Ended", "Ended"])
        }))
        return job
      }).pipe(Effect.provide(AwaLive(worker)), Effect.withTracer(tracer))

      const [request] = named("request")
      const [first, second] = named("job.execute greet")
      const [inner] = named("inner")
      const producer = Option.getOrThrow(first!.parent)
      assert.strictEqual(first!.traceId, request!.traceId)
      assert.strictEqual(first!.kind, "consumer")
      assert.deepInclude(Object.fromEntries(first!.attributes), {
        "job.id": String(job.id),
        "job.kind": "greet",
        "job.queue": "default",
        "job.attempt": 1,
        "job.outcome": "retry"
      })
      assert.isTrue(Option.isNone(second!.parent))
      assert.notStrictEqual(second!.traceId, request!.traceId)
      assert.deepStrictEqual(second!.links.map(({ span }) => span.spanId), [producer.spanId])
      assert.strictEqual(second!.attributes.get("job.outcome"), "completed")
      assert.strictEqual(Option.getOrThrow(inner!.parent).spanId, second!.spanId)
      assert.include(job.metadata["awa:traceparent"], `${request!.traceId}-${producer.spanId}`)
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.live("a traceparent given by hand is continued", () =>
    Effect.gen(function*() {
      const { named, tracer } = makeTracer()
      const traceId = "0af7651916cd43dd8448eb211c80319c"
      const spanId = "b7ad6b7169203331"
      yield* Greet.enqueue({ name: "Ada" }, { metadata: { "awa:traceparent": `00-${traceId}-${spanId}-01` } })
      yield* Wait.eventually(Effect.sync(() => assert.isNotEmpty(named("job.execute greet")))).pipe(
        Effect.provide(AwaLive(Awa.builder.pipe(Awa.queue("default"), Awa.handle(Greet, () => Effect.void)))),
        Effect.withTracer(tracer)
      )
      assert.deepInclude(Option.getOrThrow(named("job.execute greet")[0]!.parent), { traceId, spanId, sampled: true })
    }).pipe(Effect.provide(TestDatabase.layer())))
})

describe("log lines", () => {
  it.live("of a handler say which job they belong to", () =>
    Effect.gen(function*() {
      const lines: Array<readonly [unknown, Record<string, unknown>]> = []
      const Log = Logger.replace(
        Logger.defaultLogger,
        Logger.make(({ annotations, message }) => {
          lines.push([message, Object.fromEntries(HashMap.toEntries(annotations))])
        })
      )
      const { id } = yield* Greet.enqueue({ name: "Ada" })
      const worker = Awa.builder.pipe(
        Awa.queue("default"),
        Awa.handle(Greet, ({ name }) => Effect.annotateLogs(Effect.log(`hello ${name}`), "own", 1))
      )
      yield* Wait.eventually(Effect.sync(() => assert.isNotEmpty(lines.filter(([, { jobId }]) => jobId !== undefined))))
        .pipe(
          Effect.provide(AwaLive(worker)),
          Effect.provide(Log)
        )
      const [message, annotations] = lines.find(([, { jobId }]) => jobId !== undefined)!
      assert.deepStrictEqual(message, ["hello Ada"])
      assert.deepStrictEqual(annotations, { own: 1, jobId: id, kind: "greet", queue: "default", attempt: 1 })
    }).pipe(Effect.provide(TestDatabase.layer())))

  it.live("say nothing worrying when a worker starts, works and ends", () =>
    Effect.gen(function*() {
      const worrying: Array<string> = []
      const Log = Logger.replace(
        Logger.defaultLogger,
        Logger.make(({ logLevel, message }) => {
          if (logLevel.ordinal > 20_000) worrying.push(`${logLevel.label} ${String(message)}`)
        })
      )
      let ran = false
      const worker = Awa.builder.pipe(
        Awa.queue("default"),
        Awa.handle(Greet, () => Effect.sync(() => void (ran = true)))
      )
      yield* Effect.gen(function*() {
        const { healthCheck } = yield* Awa.Awa
        yield* Wait.eventually(Effect.map(healthCheck, ({ leader, listening }) => assert.isTrue(leader && listening)))
        yield* Greet.enqueue({ name: "Ada" })
        yield* Wait.eventually(Effect.sync(() => assert.isTrue(ran)))
      }).pipe(Effect.provide(AwaLive(worker)), Effect.provide(Log))
      assert.deepStrictEqual(worrying, [])
    }).pipe(Effect.provide(TestDatabase.layer())))
})
