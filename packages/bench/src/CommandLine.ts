import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Console, Data, Effect, Logger, LogLevel } from "effect"
import { writeFileSync } from "node:fs"

export class UsageError extends Data.TaggedError("UsageError")<{ readonly message: string }> {}

/** A positive whole number, or `undefined` if the option was not given. */
export const positive = (name: string, text: string | undefined): number | undefined => {
  if (text === undefined) return undefined
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new UsageError({ message: `--${name} takes a positive whole number` })
  }
  return value
}

export const list = (text: string): ReadonlyArray<string> => text.split(",").filter((name) => name !== "")

/** Reads the arguments; what is wrong with them is said before how it is done right. */
export const parse = <A>(usage: string, read: () => A): Effect.Effect<A, UsageError> =>
  Effect.try({
    try: read,
    catch: (error) => new UsageError({ message: `${(error as Error).message}\n\n${usage}` })
  })

export const writeJson = (file: string | undefined, value: unknown): Effect.Effect<void> =>
  Effect.sync(() => {
    if (file !== undefined) writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`)
  })

/** Runs a program to its end: an expected failure is its message on standard error and exit code 1. */
export const main = <E extends { readonly message: string }>(program: Effect.Effect<void, E>): void =>
  NodeRuntime.runMain(
    program.pipe(
      Effect.tapError((error) => Console.error(error.message)),
      Effect.tapDefect((cause) => Console.error(cause)),
      Logger.withMinimumLogLevel(LogLevel.Warning)
    ),
    { disableErrorReporting: true }
  )
