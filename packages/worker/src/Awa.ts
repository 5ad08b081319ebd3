/**
 * A worker: what it works, as an immutable value, and the layer that runs it.
 *
 * @example
 * ```ts
 * import { Job } from "@awa/model"
 * import { Awa, JobResult } from "@awa/worker"
 * import { Effect, Schema } from "effect"
 *
 * const Greet = Job.make("greet", { payload: { name: Schema.String } })
 *
 * const worker = Awa.builder.pipe(
 *   Awa.queue("default", { maxWorkers: 20, deadline: "30 seconds" }),
 *   Awa.handle(Greet, ({ name }) =>
 *     name === "" ? JobResult.cancel("nobody to greet") : Effect.log(`Hello ${name}`)
 *   )
 * )
 *
 * const WorkerLive = Awa.layer(worker)
 * ```
 *
 * @since 0.1.0
 */
import type * as Errors from "@awa/model/Errors"
import type * as Job from "@awa/model/Job"
import * as Migrations from "@awa/model/Migrations"
import type { PartitionedQueue } from "@awa/model/PartitionedQueue"
import * as QueueStorage from "@awa/model/QueueStorage"
import { StorageEngine, type StorageError } from "@awa/model/StorageEngine"
import type * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { Pipeable } from "effect/Pipeable"
import type * as Scope from "effect/Scope"
import type * as Types from "effect/Types"
import type { BuildError } from "./BuildError.js"
import * as internal from "./internal/builder.js"
import * as Connections from "./internal/connections.js"
import * as Handler from "./internal/handler.js"
import { newInstanceId } from "./internal/identity.js"
import * as Settings from "./internal/settings.js"
import * as Worker from "./internal/worker.js"
import type { JobContext } from "./JobContext.js"
import type * as JobResult from "./JobResult.js"
import type { QueueConfig } from "./QueueConfig.js"

/**
 * @since 0.1.0
 * @category type ids
 */
export const TypeId: internal.TypeId = internal.TypeId

/**
 * @since 0.1.0
 * @category type ids
 */
export type TypeId = typeof TypeId

/**
 * What a worker is made of. Nothing runs and nothing is checked before `layer` is built.
 *
 * `E` is what its parts may fail with, `R` what its handlers require, `Kinds` the kinds of jobs it handles.
 *
 * @since 0.1.0
 * @category models
 */
export interface Builder<out E, out R, out Kinds extends string = never> extends Pipeable {
  readonly [TypeId]: {
    readonly _E: Types.Covariant<E>
    readonly _R: Types.Covariant<R>
    readonly _Kinds: Types.Covariant<Kinds>
  }
}

/**
 * @since 0.1.0
 * @category models
 */
export type HeartbeatOptions = Settings.HeartbeatOptions

/**
 * @since 0.1.0
 * @category models
 */
export type MaintenanceOptions = Settings.MaintenanceOptions

/**
 * @since 0.1.0
 * @category models
 */
export type RetentionOptions = Settings.RetentionOptions

/**
 * @since 0.1.0
 * @category models
 */
export type QueueStorageOptions = Settings.QueueStorageOptions

/**
 * @since 0.1.0
 * @category models
 */
export type CompletionOptions = Settings.CompletionOptions

/**
 * @since 0.1.0
 * @category models
 */
export type DlqOptions = Settings.DlqOptions

/**
 * @since 0.1.0
 * @category models
 */
export type ShutdownOptions = Settings.ShutdownOptions

/**
 * @since 0.1.0
 * @category models
 */
export type ConnectionsOptions = Settings.ConnectionsOptions

/**
 * How a worker is.
 *
 * @since 0.1.0
 * @category models
 */
export interface HealthCheck {
  /**
   * The database answers, every loop lives, neither claiming nor storing results has only failed for 30 seconds, and the
   * worker does not shut down.
   */
  readonly healthy: boolean
  readonly postgresConnected: boolean
  /** Whether every queue is being polled, and not in vain for 30 seconds. */
  readonly pollLoopAlive: boolean
  readonly heartbeatAlive: boolean
  readonly maintenanceAlive: boolean
  readonly shuttingDown: boolean
  /** Whether this worker maintains for all others. Exactly one should. */
  readonly leader: boolean
  /** Whether notifications arrive; without them jobs wait for the poll. */
  readonly listening: boolean
  readonly queues: { readonly [queue: string]: { readonly inFlight: number; readonly maxWorkers: number } }
}

