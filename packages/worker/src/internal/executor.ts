import type { JobRow } from "@awa/model/JobRow"
import type { ClaimedJob, Service as StorageEngine } from "@awa/model/StorageEngine"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as FiberId from "effect/FiberId"
import * as FiberRef from "effect/FiberRef"
import * as FiberRefs from "effect/FiberRefs"
import { pipe } from "effect/Function"
import * as HashMap from "effect/HashMap"
import * as ParseResult from "effect/ParseResult"
import * as Runtime from "effect/Runtime"
import * as RuntimeFlags from "effect/RuntimeFlags"
import * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"
import * as JobContext from "../JobContext.js"
import { Attempt, type AttemptQueue, type Attempts } from "./attempts.js"
import { AttemptScope } from "./attemptScope.js"
import type { Completer } from "./completion.js"
import type { Handler } from "./handler.js"
import { flushProgress } from "./heartbeat.js"
import * as Outcome from "./outcome.js"
import type { UnknownKinds } from "./settings.js"
import { isTraced, withAttemptSpan } from "./tracing.js"

export interface Executor {
  /**
   * Runs a claimed job on a fiber of its own and sees to it that its end is reported. Takes no
   * time. Throws for a job that cannot be started; that is reported as its failure nevertheless.
   */
  readonly start: (claimed: ClaimedJob, queue: AttemptQueue, now: number) => void
  /** Returns a claimed job unrun, its attempt unspent. */
  readonly giveBack: (claimed: ClaimedJob, queue: AttemptQueue, now: number) => void
}

export interface Options {
  readonly handlers: ReadonlyMap<string, Handler>
  readonly unknownKinds: UnknownKinds
  readonly attempts: Attempts
  readonly completer: Completer
  readonly engine: StorageEngine
  readonly owner: string
}

/**
 * The services handlers run with are those of the calling fiber, without what belongs to the moment: its span, its scope
 * and its transaction.
 *
 * The fibers are owned by the registry of attempts, not by a scope: shutdown first waits for them, then interrupts them,
 * and gives up on those that do not listen, none of which a scope can do.
 */
export const make = (options: Options): Effect.Effect<Executor> =>
  Effect.map(Effect.all([Effect.runtime<never>(), isTraced]), ([captured, traced]) => {
    const { attempts, completer, engine, handlers, owner, unknownKinds } = options
    const launch = launcher(captured)

    const program = (attempt: Attempt, handler: Handler, context: JobContext.Service, scope: AttemptScope) => {
      const { args, job } = attempt.claimed
      // On the handler's fiber: its children live until the finalizers have run.
      const closing = <A, E>(self: Effect.Effect<A, E>) => Effect.onExit(self, (exit) => scope.close(exit))
      if (!traced) return closing(perform(handler, args, context))
      const body = closing(Effect.suspend(() => perform(handler, args, context)))
      return withAttemptSpan(withOutcomeAttribute(body, attempt), job)
    }

    const flush = (attempt: Attempt) => flushProgress(engine, owner, attempt)

    /** Whatever happens here, the slot comes free, once. */
    const finish = (attempt: Attempt, outcome: ReturnType<typeof Outcome.fromExit>) => {
      if (attempt.closing) return
      try {
        attempts.stopRunning(attempt)
        if (outcome === null) attempts.forget(attempt)
        else completer.submit(attempt, outcome)
      } finally {
        attempt.queue.permits.release(1)
      }
    }

    const run = (attempt: Attempt) => {
      const { job } = attempt.claimed
      const handler = handlers.get(job.kind)
      if (handler === undefined) return finish(attempt, Outcome.unknownKind(job.kind, unknownKinds))
      const context = new AttemptContext(attempt, flush)
      const scope = new AttemptScope()
      attempt.fiber = launch(job, context, scope, program(attempt, handler, context, scope))
      // An observer sees every end there is, also that of a fiber that was interrupted before it began.
      attempt.fiber.addObserver((exit) => finish(attempt, Outcome.fromExit(exit, attempt.stop)))
    }

    const begin = (claimed: ClaimedJob, queue: AttemptQueue, now: number) => {
      const attempt = new Attempt(claimed, queue, now)
      attempts.start(attempt)
      return attempt
    }

    return {
      giveBack: (claimed, queue, now) => finish(begin(claimed, queue, now), Outcome.returned),
      start: (claimed, queue, now) => {
        const attempt = begin(claimed, queue, now)
        try {
          run(attempt)
        } catch (defect) {
          // A job that cannot be started is like one that failed at once.
          finish(attempt, Outcome.fromExit(Exit.die(defect), null))
          throw defect
        }
      }
    }
  })

