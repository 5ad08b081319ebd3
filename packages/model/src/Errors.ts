/**
 * What can go wrong, as values. Every message says what to do; no error ever contains a password.
 *
 * @since 0.1.0
 */
import * as Inspectable from "effect/Inspectable"
import * as Schema from "effect/Schema"
import * as pgErrors from "./internal/pgErrors.js"
import { JobId } from "./JobRow.js"
import { JobState } from "./JobState.js"

/** What JSON shows of an error that names a job: JSON has no bigint. */
const withTextId = <E extends { readonly id: bigint }>(error: E) => ({ ...error, id: error.id.toString() })

/**
 * A job that was refused before anything was sent to the database.
 *
 * `field` is a path such as `payload.items[2].name`, `priority` or `metadata["awa:x"]`. In a bulk call `index` is the
 * position of the offending job, from 0.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidJob extends Schema.TaggedError<InvalidJob>("@awa/model/Errors/InvalidJob")("InvalidJob", {
  kind: Schema.String,
  field: Schema.String,
  reason: Schema.String,
  index: Schema.optional(Schema.Int)
}) {
  override get message(): string {
    const which = this.index === undefined ? "" : ` (index ${this.index} of the call)`
    return `Job ${JSON.stringify(this.kind)}${which} is not accepted. ${this.field}: ${this.reason}`
  }
}

/**
 * A job that was not stored because another one has its unique key. Nothing went wrong in the database: the caller's
 * transaction goes on.
 *
 * `jobId` is the job that has the key. In a bulk call `index` is the position of the first job that could not be stored,
 * from 0, and none of the call were. Two jobs of the same call are told by `sameAs`, the position of the one before.
 *
 * @since 0.1.0
 * @category errors
 */
export class UniqueConflict
  extends Schema.TaggedError<UniqueConflict>("@awa/model/Errors/UniqueConflict")("UniqueConflict", {
    kind: Schema.String,
    jobId: Schema.optional(JobId),
    index: Schema.optional(Schema.Int),
    sameAs: Schema.optional(Schema.Int)
  })
{
  override get message(): string {
    const which = this.index === undefined ? "" : ` (index ${this.index} of the call)`
    const holder = this.jobId === undefined ? `the job at index ${this.sameAs} of the call` : `job ${this.jobId}`
    const advice = this.index === undefined
      ? "Nothing is to be done if one job is enough."
      : "None of the call were enqueued: use enqueueEach to enqueue those that are free."
    return `Job ${JSON.stringify(this.kind)}${which} is not enqueued, ${holder} has its unique key. ${advice}`
  }

  /** With the id as a string: JSON has no bigint. */
  override toJSON(): unknown {
    return { ...this, jobId: this.jobId?.toString() }
  }
}

const connectionAdvice: Record<pgErrors.ConnectionReason, string> = {
  refused: "Check that the server is running and accepts connections, and that host and port are right.",
  authentication: "Check user name and password, and the server's pg_hba.conf.",
  "database-missing": "Create the database, or correct its name.",
  timeout: "Check host, port and firewall; if the server is merely busy, raise connectTimeout or maxConnections.",
  other: "Check the connection settings."
}

/**
 * No connection to PostgreSQL could be had. `target` is `host:port/database`.
 *
 * @since 0.1.0
 * @category errors
 */
export class ConnectionFailed
  extends Schema.TaggedError<ConnectionFailed>("@awa/model/Errors/ConnectionFailed")("ConnectionFailed", {
    reason: Schema.Literal("refused", "authentication", "database-missing", "timeout", "other"),
    target: Schema.String,
    cause: Schema.Defect
  })
{
  override get message(): string {
    return `Cannot connect to PostgreSQL at ${this.target}: ${pgErrors.describe(this.cause)}. ${
      connectionAdvice[this.reason]
    }`
  }

  /** Whether trying again later may succeed. */
  get isTransient(): boolean {
    return this.reason !== "authentication" && this.reason !== "database-missing"
  }
}

/**
 * The database failed, or the connection to it was lost. `sqlState` is `null` when no server answered.
 *
 * @since 0.1.0
 * @category errors
 */
