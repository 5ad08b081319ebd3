/**
 * @since 0.1.0
 */
export * as Database from "./Database.js"

/**
 * @since 0.1.0
 */
export * as Dlq from "./Dlq.js"

/**
 * @since 0.1.0
 */
export * as Errors from "./Errors.js"

/**
 * @since 0.1.0
 */
export * as InsertOptions from "./InsertOptions.js"

/**
 * @since 0.1.0
 */
export * as Job from "./Job.js"

/**
 * @since 0.1.0
 */
export * as JobAdmin from "./JobAdmin.js"

/**
 * @since 0.1.0
 */
export * as JobRow from "./JobRow.js"

/**
 * @since 0.1.0
 */
export * as JobState from "./JobState.js"

/**
 * @since 0.1.0
 */
export * as Locks from "./Locks.js"

/**
 * @since 0.1.0
 */
export * as Migrations from "./Migrations.js"

/**
 * @since 0.1.0
 */
export * as PartitionedQueue from "./PartitionedQueue.js"

/**
 * @since 0.1.0
 */
export * as Producer from "./Producer.js"

/**
 * @since 0.1.0
 */
export * as QueueStorage from "./QueueStorage.js"

/**
 * @since 0.1.0
 */
export * as Queues from "./Queues.js"

/**
 * @since 0.1.0
 */
export * as StorageEngine from "./StorageEngine.js"

/**
 * @since 0.1.0
 */
export * as StorageSchemas from "./StorageSchemas.js"

/**
 * @since 0.1.0
 */
export * as TimeSource from "./TimeSource.js"

/**
 * @since 0.1.0
 */
export * as Unique from "./Unique.js"
