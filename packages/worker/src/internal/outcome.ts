import type { Outcome } from "@awa/model/StorageEngine"
import * as Cause from "effect/Cause"
import * as Chunk from "effect/Chunk"
import type * as Exit from "effect/Exit"
import * as Inspectable from "effect/Inspectable"
import * as ParseResult from "effect/ParseResult"
import * as JobError from "../JobError.js"
import * as JobResult from "../JobResult.js"
import type { StopReason } from "./attempts.js"
import { bounded } from "./text.js"

/** The payload does not fit the job's schema. Kept apart from a `ParseError` the handler itself may fail with. */
export class UndecodablePayload {
  readonly _tag = "UndecodablePayload"
  constructor(readonly issue: ParseResult.ParseIssue) {}
}

export const completed: Outcome = { _tag: "completed" }

export const returned: Outcome = { _tag: "return" }

const retry = (error: string): Outcome => ({ _tag: "retry", delay: null, error })

const ofResult = (result: unknown): Outcome => {
  if (!JobResult.isJobResult(result)) return completed
  switch (result._tag) {
    case "Completed":
      return completed
    case "RetryAfter":
      return { _tag: "retry", delay: result.delay, error: null }
    case "Snooze":
      return { _tag: "snooze", delay: result.delay }
    case "Cancel":
      return { _tag: "cancel", reason: bounded(result.reason) }
  }
}

/** An error class without a message says what happened in its fields, which `Cause.pretty` leaves out. */
const fieldsOf = (error: unknown): ReadonlyArray<string> =>
  error instanceof Error && error.message === "" && Object.keys(error).length > 0
    ? [Inspectable.toStringUnknown(error, 0)]
    : []

/** An error value may run any code when it is looked at; whatever it throws is not our problem. */
const textOf = (cause: Cause.Cause<unknown>): string => {
  try {
    const fields = Chunk.toReadonlyArray(Cause.failures(cause)).flatMap(fieldsOf)
    return bounded([...fields, Cause.pretty(cause, { renderErrorCause: true })].join("\n"))
  } catch {
    return "The handler failed with a value that cannot be shown"
  }
}

const ofFailure = (cause: Cause.Cause<unknown>): Outcome => {
  for (const error of Chunk.toReadonlyArray(Cause.failures(cause))) {
    if (error instanceof UndecodablePayload) {
      const issue = ParseResult.TreeFormatter.formatIssueSync(error.issue)
      return { _tag: "fail", error: bounded(`The payload does not fit the job's schema. ${issue}`) }
    }
    if (JobError.isTerminal(error)) return { _tag: "fail", error: textOf(cause) }
  }
  return retry(textOf(cause))
}

const ofInterruption = (reason: StopReason | null, cause: Cause.Cause<unknown>): Outcome | null => {
  switch (reason) {
    case "shutdown":
      return returned
    case "lost":
      return null
    case "deadline":
      return retry("The attempt ran past its deadline and was interrupted (deadline exceeded)")
    case null:
      return Cause.isInterruptedOnly(cause) ? retry("The handler interrupted itself") : ofFailure(cause)
  }
}

/** What to tell the database about a handler that ended like this; `null` for nothing. */
export const fromExit = (exit: Exit.Exit<unknown, unknown>, stop: StopReason | null): Outcome | null => {
  if (stop === "lost") return null
  if (exit._tag === "Success") return ofResult(exit.value)
  return Cause.isInterrupted(exit.cause) ? ofInterruption(stop, exit.cause) : ofFailure(exit.cause)
}

export const unknownKind = (kind: string, policy: "retry" | "fail"): Outcome => {
  const error = `No handler for jobs of kind ${JSON.stringify(kind)} in this worker (unknown job kind)`
  return policy === "fail" ? { _tag: "fail", error } : retry(error)
}