/**
 * A running worker.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** Names this worker in the database: a UUID, new with every start. */
  readonly instanceId: string
  /** Asks the database, for two seconds at most. */
  readonly healthCheck: Effect.Effect<HealthCheck>
  /**
   * Stops claiming, lets running jobs finish for four fifths of the time, interrupts and returns the others (their
   * attempts unspent), stores all results and ends. It takes no longer than `timeout` (default: that of
   * `Awa.shutdown`). A second call waits for the first. Closing the layer does the same.
   */
  readonly shutdown: (timeout?: Duration.DurationInput) => Effect.Effect<void>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Awa extends Context.Tag("@awa/worker/Awa")<Awa, Service>() {}

/**
 * A worker without queues and handlers: where every worker begins.
 *
 * @since 0.1.0
 * @category constructors
 */
export const builder: Builder<never, never> = internal.make(internal.empty)

/**
 * Works a queue. Jobs of other queues are left to other workers.
 *
 * @since 0.1.0
 * @category combinators
 */
export const queue = (name: string, config: QueueConfig = {}) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> => internal.modify(self, (parts) => ({ ...parts, queues: [...parts.queues, [name, config]] }))

/**
 * Works every physical queue of a partitioned one, each with these settings: `maxWorkers` counts per physical queue.
 *
 * @since 0.1.0
 * @category combinators
 */
export const partitionedQueue =
  (partitioned: PartitionedQueue, config: QueueConfig = {}) =>
  <E, R, Kinds extends string>(
    self: Builder<E, R, Kinds>
  ): Builder<E, R, Kinds> =>
    internal.modify(self, (parts) => ({
      ...parts,
      queues: [...parts.queues, ...partitioned.queues.map((name) => [name, config] as const)]
    }))

/**
 * Runs the jobs of one kind. The handler gets the decoded payload and the context of the attempt; whatever services it
 * uses, and the payload's schema, become requirements of the layer. It has a scope of its own, closed when it ends.
 *
 * Succeeding with nothing completes the job; a `JobResult` says otherwise. A failure or a defect is retried with backoff
 * while attempts are left, except `JobError.terminal`. A payload that does not fit its schema fails the job at once.
 *
 * What the job's `errors` say of a failure is its name, its message (or its fields) and its causes. A defect, and an error
 * without a tag, also bring their stack, as far as it is the application's: frames of packages and of Node.js are left out.
 *
 * Interruption ends the handler when its deadline passes, when the worker shuts down, and when the attempt was taken
 * from it; in the last case its result is ignored.
 *
 * @since 0.1.0
 * @category combinators
 */
export const handle = <J extends Job.Any, E1, R1>(
  job: J,
  handler: (
    payload: Job.Payload<J>,
    context: Context.Tag.Service<JobContext>
  ) => Effect.Effect<JobResult.JobResult | void, E1, R1>
) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R | Exclude<R1, JobContext | Scope.Scope> | Job.Context<J>, Kinds | J["kind"]> =>
  internal.modify(self, (parts) => ({ ...parts, handlers: [...parts.handlers, Handler.make(job, handler)] }))

/**
 * How long attempts prove that they live, and when they are taken away because they did not.
 *
 * @since 0.1.0
 * @category combinators
 */
export const heartbeat = (options: HeartbeatOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, heartbeat: { ...parts.heartbeat, ...options } }))

/**
 * How often the one worker that leads does its work for all.
 *
 * @since 0.1.0
 * @category combinators
 */
export const maintenance = (options: MaintenanceOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, maintenance: { ...parts.maintenance, ...options } }))

/**
 * How long ended jobs are kept. A queue may keep its own for longer or shorter: see `awa.queues`. Successes are kept in
 * the log, whose slots are freed as a whole: they go at the earliest when they may, at the latest a slot's span later.
 *
 * @since 0.1.0
 * @category combinators
 */
export const retention = (options: RetentionOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, retention: { ...parts.retention, ...options } }))

/**
 * How the default storage engine turns its slots.
 *
 * @since 0.1.0
 * @category combinators
 */
export const queueStorage = (options: QueueStorageOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, queueStorage: { ...parts.queueStorage, ...options } }))

/**
 * How results are stored.
 *
 * @since 0.1.0
 * @category combinators
 */
export const completion = (options: CompletionOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, completion: { ...parts.completion, ...options } }))