/** Made for every attempt and asked little by most: what a handler can do is put together when it asks for it. */
class AttemptContext implements JobContext.Service {
  constructor(
    private readonly own: Attempt,
    private readonly flush: (attempt: Attempt) => JobContext.Service["flushProgress"]
  ) {}
  get job() {
    return this.own.claimed.job
  }
  get attempt() {
    return this.job.attempt
  }
  get isLastAttempt() {
    return this.job.attempt >= this.job.maxAttempts
  }
  get fence() {
    return this.own.fence
  }
  get setProgress(): JobContext.Service["setProgress"] {
    return (percent, message) => Effect.sync(() => this.own.progress.set(percent, message))
  }
  get updateMetadata(): JobContext.Service["updateMetadata"] {
    return (metadata) => Effect.sync(() => this.own.progress.merge(metadata))
  }
  get flushProgress(): JobContext.Service["flushProgress"] {
    return this.flush(this.own)
  }
}

/** The combinators of `ParseResult` take no step of the fiber where the schema has no effects. */
const perform = (handler: Handler, args: unknown, context: JobContext.Service): Effect.Effect<unknown, unknown> =>
  ParseResult.flatMap(
    ParseResult.mapError(handler.decode(args), (issue) => new Outcome.UndecodablePayload(issue)),
    (payload) => handler.run(payload, context)
  )

const withOutcomeAttribute = <A, E, R>(self: Effect.Effect<A, E, R>, attempt: Attempt): Effect.Effect<A, E, R> =>
  Effect.onExit(
    self,
    (exit: Exit.Exit<unknown, unknown>) =>
      Effect.annotateCurrentSpan("job.outcome", Outcome.fromExit(exit, attempt.stop)?._tag ?? "lost")
  )

/**
 * Starts fibers from a clean slate: what the capturing fiber had set and what the attempt needs are put together once,
 * instead of being inherited reference by reference and changed afterwards. Fibers start at once, on the dispatcher's
 * stack, and are not counted in Effect's fiber metrics. Together that is a third of the price of `Effect.fork`.
 */
const launcher = (captured: Runtime.Runtime<never>) => {
  const services = withoutMoment(captured.context).unsafeMap
  const settled = settledRefs(captured.fiberRefs)
  const annotationsOf = annotator(FiberRefs.getOrDefault(captured.fiberRefs, FiberRef.currentLogAnnotations))
  const runtime = Runtime.make({
    context: Context.empty(),
    fiberRefs: FiberRefs.empty(),
    runtimeFlags: pipe(
      captured.runtimeFlags,
      RuntimeFlags.enable(RuntimeFlags.Interruption),
      RuntimeFlags.disable(RuntimeFlags.RuntimeMetrics)
    )
  })
  return (
    job: JobRow,
    context: JobContext.Service,
    scope: Scope.Scope,
    program: Effect.Effect<unknown, unknown>
  ): Fiber.RuntimeFiber<unknown, unknown> => {
    const own = new Map(services)
    own.set(JobContext.JobContext.key, context)
    own.set(Scope.Scope.key, scope)
    return Runtime.runFork(runtime, program, {
      updateRefs: (_, id) => {
        const refs = new Map(settled)
        refs.set(FiberRef.currentContext, [[id, Context.unsafeMake<never>(own)]])
        refs.set(FiberRef.currentLogAnnotations, [[id, annotationsOf(job)]])
        return FiberRefs.unsafeMake(refs)
      }
    })
  }
}

type Refs = Parameters<typeof FiberRefs.unsafeMake>[0]

/** The references that are not what they are at first, as a child would inherit them. */
const settledRefs = (captured: FiberRefs.FiberRefs): Refs => {
  const forked = FiberRefs.forkAs(captured, nobody)
  const refs: Refs = new Map()
  for (const ref of FiberRefs.fiberRefs(forked)) {
    const value = FiberRefs.getOrDefault(forked, ref)
    if (value !== FiberRefs.getOrDefault(FiberRefs.empty(), ref)) refs.set(ref, [[nobody, value]])
  }
  return refs
}

const nobody = FiberId.runtime(-1, 0)

/** What is the same for all attempts of a number, a kind and a queue is made once as long as they follow each other. */
const annotator = (base: HashMap.HashMap<string, unknown>) => {
  const latest = new Map<string, { readonly attempt: number; readonly queue: string; readonly shared: typeof base }>()
  return ({ attempt, id, kind, queue }: JobRow): HashMap.HashMap<string, unknown> => {
    let known = latest.get(kind)
    if (known === undefined || known.attempt !== attempt || known.queue !== queue) {
      const own = HashMap.make<Array<[string, unknown]>>(["kind", kind], ["queue", queue], ["attempt", attempt])
      known = { attempt, queue, shared: HashMap.union(base, own) }
      latest.set(kind, known) // no more of them than there are handlers
    }
    return HashMap.set(known.shared, "jobId", id)
  }
}

const momentary = new Set<string>([Tracer.ParentSpan.key, Scope.Scope.key, SqlClient.TransactionConnection.key])

const withoutMoment = (context: Context.Context<never>): Context.Context<never> =>
  Context.unsafeMake(new Map([...context.unsafeMap].filter(([key]) => !momentary.has(key))))
