import { type JobId, JobRow } from "@awa/model/JobRow"
import type {
  AttemptToken,
  ClaimedJob,
  Completion,
  Outcome,
  QueueOverrides,
  Rescued,
  Service,
  StorageError,
  Verdict
} from "@awa/model/StorageEngine"
import { Clock, Duration, Effect } from "effect"

export interface Stored {
  readonly id: number
  readonly kind: string
  readonly queue: string
  readonly args: unknown
  readonly priority: number
  readonly maxAttempts: number
  readonly metadata: Record<string, unknown>
  state: JobRow["state"]
  attempt: number
  lease: number
  runAt: number
  progress: unknown
  errors: Array<string>
  owner: string | null
  nonce: string | null
  claimedAt: number
  beatAt: number
  deadlineAt: number
}

export interface NewJob {
  readonly kind: string
  readonly args?: unknown
  readonly queue?: string
  readonly priority?: number
  readonly maxAttempts?: number
  readonly runAt?: number
  readonly metadata?: Record<string, unknown>
}

export type Operation = keyof Omit<Service, "name">

/** A storage engine in memory, with hooks to watch it and to make it fail. */
export const make = () => {
  const jobs: Array<Stored> = []
  const closed = new Map<string, Outcome>()
  const calls: Array<{ readonly operation: Operation; readonly size: number }> = []
  const before = new Map<Operation, Effect.Effect<unknown, StorageError>>()
  const after = new Map<Operation, Effect.Effect<unknown, StorageError>>()

  let overrides: ReadonlyArray<QueueOverrides> = []
  const deadLetters: Array<unknown> = []

  const fenceOf = (job: Stored) => `${job.id}.${job.lease}.${job.nonce}`

  const byToken = (token: AttemptToken) => jobs.find((job) => job.state === "running" && fenceOf(job) === token.fence)

  const tokenOf = (job: Stored): AttemptToken => ({
    slot: 0,
    batchId: "0",
    nonce: job.nonce!,
    index: job.id,
    fence: fenceOf(job)
  })

  const rowOf = (job: Stored): JobRow =>
    new JobRow({
      id: BigInt(job.id) as JobId,
      kind: job.kind,
      queue: job.queue,
      args: job.args,
      state: job.state,
      priority: job.priority,
      attempt: job.attempt,
      maxAttempts: job.maxAttempts,
      runLease: BigInt(job.lease),
      runAt: new Date(job.runAt),
      createdAt: new Date(0),
      metadata: job.metadata,
      tags: [],
      errors: [],
      progress: job.progress
    }, { disableValidation: true })

  const operation = <A>(name: Operation, size: number, body: (now: number) => A): Effect.Effect<A, StorageError> =>
    Effect.gen(function*() {
      calls.push({ operation: name, size })
      yield* before.get(name) ?? Effect.void
      const result = body(yield* Clock.currentTimeMillis)
      yield* after.get(name) ?? Effect.void
      return result
    }).pipe(Effect.uninterruptible)

  const close = (job: Stored, state: JobRow["state"]) => {
    job.state = state
    job.owner = null
  }

  const failed = (job: Stored, now: number, delay: number, error: string | null) => {
    if (error !== null) job.errors.push(error)
    job.runAt = now + delay
    close(job, job.attempt >= job.maxAttempts ? "failed" : "retryable")
  }

  const end = (job: Stored, { outcome, progress }: Completion, now: number) => {
    if (progress !== undefined) job.progress = progress
    switch (outcome._tag) {
      case "completed":
        job.progress = undefined
        return close(job, "completed")
      case "retry":
        return failed(
          job,
          now,
          outcome.delay === null ? 1000 * 2 ** job.attempt : Duration.toMillis(outcome.delay),
          outcome.error
        )
      case "snooze":
        job.attempt -= 1
        job.runAt = now + Duration.toMillis(outcome.delay)
        return close(job, "scheduled")
      case "return":
        job.attempt -= 1
        return close(job, "available")
      case "cancel":
        job.errors.push(outcome.reason)
        return close(job, "cancelled")
      case "fail":
        job.errors.push(outcome.error)
        return close(job, "failed")
    }
  }

  const rescue = (name: "rescueStale" | "rescueExpired", limit: number, isDue: (job: Stored, now: number) => boolean) =>
    operation(
      name,
      limit,
      (now): ReadonlyArray<Rescued> =>
        jobs.filter((job) => job.state === "running" && isDue(job, now)).slice(0, limit).map((job) => {
          failed(job, now, 0, name)
          return {
            jobId: BigInt(job.id) as JobId,
            reason: name === "rescueStale" ? "stale_heartbeat" : "deadline_exceeded",
            state: job.state as Rescued["state"]
          }
        })
    )

  const service: Service = {
    name: "memory",
    claim: ({ deadline, limit, nonce, owner, queue }) =>
      operation(
        "claim",
        limit,
        (now): ReadonlyArray<ClaimedJob> =>
          jobs.filter((job) => job.state === "available" && job.queue === queue)
            .sort((a, b) => a.priority - b.priority || a.id - b.id)
            .slice(0, limit)
            .map((job) => {
              Object.assign(job, {
                state: "running",
                attempt: job.attempt + 1,
                lease: job.lease + 1,
                owner,
                nonce,
                claimedAt: now,
                beatAt: now,
                deadlineAt: deadline === null ? Infinity : now + Duration.toMillis(deadline)
              })
              return { token: tokenOf(job), job: rowOf(job), args: job.args }
            })
      ),
    complete: (_owner, completions) =>
      operation("complete", completions.length, (now) =>
        completions.map((completion): Verdict => {
          const { fence } = completion.token
          const job = byToken(completion.token)
          if (job === undefined) return closed.get(fence)?._tag === completion.outcome._tag ? "repeated" : "refused"
          closed.set(fence, completion.outcome)
          end(job, completion, now)
          return "accepted"
        })),
    completeAndClaim: (completions, request, deadLetters) =>
      Effect.gen(function*() {
        calls.push({ operation: "completeAndClaim", size: completions.length })
        yield* before.get("completeAndClaim") ?? Effect.void
        const verdicts = yield* service.complete(request.owner, completions, deadLetters)
        const jobs = yield* service.claim(request)
        yield* after.get("completeAndClaim") ?? Effect.void
        return { verdicts, jobs }
      }).pipe(Effect.uninterruptible),
    heartbeat: (_owner, beats) =>
      operation("heartbeat", beats.length, (now) =>
        beats.map(({ progress, token }) => {
          const job = byToken(token)
          if (job === undefined) return false
          job.beatAt = now
          if (progress !== undefined) job.progress = progress
          return true
        })),
    openAttempts: (owner, olderThan) =>
      operation("openAttempts", 0, (now) =>
        jobs.filter((job) =>
          job.state === "running" && job.owner === owner &&
          now - job.claimedAt >= Duration.toMillis(olderThan)
        ).map(tokenOf)),
    probe: (queues) =>
      operation(
        "probe",
        queues.length,
        () => queues.filter((queue) => jobs.some((job) => job.state === "available" && job.queue === queue))
      ),
    promote: (limit) =>
      operation("promote", limit, (now) => {
        const due = jobs.filter((job) => (job.state === "scheduled" || job.state === "retryable") && job.runAt <= now)
          .slice(0, limit)
        for (const job of due) job.state = "available"
        return due.length
      }),
    cancelRequested: () => Effect.succeed(0),
    rescueStale: ({ limit, staleness }) =>
      rescue("rescueStale", limit, (job, now) => now - job.beatAt > Duration.toMillis(staleness)),
    rescueExpired: ({ limit }) => rescue("rescueExpired", limit, (job, now) => job.deadlineAt <= now),
    overrides: (queues) =>
      operation("overrides", queues.length, () => overrides.filter(({ queue }) => queues.includes(queue))),
    cleanupDeadLetters: ({ limit }) =>
      operation("cleanupDeadLetters", limit, () => deadLetters.splice(0, limit).length),
    reclaim: () => Effect.succeed({ rotated: false, evicted: 0, kept: 0, freed: 0 }),
    expire: () => Effect.succeed(0),
    sweepKeys: (limit) => operation("sweepKeys", limit, () => 0)
  }

  return {
    service,
    jobs,
    calls,
    /** How often an operation was called. */
    count: (name: Operation) => calls.filter((call) => call.operation === name).length,
    /** Runs before an operation, instead of it if it fails. */
    before: (name: Operation, effect: Effect.Effect<unknown, StorageError>) => void before.set(name, effect),
    /** Runs after an operation took effect; its failure is a lost answer. */
    after: (name: Operation, effect: Effect.Effect<unknown, StorageError>) => void after.set(name, effect),
    add: (...added: ReadonlyArray<NewJob>) => {
      for (const job of added) {
        jobs.push({
          id: jobs.length + 1,
          kind: job.kind,
          queue: job.queue ?? "default",
          args: job.args ?? {},
          priority: job.priority ?? 2,
          maxAttempts: job.maxAttempts ?? 25,
          metadata: job.metadata ?? {},
          state: job.runAt === undefined ? "available" : "scheduled",
          attempt: 0,
          lease: 0,
          runAt: job.runAt ?? 0,
          progress: undefined,
          errors: [],
          owner: null,
          nonce: null,
          claimedAt: 0,
          beatAt: 0,
          deadlineAt: Infinity
        })
      }
      return jobs.slice(-added.length)
    },
    states: () => jobs.map((job) => job.state),
    /** What operators override from now on. */
    override: (...said: ReadonlyArray<QueueOverrides>) => void (overrides = said),
    deadLetters
  }
}

export type MemoryEngine = ReturnType<typeof make>