export class DatabaseError
  extends Schema.TaggedError<DatabaseError>("@awa/model/Errors/DatabaseError")("DatabaseError", {
    operation: Schema.String,
    sqlState: Schema.NullOr(Schema.String),
    cause: Schema.Defect
  })
{
  override get message(): string {
    const state = this.sqlState === null ? "no answer from the server" : `SQLSTATE ${this.sqlState}`
    return `Database operation "${this.operation}" failed: ${pgErrors.describe(this.cause)} (${state}). ${this.advice}`
  }

  /**
   * Whether the same operation may succeed when it is tried again. A COMMIT whose answer was lost is not transient: the
   * transaction may have taken effect.
   */
  get isTransient(): boolean {
    return pgErrors.isTransientState(this.sqlState) && !this.isInDoubt
  }

  /** Whether a COMMIT was sent and never answered: the transaction may or may not have taken effect. */
  get isInDoubt(): boolean {
    return this.operation === "commit" && (this.sqlState === null || /^(08|57)/.test(this.sqlState))
  }

  private get advice(): string {
    if (this.isInDoubt) return "Whether the transaction took effect is unknown: look before you repeat it."
    return this.isTransient ? "Trying again may succeed." : "Trying again will not help: see the cause."
  }
}

/**
 * The schema, or something the library needs in it, does not exist.
 *
 * @since 0.1.0
 * @category errors
 */
export class SchemaMissing
  extends Schema.TaggedError<SchemaMissing>("@awa/model/Errors/SchemaMissing")("SchemaMissing", {
    schema: Schema.String
  })
{
  override get message(): string {
    return `The database has no job queue in schema "${this.schema}". Run the migrations (Migrations.run), ` +
      "or correct the schema name (StorageSchemas) or the database."
  }
}

/**
 * The schema is older than the library: `found` is the newest migration applied, `expected` the newest one needed.
 *
 * @since 0.1.0
 * @category errors
 */
export class SchemaOutdated
  extends Schema.TaggedError<SchemaOutdated>("@awa/model/Errors/SchemaOutdated")("SchemaOutdated", {
    schema: Schema.String,
    found: Schema.Int,
    expected: Schema.Int
  })
{
  override get message(): string {
    return `Schema "${this.schema}" is at migration ${this.found}, this version of the library needs ${this.expected}. ` +
      "Run the migrations (Migrations.run)."
  }
}

/**
 * The schema is newer than the library: `found` is a migration this version does not know, `supported` the newest one it
 * does.
 *
 * @since 0.1.0
 * @category errors
 */
export class SchemaTooNew extends Schema.TaggedError<SchemaTooNew>("@awa/model/Errors/SchemaTooNew")("SchemaTooNew", {
  schema: Schema.String,
  found: Schema.Int,
  supported: Schema.Int
}) {
  override get message(): string {
    return `Schema "${this.schema}" has migration ${this.found}, this version of the library knows ${this.supported} ` +
      "at most. Upgrade the library in this process; nothing was changed."
  }
}

/**
 * A migration that was applied differs from the one of the same number in this version of the library.
 *
 * @since 0.1.0
 * @category errors
 */
export class MigrationChanged
  extends Schema.TaggedError<MigrationChanged>("@awa/model/Errors/MigrationChanged")("MigrationChanged", {
    schema: Schema.String,
    version: Schema.Int,
    name: Schema.String
  })
{
  override get message(): string {
    return `Migration ${this.version} (${this.name}) was applied to schema "${this.schema}" with other contents than ` +
      "this version of the library has. Use the version of the library that applied it; nothing was changed."
  }
}

/**
 * The role of this connection lacks a privilege.
 *
 * @since 0.1.0
 * @category errors
 */
export class PermissionDenied
  extends Schema.TaggedError<PermissionDenied>("@awa/model/Errors/PermissionDenied")("PermissionDenied", {
    operation: Schema.String,
    hint: Schema.String
  })
{
  override get message(): string {
    return `Database operation "${this.operation}" is not permitted to this role: ${this.hint}`
  }
}

/**
 * The jobs in this schema were written in another database cluster, whose transaction ids mean nothing in this one.
 * `expected` and `found` are system identifiers.
 *
 * @since 0.1.0
 * @category errors
 */
export class ForeignDatabase
  extends Schema.TaggedError<ForeignDatabase>("@awa/model/Errors/ForeignDatabase")("ForeignDatabase", {
    schema: Schema.String,
    expected: Schema.String,
    found: Schema.String
  })
{
  override get message(): string {
    return `The jobs in schema "${this.schema}" belong to the database cluster ${this.expected}, this is ${this.found}: ` +
      "they were restored from a dump or replicated. Connect to the cluster they belong to, or adopt them here " +
      "(QueueStorage.adopt)."
  }
}

/**
 * The stored jobs contradict themselves.
 *
 * @since 0.1.0
 * @category errors
 */
export class StorageInconsistent
  extends Schema.TaggedError<StorageInconsistent>("@awa/model/Errors/StorageInconsistent")("StorageInconsistent", {
    schema: Schema.String,
    detail: Schema.String
  })
{
  override get message(): string {
    return `The stored jobs in schema "${this.schema}" are inconsistent: ${this.detail}. ` +
      "Stop the workers and report this with the server's log."
  }
}

