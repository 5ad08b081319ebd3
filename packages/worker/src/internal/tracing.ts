import type { JobRow } from "@awa/model/JobRow"
import * as Context from "effect/Context"
import * as DefaultServices from "effect/DefaultServices"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Tracer from "effect/Tracer"

/** Whether somebody looks at spans: the tracer Effect comes with only counts ids. */
export const isTraced: Effect.Effect<boolean> = Effect.map(
  Effect.tracer,
  (tracer) => tracer !== Context.get(DefaultServices.liveServices, Tracer.Tracer)
)

const traceparent = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/

/** The enqueuer's span, as W3C `traceparent` text in the job's metadata. Malformed text counts as none. */
const origin = (job: JobRow): Option.Option<Tracer.ExternalSpan> => {
  const text = job.metadata["awa:traceparent"]
  const match = Predicate.isString(text) ? traceparent.exec(text) : null
  if (match === null) return Option.none()
  const [, version, traceId, spanId, flags, rest] = match
  const malformed = version === "ff" || (version === "00" && rest !== undefined) ||
    /^0+$/.test(traceId!) || /^0+$/.test(spanId!)
  return malformed
    ? Option.none()
    : Option.some(
      Tracer.externalSpan({ traceId: traceId!, spanId: spanId!, sampled: (parseInt(flags!, 16) & 1) === 1 })
    )
}

/**
 * The span of one attempt. The first attempt is a child of the enqueuer's span; later ones are roots that link to it,
 * because that trace ended long ago.
 */
export const withAttemptSpan = <A, E, R>(
  self: Effect.Effect<A, E, R>,
  job: JobRow
): Effect.Effect<A, E, Exclude<R, Tracer.ParentSpan>> => {
  const enqueuer = origin(job)
  const isChild = job.attempt <= 1 && Option.isSome(enqueuer)
  return Effect.withSpan(self, `job.execute ${job.kind}`, {
    kind: "consumer",
    captureStackTrace: false,
    ...(isChild ? { parent: enqueuer.value } : { root: true }),
    links: isChild
      ? []
      : Option.toArray(enqueuer).map((span) => ({ _tag: "SpanLink" as const, span, attributes: {} })),
    attributes: {
      "job.id": String(job.id),
      "job.kind": job.kind,
      "job.queue": job.queue,
      "job.attempt": job.attempt,
      "messaging.system": "awa",
      "messaging.destination.name": job.queue,
      "messaging.operation.type": "process",
      "messaging.message.id": String(job.id)
    }
  })
}

/** A span for work that turned out to be worth one. It is a root: the loop that did the work outlives every trace. */
export const recordSpan = (
  name: string,
  startTime: bigint,
  attributes: Readonly<Record<string, unknown>>
): Effect.Effect<void> =>
  Effect.flatMap(Effect.all([Effect.tracer, Effect.clock]), ([tracer, clock]) =>
    Effect.sync(() => {
      const span = tracer.span(name, Option.none(), Context.empty(), [], startTime, "internal")
      for (const [key, value] of Object.entries(attributes)) span.attribute(key, value)
      span.end(clock.unsafeCurrentTimeNanos(), Exit.void)
    }))
