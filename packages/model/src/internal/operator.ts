/**
 * What the operators' modules share: how they call SQL functions, and how they refuse what makes no sense.
 */
import * as SqlClient from "@effect/sql/SqlClient"
import type { SqlError } from "@effect/sql/SqlError"
import * as Arr from "effect/Array"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Database from "../Database.js"
import { type DatabaseFailure, InvalidSetting } from "../Errors.js"
import type { JobId } from "../JobRow.js"
import { type Schemas, StorageSchemas } from "../StorageSchemas.js"
import { TimeSource } from "../TimeSource.js"
import { nameRefusal } from "./insertOptions.js"

/** Every column is text, because the application may have type parsers of its own. */
export type TextRow<Column extends string> = { readonly [C in Column]: string | null }

/**
 * Runs one statement, in the caller's transaction if there is one.
 *
 * @internal
 */
export const select = <Row extends object>(
  operation: string,
  text: (schemas: Schemas) => string,
  values: ReadonlyArray<unknown> = []
): Effect.Effect<ReadonlyArray<Row>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.catchTag(attempt<Row>(text, values), "SqlError", Database.fromSqlError(operation))

/** @internal */
export const attempt = <Row extends object>(
  text: (schemas: Schemas) => string,
  values: ReadonlyArray<unknown>
): Effect.Effect<ReadonlyArray<Row>, SqlError, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    // Strings, arrays of strings, null: the client's type is narrower than the driver's.
    return yield* sql.unsafe<Row>(text(yield* StorageSchemas), values as Array<never>).withoutTransform
  })

/**
 * The clock's instant as text; `null` leaves it to the database.
 *
 * @internal
 */
export const now: Effect.Effect<string | null> = Effect.map(
  Effect.flatten(TimeSource),
  (now) => now === null ? null : now.toISOString()
)

/** @internal */
export const columns = (names: ReadonlyArray<string>): string => names.map((name) => `${name}::text`).join(", ")

/**
 * Milliseconds since 1970 of a column.
 *
 * @internal
 */
export const millis = (column: string): string =>
  `floor(date_part('epoch', ${column}) * 1000)::bigint::text as ${column}`

/** @internal */
export const dateOf = (millis: string | null): Date | undefined =>
  millis === null ? undefined : new Date(Number(millis))

// Refusals

/** @internal */
export const invalid = (setting: string, value: unknown, reason: string): InvalidSetting =>
  new InvalidSetting({ setting, value, reason })

/** @internal */
export const checkName = (setting: string, value: unknown): Effect.Effect<void, InvalidSetting> => {
  const refusal = nameRefusal(setting, value)
  return refusal === undefined ? Effect.void : Effect.fail(invalid(setting, value, refusal.reason))
}

/**
 * TypeScript asks for bigints; this is for code without types, and for more than PostgreSQL can count.
 *
 * @internal
 */
export const checkId = (setting: string, id: unknown): Effect.Effect<void, InvalidSetting> =>
  typeof id === "bigint" && BigInt.asIntN(64, id) === id
    ? Effect.void
    : Effect.fail(invalid(setting, id, "it must be a JobId: a bigint of 64 bits"))

/**
 * A string is iterable too: its digits are not the ids that were meant.
 *
 * @internal
 */
export const checkIds = (ids: Iterable<JobId>): Effect.Effect<ReadonlyArray<JobId>, InvalidSetting> =>
  Predicate.isIterable(ids) && typeof ids !== "string"
    ? Effect.suspend(() => {
      const all = Arr.fromIterable(ids)
      return Effect.as(Effect.forEach(all, (id, i) => checkId(`ids[${i}]`, id), { discard: true }), all)
    })
    : Effect.fail(invalid("ids", ids, "they must be JobIds: bigints of 64 bits"))

/** @internal */
export const checkOptions = (
  setting: string,
  options: object,
  known: ReadonlyArray<string>
): Effect.Effect<void, InvalidSetting> => {
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  return unknown === undefined
    ? Effect.void
    : Effect.fail(
      invalid(`${setting}.${unknown}`, options[unknown as never], `there is no such option; use ${known.join(", ")}`)
    )
}

/** @internal */
const longest = Duration.days(36_525)

/**
 * Whole milliseconds, at least one.
 *
 * @internal
 */
export const checkDuration = (
  setting: string,
  input: unknown,
  most: Duration.Duration = longest
): Effect.Effect<number | null, InvalidSetting> => {
  if (input === undefined) return Effect.succeed(null)
  const decoded = Duration.decodeUnknown(input)
  if (Option.isNone(decoded) || Number.isNaN(input)) {
    return Effect.fail(invalid(setting, input, "it is no duration, such as \"30 seconds\" or Duration.seconds(30)"))
  }
  const millis = Math.ceil(Duration.toMillis(decoded.value))
  return millis >= 1 && millis <= Duration.toMillis(most)
    ? Effect.succeed(millis)
    : Effect.fail(invalid(setting, input, `it must be from 1 millisecond to ${Duration.format(most)}`))
}

/** @internal */
const defaultChunk = 1_000

const largestChunk = 10_000

/**
 * How many rows one transaction of a bulk operation touches: what is too small or too large is brought into bounds.
 *
 * @internal
 */
export const chunkSize = (setting: string, size: number = defaultChunk): Effect.Effect<number, InvalidSetting> =>
  typeof size !== "number" || Number.isNaN(size)
    ? Effect.fail(invalid(setting, size, "it must be a number"))
    : Effect.succeed(clamp(size, largestChunk))

/** @internal */
export const clamp = (value: number, most: number): number => Math.trunc(Math.min(Math.max(value, 1), most))
