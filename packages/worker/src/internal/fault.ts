import type { StorageError } from "@awa/model/StorageEngine"
import * as Cause from "effect/Cause"

/** SQLSTATE classes that blame the data of the statement: then one member of its batch is at fault. */
const blamesData = /^(2[0-3]|54|P0|XX)/

/** Whether trying the same batch again is pointless. Everything else passes, or an operator sees to it. */
export const isAtFault = (cause: Cause.Cause<StorageError>): boolean => {
  const failure = Cause.failureOrCause(cause)
  if (failure._tag === "Right") return !Cause.isInterrupted(failure.right)
  const error = failure.left
  return error._tag === "StorageInconsistent" ||
    (error._tag === "DatabaseError" && error.sqlState !== null && blamesData.test(error.sqlState))
}
