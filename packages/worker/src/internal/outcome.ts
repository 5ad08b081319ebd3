import type { Outcome } from "@awa/model/StorageEngine"
import * as Cause from "effect/Cause"
import * as Chunk from "effect/Chunk"
import * as Duration from "effect/Duration"
import type * as Exit from "effect/Exit"
import * as Inspectable from "effect/Inspectable"
import * as ParseResult from "effect/ParseResult"
import * as Predicate from "effect/Predicate"
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

/** A value may run any code when it is looked at; whatever it throws is not our problem. */
const attempted = <A>(look: () => A, otherwise: (thrown: unknown) => A): A => {
  try {
    return look()
  } catch (thrown) {
    return otherwise(thrown)
  }
}

const shown = (value: unknown): string =>
  attempted(
    () => bounded(value instanceof Error ? String(value) : Inspectable.toStringUnknown(value, 0)),
    () => "a value that cannot be shown"
  )

/** TypeScript keeps handlers from these; a cast, or code without types, does not. */
const badResult = (what: string, value: unknown): Outcome =>
  retry(bounded(`The handler answered ${what}: ${shown(value)}`))

/** `toMillis` throws for what only pretends to be a duration. */
const isDuration = (value: unknown): boolean => Duration.isDuration(value) && !Number.isNaN(Duration.toMillis(value))

const ofResult = (result: unknown): Outcome => {
  if (!JobResult.isJobResult(result)) return completed
  switch (result._tag) {
    case "Completed":
      return completed
    case "RetryAfter":
      return isDuration(result.delay)
        ? { _tag: "retry", delay: result.delay, error: null }
        : badResult("RetryAfter with a delay that is no Duration", result.delay)
    case "Snooze":
      return isDuration(result.delay)
        ? { _tag: "snooze", delay: result.delay }
        : badResult("Snooze with a delay that is no Duration", result.delay)
    case "Cancel":
      return typeof result.reason === "string"
        ? { _tag: "cancel", reason: bounded(result.reason) }
        : badResult("Cancel with a reason that is no string", result.reason)
    default:
      return badResult("a JobResult of an unknown kind", (result as { readonly _tag?: unknown })._tag)
  }
}

/** Where this package lies. Unknown where it was bundled with the application, whose frames ours then look like. */
const home = /^file:\/\/(.*\/)internal\/outcome\.[jt]s$/.exec(import.meta.url)?.[1]

const isForeign = (frame: string): boolean =>
  /node_modules|node:/.test(frame) || (home !== undefined && frame.includes(home))

/** The frames of the application. What names no place, such as the span of the attempt, is none. */
const framesOf = (stack: string): ReadonlyArray<string> =>
  stack.split("\n").filter((line) => /^ +at .*:\d+:\d+\)?$/.test(line) && !isForeign(line))

interface Pretty {
  readonly name: string
  readonly message: string
  readonly stack?: string | undefined
}

/** Without its causes: of a long chain that would be much for each link. */
const prettyOf = (error: unknown): Pretty =>
  attempted(
    () =>
      error instanceof Error
        ? {
          name: String(error.name),
          message: String(error.message),
          stack: attempted(() => error.stack, () => undefined)
        }
        : Cause.prettyErrors(Cause.fail(error))[0]!,
    () => ({ name: Predicate.hasProperty(error, "_tag") ? String(error._tag) : "Error", message: shown(error) })
  )

/** An error class without a message says what happened in its fields. */
const headOf = (error: unknown, { message, name }: Pretty): string =>
  error instanceof Error && error.message === "" && Object.keys(error).length > 0
    ? `${name}: ${Inspectable.toStringUnknown(error, 0)}`
    : `${name}: ${message}`

/** Causes of causes are shown down to this depth. They may be a circle. */
const deepest = 10

/** Stack and causes of an error as the application sees them. A tag says enough about a failure that was expected. */
const linesOf = (error: unknown, isExpected: boolean, depth = 0): ReadonlyArray<string> => {
  const pretty = prettyOf(error)
  const speaks = isExpected && Predicate.hasProperty(error, "_tag")
  const frames = speaks ? [] : framesOf((pretty.stack ?? "").slice(`${pretty.name}: ${pretty.message}`.length))
  return [headOf(error, pretty), ...frames, ...causeOf(error, isExpected, depth + 1)]
}

const causeOf = (error: unknown, isExpected: boolean, depth: number): ReadonlyArray<string> => {
  const cause = attempted(() => Predicate.hasProperty(error, "cause") ? error.cause : undefined, () => undefined)
  if (cause === undefined) return []
  return depth > deepest
    ? ["  [cause]: …"]
    : linesOf(cause, isExpected, depth).map((line, n) => n === 0 ? `  [cause]: ${line}` : `  ${line}`)
}

const textOf = (cause: Cause.Cause<unknown>): string =>
  attempted(() => {
    const failures = Chunk.toReadonlyArray(Cause.failures(cause)).flatMap((error) => linesOf(error, true))
    const defects = Chunk.toReadonlyArray(Cause.defects(cause)).flatMap((defect) => linesOf(defect, false))
    return bounded([...failures, ...defects].join("\n")) || Cause.pretty(cause)
  }, () => "The handler failed with a value that cannot be shown")

const issueText = (issue: ParseResult.ParseIssue): string =>
  attempted(
    () => ParseResult.TreeFormatter.formatIssueSync(issue),
    (thrown) => `The schema cannot say why: ${shown(thrown)}`
  )

const ofFailure = (cause: Cause.Cause<unknown>): Outcome => {
  for (const error of Chunk.toReadonlyArray(Cause.failures(cause))) {
    if (attempted(() => error instanceof UndecodablePayload, () => false)) {
      const { issue } = error as UndecodablePayload
      return { _tag: "fail", error: bounded(`The payload does not fit the job's schema. ${issueText(issue)}`) }
    }
    if (attempted(() => JobError.isTerminal(error), () => false)) return { _tag: "fail", error: textOf(cause) }
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

/** What to tell the database about a handler that ended like this; `null` for nothing. Never throws. */
export const fromExit = (exit: Exit.Exit<unknown, unknown>, stop: StopReason | null): Outcome | null => {
  if (stop === "lost") return null
  return attempted<Outcome | null>(
    () => ofExit(exit, stop),
    (thrown) => badResult("a value that cannot be looked at, which threw", thrown)
  )
}

const ofExit = (exit: Exit.Exit<unknown, unknown>, stop: StopReason | null): Outcome | null => {
  if (exit._tag === "Success") return ofResult(exit.value)
  return Cause.isInterrupted(exit.cause) ? ofInterruption(stop, exit.cause) : ofFailure(exit.cause)
}

export const unknownKind = (kind: string, policy: "retry" | "fail"): Outcome => {
  const error = `No handler for jobs of kind ${JSON.stringify(kind)} in this worker (unknown job kind)`
  return policy === "fail" ? { _tag: "fail", error } : retry(error)
}