/**
 * There is no job of this id, or none any more.
 *
 * @since 0.1.0
 * @category errors
 */
export class JobNotFound extends Schema.TaggedError<JobNotFound>("@awa/model/Errors/JobNotFound")("JobNotFound", {
  operation: Schema.String,
  id: Schema.BigInt
}) {
  override get message(): string {
    return `Cannot ${this.operation} job ${this.id}: there is none. It may have been removed, or its retention is over.`
  }

  override toJSON(): unknown {
    return withTextId(this)
  }
}

/**
 * The job is in a state in which it cannot be changed like that. Nothing was done.
 *
 * @since 0.1.0
 * @category errors
 */
export class JobNotInState
  extends Schema.TaggedError<JobNotInState>("@awa/model/Errors/JobNotInState")("JobNotInState", {
    operation: Schema.String,
    id: Schema.BigInt,
    state: JobState,
    isDeadLetter: Schema.optional(Schema.Boolean)
  })
{
  override get message(): string {
    const what = this.isDeadLetter === true
      ? "it is a dead letter: use Dlq.retry, or Dlq.purgeOne to be rid of it"
      : `it is ${this.state}`
    return `Cannot ${this.operation} job ${this.id}: ${what}. Nothing was changed.`
  }

  override toJSON(): unknown {
    return withTextId(this)
  }
}

/**
 * It could not be decided in time what becomes of the job: somebody holds the lock of its queue, or it kept moving.
 * Nothing was done.
 *
 * @since 0.1.0
 * @category errors
 */
export class JobBusy extends Schema.TaggedError<JobBusy>("@awa/model/Errors/JobBusy")("JobBusy", {
  operation: Schema.String,
  id: Schema.BigInt
}) {
  override get message(): string {
    return `Cannot ${this.operation} job ${this.id} right now: its queue or its unique key is locked, or it keeps moving. ` +
      "Nothing was changed; try again."
  }

  override toJSON(): unknown {
    return withTextId(this)
  }
}

/**
 * A setting that cannot be used. Secrets appear as `<redacted>`.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidSetting
  extends Schema.TaggedError<InvalidSetting>("@awa/model/Errors/InvalidSetting")("InvalidSetting", {
    setting: Schema.String,
    value: Schema.Unknown,
    reason: Schema.String
  })
{
  override get message(): string {
    return `Invalid setting ${this.setting} (${Inspectable.toStringUnknown(this.value)}): ${this.reason}`
  }
}

/**
 * A partitioned queue that cannot be. `field` is `name`, `partitions`, or a path such as `queues[2]`.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidPartitionedQueue
  extends Schema.TaggedError<InvalidPartitionedQueue>("@awa/model/Errors/InvalidPartitionedQueue")(
    "InvalidPartitionedQueue",
    {
      field: Schema.String,
      value: Schema.Unknown,
      reason: Schema.String
    }
  )
{
  override get message(): string {
    return `Invalid partitioned queue. ${this.field} (${Inspectable.toStringUnknown(this.value)}): ${this.reason}`
  }
}

/**
 * A claim, or another operator, holds what an operation on a queue needs, and did not let go of it within two seconds.
 *
 * `done` tells whether the operation took effect nevertheless: a pause that did so could not make sure that the last
 * claim that began before it has ended.
 *
 * @since 0.1.0
 * @category errors
 */
export class QueueBusy extends Schema.TaggedError<QueueBusy>("@awa/model/Errors/QueueBusy")("QueueBusy", {
  queue: Schema.String,
  operation: Schema.String,
  done: Schema.Boolean
}) {
  override get message(): string {
    const what = this.done
      ? "took effect, but a claim that began before it may still be under way"
      : "did not get what it needs within two seconds: a claim or another operation holds it"
    return `Operation "${this.operation}" on queue ${
      JSON.stringify(this.queue)
    } ${what}. Try again; if that does not ` +
      "help, look in pg_stat_activity for transactions that idle."
  }

  /** Trying again may succeed. */
  get isTransient(): boolean {
    return true
  }
}

/**
 * What an operation that sends statements to the database can fail with.
 *
 * @since 0.1.0
 * @category errors
 */
export type DatabaseFailure = ConnectionFailed | SchemaMissing | PermissionDenied | DatabaseError

/**
 * Everything this package fails with.
 *
 * @since 0.1.0
 * @category errors
 */
export type AwaError =
  | InvalidJob
  | UniqueConflict
  | InvalidSetting
  | InvalidPartitionedQueue
  | JobNotFound
  | JobNotInState
  | JobBusy
  | QueueBusy
  | DatabaseFailure
  | SchemaOutdated
  | SchemaTooNew
  | MigrationChanged
  | ForeignDatabase
  | StorageInconsistent
