/**
 * The `unique` of insert options: its check, and what a job's JSON says of it.
 */
import * as Duration from "effect/Duration"
import * as Either from "effect/Either"
import type { UniqueOptions } from "../../InsertOptions.js"
import { JobState } from "../../JobState.js"
import type { Refusal } from "../insertOptions.js"
import { keyOf } from "./key.js"
import * as states from "./states.js"

/** @internal */
export interface CheckedUnique {
  readonly byQueue: boolean
  /** The names of fields for a part of the payload. */
  readonly byPayload: boolean | ReadonlyArray<string>
  readonly periodMillis: number | undefined
  readonly bucket: bigint | undefined
  readonly mask: string
}

const refuse = (field: string, reason: string): Either.Either<never, Refusal> =>
  Either.left({ field: `unique${field}`, reason })

/**
 * `fields` are those of the payload, `null` when they are not known.
 *
 * @internal
 */
export const check = (
  unique: UniqueOptions | boolean | undefined,
  fields: ReadonlySet<string> | null
): Either.Either<CheckedUnique | undefined, Refusal> => {
  if (unique === undefined || unique === false) return Either.right(undefined)
  if (unique === true) return check({}, fields)
  if (typeof unique !== "object" || unique === null || Array.isArray(unique)) {
    return refuse("", "must be true, false or an object of options")
  }
  const { bucket, byPayload = true, byQueue = false, period } = unique
  for (const name of Object.keys(unique)) {
    if (!names.has(name)) return refuse(`.${name}`, `no such option; known options are ${[...names].join(", ")}`)
  }
  if (typeof byQueue !== "boolean") return refuse(".byQueue", "must be true or false")
  const wrongFields = fieldsRefusal(byPayload, fields)
  if (wrongFields !== undefined) return Either.left(wrongFields)
  if (period !== undefined && bucket !== undefined) return refuse(".bucket", "cannot be combined with period")
  if (bucket !== undefined && (typeof bucket !== "bigint" || BigInt.asIntN(64, bucket) !== bucket)) {
    return refuse(".bucket", "must be a bigint of 64 bits")
  }
  return Either.flatMap(
    millis(period),
    (periodMillis) => Either.map(maskOf(unique.states), (mask) => ({ byQueue, byPayload, periodMillis, bucket, mask }))
  )
}

const names: ReadonlySet<string> = new Set<keyof UniqueOptions>([
  "byQueue",
  "byPayload",
  "period",
  "bucket",
  "states"
])

const fieldsRefusal = (byPayload: unknown, fields: ReadonlySet<string> | null): Refusal | undefined => {
  if (typeof byPayload === "boolean") return undefined
  const field = "unique.byPayload"
  if (!Array.isArray(byPayload)) return { field, reason: "must be true, false or an array of the payload's fields" }
  if (byPayload.length === 0) return { field, reason: "must name a field, or be false" }
  const wrong = byPayload.findIndex((name) => typeof name !== "string")
  if (wrong !== -1) return { field: `${field}[${wrong}]`, reason: "must be the name of a field" }
  const unknown = byPayload.findIndex((name) => fields !== null && !fields.has(name))
  return unknown === -1 ? undefined : { field: `${field}[${unknown}]`, reason: "is no field of the payload" }
}

const millis = (period: unknown): Either.Either<number | undefined, Refusal> => {
  if (period === undefined) return Either.right(undefined)
  const duration = Duration.decodeUnknown(period)
  const millis = duration._tag === "None" ? Number.NaN : Duration.toMillis(duration.value)
  return Number.isInteger(millis) && millis > 0
    ? Either.right(millis)
    : refuse(".period", "must be a duration of whole milliseconds, such as \"1 day\"")
}

const maskOf = (given: unknown): Either.Either<string, Refusal> => {
  if (given === undefined) return Either.right(states.mask(states.live))
  if (!Array.isArray(given)) return refuse(".states", "must be an array of states")
  const wrong = given.findIndex((state) => !isState(state))
  if (wrong !== -1) return refuse(`.states[${wrong}]`, `must be one of ${JobState.literals.join(", ")}`)
  if (given.length === 0) return refuse(".states", "must name a state")
  const back = states.reentry(given)
  if (back !== undefined) {
    return refuse(
      ".states",
      `leaves ${back.from} out, from where a job goes on to ${back.to}, when another may have its key: ` +
        `name all of ${states.live.join(", ")}`
    )
  }
  return Either.right(states.mask(given))
}

const isState = (value: unknown): value is JobState => (JobState.literals as ReadonlyArray<unknown>).includes(value)

/**
 * Why the payload has no key, if so.
 *
 * @internal
 */
export const payloadRefusal = ({ byPayload }: CheckedUnique, args: unknown): Refusal | undefined => {
  if (typeof byPayload === "boolean") return undefined
  const field = "unique.byPayload"
  if (!isRecord(args)) return { field, reason: "names fields, and the payload is no object" }
  return byPayload.some((name) => Object.hasOwn(args, name))
    ? undefined
    : { field, reason: "the payload has none of these fields" }
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value)

/**
 * The key of a job and the object that is stored with it.
 *
 * @internal
 */
export interface Unique {
  readonly key: string
  /** JSON text. */
  readonly json: string
}

/**
 * `millis` is the clock of a job with a period, noted with its bucket.
 *
 * @internal
 */
export const uniqueOf = (
  { bucket, byPayload, byQueue, mask, periodMillis }: CheckedUnique,
  { args, kind, queue }: { readonly kind: string; readonly queue: string; readonly args: unknown },
  millis: number
): Unique => {
  const period = periodMillis === undefined ? bucket : BigInt(Math.floor(millis / periodMillis))
  const key = keyOf({
    kind,
    queue: byQueue ? queue : undefined,
    args: byPayload === false ? undefined : byPayload === true ? args : pick(args, byPayload),
    bucket: period
  })
  let json = `{"key":"${key}","states":"${mask}"`
  if (period !== undefined) json += `,"bucket":"${period}"`
  if (periodMillis !== undefined) json += `,"period_ms":${periodMillis},"at":"${new Date(millis).toISOString()}"`
  return { key, json: `${json}}` }
}

const pick = (args: unknown, names: ReadonlyArray<string>): unknown =>
  isRecord(args) ? Object.fromEntries(Object.entries(args).filter(([name]) => names.includes(name))) : args
