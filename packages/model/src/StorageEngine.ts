/**
 * The port behind which jobs are stored: what a worker asks of a storage engine.
 *
 * Enqueueing is not part of it: a producer calls one SQL function on its own connection (see `Producer`), whatever
 * engine holds the jobs.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type { DatabaseFailure, ForeignDatabase, StorageInconsistent } from "./Errors.js"
import type { JobId, JobRow } from "./JobRow.js"

/**
 * What can go wrong in a storage operation. `ForeignDatabase` and `StorageInconsistent` need an operator; a
 * `ConnectionFailed` or `DatabaseError` may pass (`isTransient`).
 *
 * @since 0.1.0
 * @category errors
 */
export type StorageError = DatabaseFailure | ForeignDatabase | StorageInconsistent

/**
 * Identifies one attempt of one job in the engine. Opaque to its holder: it is compared by the engine only.
 *
 * `fence` is the form handlers may show to the outside world: job id, run lease and nonce in one string.
 *
 * @since 0.1.0
 * @category models
 */
export interface AttemptToken {
  readonly slot: number
  readonly batchId: string
  readonly nonce: string
  readonly index: number
  readonly fence: string
  /** Set for a job with a unique key, whose end lets the key go. */
  readonly unique?: true
}

/**
 * A job as a claim hands it out: the attempt is already counted and `state` is `running`.
 *
 * @since 0.1.0
 * @category models
 */
export interface ClaimedJob {
  readonly token: AttemptToken
  readonly job: JobRow
  /** The parsed JSON of the payload, not yet decoded by the job's schema. */
  readonly args: unknown
}

/**
 * @since 0.1.0
 * @category models
 */
export interface ClaimRequest {
  readonly queue: string
  /** Upper bound of jobs to take, 1 to 10,000. */
  readonly limit: number
  /** The claiming worker: a UUID. */
  readonly owner: string
  /** Random, made before the call, so that a lost reply can be told from a claim of somebody else. */
  readonly nonce: string
  /** Wall-clock bound of each attempt; `null` for none. */
  readonly deadline: Duration.Duration | null
  /**
   * For every such time that a job has waited, it counts as one priority more urgent. Left out or `null`: priorities do
   * not age.
   */
  readonly priorityAging?: Duration.Duration | null | undefined
  /** `async`: a claim lost in a server crash is redelivered. `sync`: the claim is flushed before it is answered. */
  readonly durability: "async" | "sync"
}

/**
 * How an attempt ended.
 *
 * - `completed`: success.
 * - `retry`: this attempt failed; run again after `delay`, or after the default backoff when it is `null`. The engine
 *   turns it into `failed` when no attempt is left.
 * - `snooze`: not yet; run again after `delay`, the attempt is not counted.
 * - `return`: the worker gives the job back at once, the attempt is not counted (shutdown, unanswered claim).
 * - `cancel`: given up cleanly.
 * - `fail`: terminal failure.
 *
 * @since 0.1.0
 * @category models
 */
export type Outcome =
  | { readonly _tag: "completed" }
  | { readonly _tag: "retry"; readonly delay: Duration.Duration | null; readonly error: string | null }
  | { readonly _tag: "snooze"; readonly delay: Duration.Duration }
  | { readonly _tag: "return" }
  | { readonly _tag: "cancel"; readonly reason: string }
  | { readonly _tag: "fail"; readonly error: string }

/**
 * @since 0.1.0
 * @category models
 */
export interface Completion {
  readonly token: AttemptToken
  readonly outcome: Outcome
  /** The last progress of the attempt as JSON; `undefined` leaves what is stored. Dropped on success. */
  readonly progress?: unknown
}

/**
 * The engine's answer to one completion. `accepted`: this call ended the attempt. `repeated`: an earlier, equal call
 * did and its answer was lost. `refused`: the attempt is no longer the caller's; its result must be ignored.
 *
 * @since 0.1.0
 * @category models
 */
export type Verdict = "accepted" | "repeated" | "refused"

/**
 * @since 0.1.0
 * @category models
 */
