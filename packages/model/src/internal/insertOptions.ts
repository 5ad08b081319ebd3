/**
 * The one validator of insert options, and their JSON form.
 */
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Either from "effect/Either"
import type { InsertOptions } from "../InsertOptions.js"
import { formatPath, stringify, unstorableReason } from "./payload.js"
import { check as checkUnique, type CheckedUnique } from "./unique/options.js"

/** @internal */
export interface Refusal {
  readonly field: string
  readonly reason: string
}

/**
 * Options that were checked, defaults filled in.
 *
 * @internal
 */
export interface CheckedOptions {
  readonly queue: string
  readonly priority: number
  readonly maxAttempts: number
  readonly runAt: Date | undefined
  readonly delayMillis: number | undefined
  /** JSON text. */
  readonly metadata: string | undefined
  readonly tags: ReadonlyArray<string>
  readonly orderingKey: string | undefined
  readonly unique: CheckedUnique | undefined
}

const traceparentKey = "awa:traceparent"

const refuse = (field: string, reason: string): Either.Either<never, Refusal> => Either.left({ field, reason })

const maxNameLength = 200
const maxTags = 20
const maxDelay = Duration.days(36_525)

/** PostgreSQL and ISO 8601 text agree on the years 1 to 9999. */
const earliest = Date.parse("0001-01-01T00:00:00.000Z")
const latest = Date.parse("9999-12-31T23:59:59.999Z")

/**
 * `overriding` over `base`, option by option; `runAt` and `delay` are one option in this. Values are not merged.
 *
 * @internal
 */
export const merge = (base: InsertOptions<string>, overriding: InsertOptions<string>): InsertOptions<string> => {
  const timed = overriding.runAt !== undefined || overriding.delay !== undefined ? overriding : base
  return {
    queue: overriding.queue === undefined ? base.queue : overriding.queue,
    priority: overriding.priority === undefined ? base.priority : overriding.priority,
    maxAttempts: overriding.maxAttempts === undefined ? base.maxAttempts : overriding.maxAttempts,
    runAt: timed.runAt,
    delay: timed.delay,
    metadata: overriding.metadata === undefined ? base.metadata : overriding.metadata,
    tags: overriding.tags === undefined ? base.tags : overriding.tags,
    orderingKey: overriding.orderingKey === undefined ? base.orderingKey : overriding.orderingKey,
    unique: overriding.unique === undefined ? base.unique : overriding.unique
  }
}

/**
 * `fields` are those of the payload, `null` when they are not known.
 *
 * @internal
 */
export const validate = (
  options: InsertOptions<string>,
  fields: ReadonlySet<string> | null = null
): Either.Either<CheckedOptions, Refusal> => {
  const { delay, maxAttempts = 25, metadata, orderingKey, priority = 2, queue = "default", runAt, tags = [] } = options
  const wrongQueue = nameRefusal("queue", queue)
  if (wrongQueue !== undefined) return Either.left(wrongQueue)
  if (!isIntegerBetween(priority, 1, 4)) return refuse("priority", "must be 1 (most urgent), 2, 3 or 4")
  if (!isIntegerBetween(maxAttempts, 1, 1000)) return refuse("maxAttempts", "must be a whole number from 1 to 1000")
  const wrongTag = tagsRefusal(tags)
  if (wrongTag !== undefined) return Either.left(wrongTag)
  const wrongKey = orderingKey === undefined ? undefined : nameRefusal("orderingKey", orderingKey)
  if (wrongKey !== undefined) return Either.left(wrongKey)
  if (runAt !== undefined && delay !== undefined) return refuse("delay", "cannot be combined with runAt")
  return Either.flatMap(
    instant(runAt),
    (runAt) =>
      Either.flatMap(
        millis(delay),
        (delayMillis) =>
          Either.flatMap(metadataText(metadata), (metadata) =>
            Either.map(checkUnique(options.unique, fields), (unique) => (
              { queue, priority, maxAttempts, runAt, delayMillis, metadata, tags: [...tags], orderingKey, unique }
            )))
      )
  )
}

const isIntegerBetween = (value: unknown, min: number, max: number): boolean =>
  typeof value === "number" && Number.isInteger(value) && value >= min && value <= max

/**
 * Why a kind, queue, tag or ordering key cannot be used, if so. Characters are code points, as PostgreSQL counts them.
 *
 * @internal
 */
export const nameRefusal = (field: string, value: unknown): Refusal | undefined => {
  if (typeof value !== "string") return { field, reason: "must be a string" }
  const tooLong = value.length > maxNameLength && [...value].length > maxNameLength
  if (value === "" || tooLong) return { field, reason: `must have 1 to ${maxNameLength} characters` }
  const reason = unstorableReason(value)
  return reason === undefined ? undefined : { field, reason }
}

const tagsRefusal = (tags: unknown): Refusal | undefined => {
  if (!Array.isArray(tags)) return { field: "tags", reason: "must be an array of strings" }
  if (tags.length > maxTags) return { field: "tags", reason: `must be at most ${maxTags}` }
  for (let i = 0; i < tags.length; i++) {
    const refusal = nameRefusal(`tags[${i}]`, tags[i])
    if (refusal !== undefined) return refusal
  }
  return undefined
}

const instant = (runAt: unknown): Either.Either<Date | undefined, Refusal> => {
  if (runAt === undefined) return Either.right(undefined)
  const time = runAt instanceof Date ? runAt.getTime() : DateTime.isDateTime(runAt) ? runAt.epochMillis : undefined
  if (time === undefined) return refuse("runAt", "must be a Date or a DateTime")
  if (!(time >= earliest && time <= latest)) return refuse("runAt", "must be a valid date of the years 1 to 9999")
  return Either.right(new Date(time))
}

