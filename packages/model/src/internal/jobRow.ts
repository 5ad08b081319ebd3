import { JobRow } from "../JobRow.js"

type Fields = ConstructorParameters<typeof JobRow>[0]

/**
 * A row from fields that are known to be right. The constructor of a schema class costs ten times as much, even with its
 * validation turned off.
 *
 * @internal
 */
export const make = (fields: Fields): JobRow => new Row(fields)

const Row = function(this: { -readonly [K in keyof JobRow]: JobRow[K] }, fields: Fields) {
  this.id = fields.id
  this.kind = fields.kind
  this.queue = fields.queue
  this.args = fields.args
  this.state = fields.state
  this.priority = fields.priority
  this.attempt = fields.attempt
  this.maxAttempts = fields.maxAttempts
  this.runLease = fields.runLease
  this.runAt = fields.runAt
  this.createdAt = fields.createdAt
  this.metadata = fields.metadata
  this.tags = fields.tags
  this.errors = fields.errors
  if (fields.attemptedAt !== undefined) this.attemptedAt = fields.attemptedAt
  if (fields.finalizedAt !== undefined) this.finalizedAt = fields.finalizedAt
  if (fields.progress !== undefined) this.progress = fields.progress
  if (fields.orderingKey !== undefined) this.orderingKey = fields.orderingKey
} as unknown as { new(fields: Fields): JobRow; prototype: JobRow } // a class by another door: same fields, same prototype
Row.prototype = JobRow.prototype
