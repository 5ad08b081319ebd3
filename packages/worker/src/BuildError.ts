/**
 * Why a worker cannot be built: a setting that makes no sense, found before anything touches the database.
 *
 * Each error names the setting as it is written in code and the value that was given.
 *
 * @since 0.1.0
 */
import * as Data from "effect/Data"
import * as Inspectable from "effect/Inspectable"

/**
 * The worker would have nothing to do: no queue was named.
 *
 * @since 0.1.0
 * @category errors
 */
export class NoQueuesConfigured extends Data.TaggedError("NoQueuesConfigured") {
  /** @since 0.1.0 */
  readonly setting = "queue"
  override get message(): string {
    return "The worker has no queue: add at least one with Awa.queue(name)"
  }
}

/**
 * The worker could run none of the jobs it takes: every one would lose an attempt.
 *
 * @since 0.1.0
 * @category errors
 */
export class NoHandlersConfigured extends Data.TaggedError("NoHandlersConfigured") {
  /** @since 0.1.0 */
  readonly setting = "handle"
  override get message(): string {
    return "The worker has no handler: add at least one with Awa.handle(job, handler)"
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class DuplicateQueue extends Data.TaggedError("DuplicateQueue")<{ readonly queue: string }> {
  /** @since 0.1.0 */
  readonly setting = "queue"
  override get message(): string {
    return `The queue ${show(this.queue)} is configured twice: one worker works a queue once`
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class DuplicateHandler extends Data.TaggedError("DuplicateHandler")<{ readonly kind: string }> {
  /** @since 0.1.0 */
  readonly setting = "handle"
  override get message(): string {
    return `There are two handlers for jobs of kind ${show(this.kind)}`
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class InvalidQueueName extends Data.TaggedError("InvalidQueueName")<{
  readonly value: unknown
  readonly reason: string
}> {
  /** @since 0.1.0 */
  readonly setting = "queue"
  override get message(): string {
    return `${show(this.value)} is no name of a queue: ${this.reason}`
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class InvalidMaxWorkers extends Data.TaggedError("InvalidMaxWorkers")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class InvalidClaimBatchSize extends Data.TaggedError("InvalidClaimBatchSize")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class InvalidCompletionBatchSize extends Data.TaggedError("InvalidCompletionBatchSize")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class InvalidDlqBatchSize extends Data.TaggedError("InvalidDlqBatchSize")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export class InvalidConnectionCount extends Data.TaggedError("InvalidConnectionCount")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * A number of slots that no storage has.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidSlotCount extends Data.TaggedError("InvalidSlotCount")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * A duration that is zero, negative, endless or none at all.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidDuration extends Data.TaggedError("InvalidDuration")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * A setting that takes one of a few values was given another one.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidChoice extends Data.TaggedError("InvalidChoice")<{
  readonly setting: string
  readonly value: unknown
  readonly reason: string
}> {
  override get message(): string {
    return describe(this)
  }
}

/**
 * An option nobody reads: most likely a misspelt name.
 *
 * @since 0.1.0
 * @category errors
 */
export class UnknownOption extends Data.TaggedError("UnknownOption")<{
  /** With the group it was found in: `heartbeat.intervall`. */
  readonly setting: string
  readonly value: unknown
  readonly suggestion: string | null
}> {
  override get message(): string {
    const hint = this.suggestion === null ? "" : `; did you mean ${show(this.suggestion)}?`
    return `There is no setting ${show(this.setting)}${hint}`
  }
}

/**
 * @since 0.1.0
 * @category errors
 */
export type BuildError =
  | NoQueuesConfigured
  | NoHandlersConfigured
  | DuplicateQueue
  | DuplicateHandler
  | InvalidQueueName
  | InvalidMaxWorkers
  | InvalidClaimBatchSize
  | InvalidCompletionBatchSize
  | InvalidDlqBatchSize
  | InvalidConnectionCount
  | InvalidSlotCount
  | InvalidDuration
  | InvalidChoice
  | UnknownOption

const describe = (error: { readonly setting: string; readonly value: unknown; readonly reason: string }): string =>
  `${error.setting} cannot be ${show(error.value)}: ${error.reason}`

const show = (value: unknown): string =>
  typeof value === "string" ? JSON.stringify(value) : Inspectable.toStringUnknown(value, 0)