/** Effect takes a duration below zero for none. */
const isNegative = (input: unknown): boolean =>
  typeof input === "string"
    ? input.startsWith("-")
    : Array.isArray(input)
    ? input.some(isNegative)
    : typeof input === "number" || typeof input === "bigint"
    ? input < 0
    : false

const millis = (delay: unknown): Either.Either<number | undefined, Refusal> => {
  if (delay === undefined) return Either.right(undefined)
  const duration = Duration.decodeUnknown(delay)
  if (duration._tag === "None" || Number.isNaN(delay) || (Array.isArray(delay) && delay.some(Number.isNaN))) {
    return refuse("delay", "must be a duration, such as \"5 minutes\"")
  }
  if (isNegative(delay)) return refuse("delay", "must not be negative")
  if (Duration.greaterThan(duration.value, maxDelay)) return refuse("delay", "must be at most 100 years")
  return Either.right(Duration.toMillis(duration.value))
}

const metadataText = (metadata: unknown): Either.Either<string | undefined, Refusal> => {
  if (metadata === undefined) return Either.right(undefined)
  if (!isPlainObject(metadata)) return refuse("metadata", "must be a plain object")
  const text = stringify(metadata)
  if (text._tag === "Left") return refuse(formatPath("metadata", text.left.path), text.left.reason)
  const refusal = reservedKeyRefusal(text.right)
  return refusal === undefined ? Either.right(text.right) : Either.left(refusal)
}

const isPlainObject = (value: unknown): boolean => {
  if (typeof value !== "object" || value === null) return false
  const prototype = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

const reservedKeyRefusal = (text: string): Refusal | undefined => {
  if (!text.startsWith("{")) return { field: "metadata", reason: "must be a plain object" }
  if (!text.includes("awa:") && !text.includes("_awa_")) return undefined
  const metadata: Record<string, unknown> = JSON.parse(text)
  for (const [key, value] of Object.entries(metadata)) {
    const field = formatPath("metadata", [key])
    if (key === traceparentKey) {
      if (typeof value !== "string") return { field, reason: "must be a string: a W3C traceparent" }
    } else if (key.startsWith("awa:") || key.startsWith("_awa_")) {
      return { field, reason: "keys that begin with awa: or _awa_ are reserved" }
    }
  }
  return undefined
}

// Misspelt options

const names = [
  "queue",
  "priority",
  "maxAttempts",
  "runAt",
  "delay",
  "metadata",
  "tags",
  "orderingKey",
  "unique"
] as const satisfies ReadonlyArray<
  keyof InsertOptions
>
const known: ReadonlySet<string> = new Set(names)

/**
 * Refuses an option that does not exist and names the one that was probably meant.
 *
 * @internal
 */
export const unknownOptionRefusal = (options: object): Refusal | undefined => {
  for (const key of Object.keys(options)) {
    if (!known.has(key)) {
      const nearest = nearestName(key)
      const advice = nearest === undefined ? `known options are ${names.join(", ")}` : `did you mean ${nearest}?`
      return { field: key, reason: `no such option; ${advice}` }
    }
  }
  return undefined
}

const nearestName = (key: string): string | undefined => {
  const spelt = key.toLowerCase().replace(/[^a-z]/g, "")
  const ranked = names.map((name) => [name, editDistance(spelt, name.toLowerCase())] as const)
  const [name, distance] = ranked.reduce((best, next) => next[1] < best[1] ? next : best)
  return distance <= Math.max(1, name.length / 3) ? name : undefined
}

const editDistance = (a: string, b: string): number => {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)))
    }
    row = next
  }
  return row[b.length]!
}

// JSON

/**
 * Whether a job with these options carries nothing but its payload and is to run at once.
 *
 * @internal
 */
export const isPlain = ({ delayMillis, metadata, orderingKey, runAt, tags, unique }: CheckedOptions): boolean =>
  runAt === undefined && delayMillis === undefined && metadata === undefined && tags.length === 0 &&
  orderingKey === undefined && unique === undefined

/**
 * The members of a job's JSON object that hold its options, each after a comma. What is default is left out.
 *
 * @internal
 */
export const toJson = (options: CheckedOptions, traceparent: string | null): string => {
  let text = ""
  if (options.queue !== "default") text += `,"queue":${JSON.stringify(options.queue)}`
  if (options.priority !== 2) text += `,"priority":${options.priority}`
  if (options.maxAttempts !== 25) text += `,"max_attempts":${options.maxAttempts}`
  if (options.runAt !== undefined) text += `,"run_at":"${options.runAt.toISOString()}"`
  if (options.delayMillis !== undefined) text += `,"delay_ms":${options.delayMillis}`
  if (options.tags.length > 0) text += `,"tags":${JSON.stringify(options.tags)}`
  if (options.orderingKey !== undefined) text += `,"ordering_key":${JSON.stringify(options.orderingKey)}`
  const metadata = withTraceparent(options.metadata, traceparent)
  return metadata === undefined ? text : `${text},"metadata":${metadata}`
}

/**
 * The metadata that is stored: a traceparent the caller gave wins.
 *
 * @internal
 */
export const withTraceparent = (metadata: string | undefined, traceparent: string | null): string | undefined => {
  if (traceparent === null) return metadata
  if (metadata === undefined || metadata === "{}") return `{"${traceparentKey}":"${traceparent}"}`
  if (metadata.includes(`"${traceparentKey}"`) && traceparentKey in JSON.parse(metadata)) return metadata
  return `{"${traceparentKey}":"${traceparent}",${metadata.slice(1)}`
}
