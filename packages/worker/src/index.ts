/**
 * @since 0.1.0
 */
export * as Awa from "./Awa.js"

/**
 * @since 0.1.0
 */
export * as BuildError from "./BuildError.js"

/**
 * @since 0.1.0
 */
export * as JobContext from "./JobContext.js"

/**
 * @since 0.1.0
 */
export * as JobError from "./JobError.js"

/**
 * @since 0.1.0
 */
export * as JobResult from "./JobResult.js"

/**
 * @since 0.1.0
 */
export * as Notifier from "./Notifier.js"

/**
 * @since 0.1.0
 */
export * as QueueConfig from "./QueueConfig.js"

/**
 * @since 0.1.0
 */
export * as Signals from "./Signals.js"