export interface CompletedAndClaimed {
  /** In the order of the completions. */
  readonly verdicts: ReadonlyArray<Verdict>
  readonly jobs: ReadonlyArray<ClaimedJob>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Beat {
  readonly token: AttemptToken
  /** New progress to store; `undefined` keeps what is stored. */
  readonly progress?: unknown
}

/**
 * Whether jobs that fail for good become dead letters, as far as the caller was told: of single queues, and of all others.
 * What an operator said of a queue comes before both.
 *
 * @since 0.1.0
 * @category models
 */
export interface DeadLetterPolicy {
  readonly enabled: boolean
  readonly queues: { readonly [queue: string]: boolean }
}

/**
 * What an operator overrides of the workers' settings of a queue. `refused` names what is stored but makes no sense.
 *
 * @since 0.1.0
 * @category models
 */
export interface QueueOverrides {
  readonly queue: string
  readonly pollInterval?: Duration.Duration
  readonly claimBatchSize?: number
  readonly deadline?: Duration.Duration
  readonly refused: ReadonlyArray<string>
}

/**
 * An attempt taken from a worker that stopped answering, or that ran past its deadline.
 *
 * @since 0.1.0
 * @category models
 */
export interface Rescued {
  readonly jobId: JobId
  readonly reason: "stale_heartbeat" | "deadline_exceeded"
  /** Where the job is now. */
  readonly state: "available" | "retryable" | "failed" | "cancelled"
}

/**
 * How long ended jobs are kept, unless their queue says otherwise.
 *
 * @since 0.1.0
 * @category models
 */
export interface Retention {
  readonly completed: Duration.Duration
  readonly failed: Duration.Duration
  readonly cancelled: Duration.Duration
}

/**
 * What one pass of `reclaim` did.
 *
 * @since 0.1.0
 * @category models
 */
export interface Reclaimed {
  /** Whether new jobs go to another part of the storage now. */
  readonly rotated: boolean
  /** Attempts that outlived the part of the storage they were claimed from, and were moved out of it. */
  readonly evicted: number
  /** Successes that were copied because their queue keeps them for longer. */
  readonly kept: number
  /** Parts of the storage whose space was given back. */
  readonly freed: number
}

/**
 * A storage engine. All methods run on connections the engine's layer was given, never inside a caller's transaction.
 * Claims and completions are not interruptible once sent.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service {
  readonly name: string
  /**
   * Takes up to `limit` waiting jobs of one queue: lowest priority number first, as it is after ageing, then in order of
   * enqueueing. Of a queue with several shards it may take fewer than there are, and leave those of a shard to the claim
   * that is taking them.
   * An empty answer means that nothing was claimable at that moment.
   */
  readonly claim: (request: ClaimRequest) => Effect.Effect<ReadonlyArray<ClaimedJob>, StorageError>
  /**
   * Ends attempts of one owner, durably, in one transaction. Answers in the order of the input. Without a policy no job
   * becomes a dead letter but where an operator said so.
   */
  readonly complete: (
    owner: string,
    completions: ReadonlyArray<Completion>,
    deadLetters?: DeadLetterPolicy
  ) => Effect.Effect<ReadonlyArray<Verdict>, StorageError>
  /**
   * First `complete` for the claim's owner, durably, then `claim`, in one call: for who has room for a job when another
   * has ended. If it fails the one may have been done or both; to complete once more is then answered with `repeated`.
   */
  readonly completeAndClaim: (
    completions: ReadonlyArray<Completion>,
    request: ClaimRequest,
    deadLetters?: DeadLetterPolicy
  ) => Effect.Effect<CompletedAndClaimed, StorageError>
  /** Says that attempts still run. Answers, in the order of the input, whether each is still the owner's. */
  readonly heartbeat: (owner: string, beats: ReadonlyArray<Beat>) => Effect.Effect<ReadonlyArray<boolean>, StorageError>
  /** Attempts the engine holds open under this owner's name and that were claimed at least `olderThan` ago. */
  readonly openAttempts: (
    owner: string,
    olderThan: Duration.Duration
  ) => Effect.Effect<ReadonlyArray<AttemptToken>, StorageError>
  /** Which of these queues have claimable work. Read-only. */
  readonly probe: (queues: ReadonlyArray<string>) => Effect.Effect<ReadonlyArray<string>, StorageError>
  /** Moves up to `limit` due scheduled and retryable jobs to their queues; answers how many. */
  readonly promote: (limit: number) => Effect.Effect<number, StorageError>
  /** Honours up to `limit` requests to cancel a job that were made in callers' transactions; answers how many. */
  readonly cancelRequested: (limit: number) => Effect.Effect<number, StorageError>
  /** Takes back up to `limit` attempts whose last sign of life is older than `staleness`. */
  readonly rescueStale: (options: {
    readonly staleness: Duration.Duration
    readonly limit: number
    readonly deadLetters?: DeadLetterPolicy
  }) => Effect.Effect<ReadonlyArray<Rescued>, StorageError>
  /** Takes back up to `limit` attempts that are past their deadline. */
  readonly rescueExpired: (options: {
    readonly limit: number
    readonly deadLetters?: DeadLetterPolicy
  }) => Effect.Effect<ReadonlyArray<Rescued>, StorageError>
  /** What operators override of these queues; nothing of those without overrides. Read-only. */
  readonly overrides: (queues: ReadonlyArray<string>) => Effect.Effect<ReadonlyArray<QueueOverrides>, StorageError>
  /**
   * Throws away up to `limit` dead letters that were kept for longer than `retention`, or than an operator said of their
   * queue; answers how many.
   */
  readonly cleanupDeadLetters: (options: {
    readonly retention: Duration.Duration
    readonly limit: number
  }) => Effect.Effect<number, StorageError>
  /**
   * One pass over what the storage can give back: space of jobs that ended at least `retention.completed` ago. Each step
   * is a short transaction of its own; what cannot be done now is left to the next pass. New jobs go to another part of
   * the storage every `rotateInterval`, or less often if `retention` asks for it.
   */
  readonly reclaim: (options: {
    readonly rotateInterval: Duration.Duration
    readonly leaseRotateInterval: Duration.Duration
    readonly retention: Retention
  }) => Effect.Effect<Reclaimed, StorageError>
  /** Forgets up to `limit` ended jobs that are not kept any longer; answers how many. */
  readonly expire: (options: {
    readonly retention: Retention
    readonly limit: number
  }) => Effect.Effect<number, StorageError>
  /**
   * Lets go of unique keys whose jobs are gone, or in a state in which they hold none. Looks at up to `limit` held keys,
   * those after the ones of the call before, and begins anew after the last; answers how many it let go.
   */
  readonly sweepKeys: (limit: number) => Effect.Effect<number, StorageError>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class StorageEngine extends Context.Tag("@awa/model/StorageEngine")<StorageEngine, Service>() {}
