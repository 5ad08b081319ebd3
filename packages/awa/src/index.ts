/**
 * Awa for Effect: a job queue on PostgreSQL. The one package an application installs.
 *
 * @since 0.1.0
 */
import { Awa } from "@awa/worker"

export {
  /**
   * Connections, transactions and the recommended client.
   *
   * @since 0.1.0
   */
  Database,
  /**
   * Dead letters: jobs that failed for good and were set aside.
   *
   * @since 0.1.0
   */
  Dlq,
  /**
   * What can go wrong.
   *
   * @since 0.1.0
   */
  Errors,
  /**
   * How a job is enqueued: queue, priority, time, attempts.
   *
   * @since 0.1.0
   */
  InsertOptions,
  /**
   * A job as a value: its kind, the schema of its payload, its defaults.
   *
   * @since 0.1.0
   */
  Job,
  /**
   * Looks at jobs that exist, and changes them.
   *
   * @since 0.1.0
   */
  JobAdmin,
  /**
   * A job as it is stored.
   *
   * @since 0.1.0
   */
  JobRow,
  /**
   * The states of a job.
   *
   * @since 0.1.0
   */
  JobState,
  /**
   * Installs and checks the schema.
   *
   * @since 0.1.0
   */
  Migrations,
  /**
   * One logical queue over several physical ones.
   *
   * @since 0.1.0
   */
  PartitionedQueue,
  /**
   * Enqueues jobs of several kinds at once, and without Effect.
   *
   * @since 0.1.0
   */
  Producer,
  /**
   * Pauses, empties and tunes queues, and tells how full they are.
   *
   * @since 0.1.0
   */
  Queues,
  /**
   * The default storage engine.
   *
   * @since 0.1.0
   */
  QueueStorage,
  /**
   * The port behind which jobs are stored.
   *
   * @since 0.1.0
   */
  StorageEngine,
  /**
   * Where in a database the jobs live.
   *
   * @since 0.1.0
   */
  StorageSchemas,
  /**
   * Whose clock decides what is due.
   *
   * @since 0.1.0
   */
  TimeSource,
  /**
   * Jobs of which there is one at a time: their keys, and who holds them.
   *
   * @since 0.1.0
   */
  Unique
} from "@awa/model"

export {
  /**
   * A worker: the builder, the layer that runs it, the running service.
   *
   * @since 0.1.0
   */
  Awa,
  /**
   * Why a worker cannot be built.
   *
   * @since 0.1.0
   */
  BuildError,
  /**
   * What a handler can ask and tell about its attempt.
   *
   * @since 0.1.0
   */
  JobContext,
  /**
   * Failures by which a handler decides about its job.
   *
   * @since 0.1.0
   */
  JobError,
  /**
   * What a handler may answer instead of plain success.
   *
   * @since 0.1.0
   */
  JobResult,
  /**
   * How a worker learns that a queue has work.
   *
   * @since 0.1.0
   */
  Notifier,
  /**
   * The settings of a queue.
   *
   * @since 0.1.0
   */
  QueueConfig,
  /**
   * What a worker did, told to tests.
   *
   * @since 0.1.0
   */
  Signals
} from "@awa/worker"

/**
 * The layer that runs a worker: `Awa.layer`.
 *
 * @since 0.1.0
 * @category layers
 */
export const AwaLive: typeof Awa.layer = Awa.layer