/**
 * What becomes of jobs that fail for good: whether they are set aside as dead letters, and how long those are kept. A
 * queue may say otherwise (`Awa.queue`), and what an operator says of a queue in the database comes before both.
 *
 * The end of an attempt follows the settings of the worker that ran it; an attempt that is taken back from a worker that
 * is gone, those of the worker that leads. So let all workers of a queue say the same.
 *
 * @since 0.1.0
 * @category combinators
 */
export const dlq = (options: DlqOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> => internal.modify(self, (parts) => ({ ...parts, dlq: { ...parts.dlq, ...options } }))

/**
 * How often the worker looks for what operators override of its queues' settings (`Queues.setOverrides`). Default 10
 * seconds, at least 50 milliseconds.
 *
 * @since 0.1.0
 * @category combinators
 */
export const overrideRefresh = (interval: Duration.DurationInput) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> => internal.modify(self, (parts) => ({ ...parts, overrideRefresh: interval }))

/**
 * How long stopping may take.
 *
 * @since 0.1.0
 * @category combinators
 */
export const shutdown = (options: ShutdownOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> => internal.modify(self, (parts) => ({ ...parts, shutdown: { ...parts.shutdown, ...options } }))

/**
 * The connections of the worker, apart from the application's pool.
 *
 * @since 0.1.0
 * @category combinators
 */
export const connections = (options: ConnectionsOptions) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, connections: { ...parts.connections, ...options } }))

/**
 * `"async"`, the default: a claim lost in a crash of the server is delivered again, possibly while the first delivery
 * still runs. `"sync"`: a claim is flushed before its jobs start, at the price of a flush a claim.
 *
 * @since 0.1.0
 * @category combinators
 */
export const claimDurability = (durability: Settings.ClaimDurability) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> => internal.modify(self, (parts) => ({ ...parts, claimDurability: durability }))

/**
 * What becomes of a claimed job whose kind has no handler here. `"retry"`, the default: the attempt counts as failed and
 * is retried with backoff, so that during a deployment that adds a kind the old workers kill nothing. `"fail"`: the job
 * fails at once.
 *
 * @since 0.1.0
 * @category combinators
 */
export const unknownKinds = (policy: Settings.UnknownKinds) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E, R, Kinds> => internal.modify(self, (parts) => ({ ...parts, unknownKinds: policy }))

/**
 * Keeps jobs in another storage engine than `QueueStorage`. The layer is given a `SqlClient` over the worker's own
 * connections.
 *
 * @since 0.1.0
 * @category combinators
 */
export const storage = <E1, R1>(layer: Layer.Layer<StorageEngine, E1, R1>) =>
<E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Builder<E | E1, R | Exclude<R1, SqlClient.SqlClient>, Kinds> =>
  internal.modify(self, (parts) => ({ ...parts, storage: layer }))

/**
 * Why a worker with a valid configuration did not start.
 *
 * @since 0.1.0
 * @category errors
 */
export type StartError =
  | Errors.InvalidSetting
  | Errors.SchemaOutdated
  | Errors.SchemaTooNew
  | Errors.MigrationChanged
  | StorageError

/**
 * Runs a worker: checks its settings, then the database's schema, opens its connections and starts. It works until the
 * layer is closed, through restarts of the database too.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = <E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>
): Layer.Layer<Awa, E | BuildError | StartError, R | SqlClient.SqlClient | PgClient.PgClient> =>
  Layer.scoped(
    Awa,
    Effect.gen(function*() {
      const parts = internal.partsOf(self)
      const settings = yield* Settings.resolve(parts)
      yield* Effect.forEach(Settings.doubts(settings), (doubt) => Effect.logWarning(doubt), { discard: true })
      yield* Migrations.verify
      const instanceId = newInstanceId()
      const { leadership, notifier, sql } = yield* Connections.open(settings.connections, instanceId)
      // `E` and `R` of the builder contain those of its storage; the others come with `QueueStorage`.
      const storage = (parts.storage ?? QueueStorage.layerOf(settings.queueStorage.layout)) as Layer.Layer<
        StorageEngine,
        E | StorageError,
        R
      >
      const engine = yield* Layer.build(storage).pipe(
        Effect.map(Context.get(StorageEngine)),
        Effect.provideService(SqlClient.SqlClient, sql)
      )
      return yield* Worker.make({ settings, instanceId, engine, notifier, leadership })
    })
  )
