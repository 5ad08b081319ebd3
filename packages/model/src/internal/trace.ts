/**
 * The span of an enqueue, and the trace it hands on to the job.
 */
import * as Config from "effect/Config"
import * as Context from "effect/Context"
import * as DefaultServices from "effect/DefaultServices"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as FiberRef from "effect/FiberRef"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"

/**
 * Runs an effect in a producer span and gives it the W3C traceparent to store with the jobs: `null` when nobody traces,
 * or when `AWA_TRACE_CAPTURE` is `off`, `false` or `0`.
 *
 * @internal
 */
export const withProducerSpan = <A, E, R>(
  name: string,
  attributes: Record<string, unknown>,
  send: (traceparent: string | null) => Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.withFiberRuntime((fiber) =>
    isTraced(fiber)
      ? Effect.useSpan(name, { kind: "producer", attributes, captureStackTrace: false }, (span) =>
        Effect.flatMap(
          captureEnabled,
          (enabled) => Effect.withParentSpan(send(enabled ? traceparent(span) : null), span)
        ))
      : send(null)
  )

/**
 * Spans of Effect's own tracer go nowhere: worth making only inside a span that the application made.
 *
 * @internal
 */
export const isTraced = (fiber: Fiber.RuntimeFiber<unknown, unknown>): boolean =>
  fiber.getFiberRef(FiberRef.currentTracerEnabled) && (
    Context.get(fiber.currentDefaultServices, Tracer.Tracer) !== nativeTracer ||
    Option.exists(Context.getOption(fiber.currentContext, Tracer.ParentSpan), isOfApplication)
  )

/** Transactions open spans, too. */
const isOfApplication = (span: Tracer.AnySpan): boolean =>
  span._tag === "ExternalSpan" || span.name !== "sql.transaction" || Option.exists(span.parent, isOfApplication)

const nativeTracer = Context.get(DefaultServices.liveServices, Tracer.Tracer)

const captureEnabled: Effect.Effect<boolean> = Config.string("AWA_TRACE_CAPTURE").pipe(
  Effect.map((value) => !["off", "false", "0"].includes(value.trim().toLowerCase())),
  Effect.orElseSucceed(() => true)
)

/** A tracer may give its spans ids of another form: such a trace cannot be handed on. */
const traceparent = ({ sampled, spanId, traceId }: Tracer.Span): string | null => {
  const text = `00-${traceId}-${spanId}-${sampled ? "01" : "00"}`
  return /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[01]$/.test(text) ? text : null
}
