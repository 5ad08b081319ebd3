import { JobRow } from "../JobRow.js"

/**
 * A row from fields that are known to be right. The constructor of a schema class costs three times as much, even with
 * its validation turned off.
 *
 * @internal
 */
export const make = (fields: ConstructorParameters<typeof JobRow>[0]): JobRow =>
  Object.assign(Object.create(JobRow.prototype), fields)
