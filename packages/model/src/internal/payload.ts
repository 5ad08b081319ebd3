/**
 * From a value to the JSON text that is stored, or to the reason why not.
 *
 * What comes back from the database is deep-equal to `JSON.parse(JSON.stringify(value))`. So `undefined` members and
 * functions are left out, `NaN` and the infinities become null and `-0` becomes 0, as ever in JSON. Refused is what
 * JSON cannot say at all (a bigint, a cycle, a top-level `undefined`), and what PostgreSQL's jsonb or a worker's memory
 * cannot hold (NUL, half of a surrogate pair, deep nesting, too many bytes).
 */
import * as Either from "effect/Either"

/** Bytes of one JSON document: payload or metadata. */
const maxBytes = 16 * 1024 * 1024
const maxDepth = 1000

/** @internal */
export interface Problem {
  readonly path: ReadonlyArray<PropertyKey>
  readonly reason: string
}

const problem = (path: ReadonlyArray<PropertyKey>, reason: string): Either.Either<never, Problem> =>
  Either.left({ path, reason })

/**
 * The JSON text of a value.
 *
 * @internal
 */
export const stringify = (value: unknown): Either.Either<string, Problem> => {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    return explain(value, error)
  }
  return text === undefined ? problem([], `has no JSON form (${typeof value})`) : check(text)
}

const check = (text: string): Either.Either<string, Problem> => {
  if (isTooLarge(text)) return tooLarge
  if (mayBeDeep(text) && depthOf(text) > maxDepth) return tooDeep
  if (escapes.test(text)) {
    const found = findUnstorable(JSON.parse(text))
    if (found !== undefined) return Either.left(found)
  }
  return Either.right(text)
}

// Strings

/** How NUL and lone surrogates look in JSON text. A string that contains a backslash may look the same. */
const escapes = /\\u(0000|d[89a-f])/

const unstorable = /[\0\p{Surrogate}]/u

/**
 * Why PostgreSQL cannot store a string, if it cannot.
 *
 * @internal
 */
export const unstorableReason = (text: string): string | undefined => {
  const found = unstorable.exec(text)?.[0]
  if (found === undefined) return undefined
  const what = found === "\0" ? "NUL (\\u0000)" : `half of a surrogate pair (\\u${found.charCodeAt(0).toString(16)})`
  return `contains ${what}, which PostgreSQL cannot store`
}

const findUnstorable = (value: unknown): Problem | undefined => {
  if (typeof value === "string") {
    const reason = unstorableReason(value)
    return reason === undefined ? undefined : { path: [], reason }
  }
  if (typeof value !== "object" || value === null) return undefined
  for (const [key, member] of Object.entries(value)) {
    const reason = unstorableReason(key)
    const found = reason === undefined ? findUnstorable(member) : { path: [], reason: `the key ${reason}` }
    if (found !== undefined) return { ...found, path: [key, ...found.path] }
  }
  return undefined
}

// Size

const tooLarge = problem(
  [],
  `is larger than ${maxBytes / 1024 / 1024} MiB of JSON: store it elsewhere and enqueue a reference`
)

/**
 * PostgreSQL gives a number back without an exponent: `1e308` comes back with 309 digits. Up to 1/64 of the limit even
 * the worst text stays below it.
 */
const isTooLarge = (text: string): boolean =>
  text.length > maxBytes
  || (text.length > maxBytes / 64 && Buffer.byteLength(text) + lengthOfExponents(text) > maxBytes)

const lengthOfExponents = (text: string): number => {
  let length = 0
  if (/\de[+-]/.test(text)) {
    for (const [, exponent] of text.matchAll(/"(?:[^"\\]|\\.)*"|\de[+-](\d+)/g)) length += Number(exponent ?? 0)
  }
  return length
}

// Depth

const tooDeep = problem([], `is nested deeper than ${maxDepth} levels`)

const count = (text: string, character: string, limit: number): number => {
  let found = 0
  for (let at = text.indexOf(character); at !== -1 && found <= limit; at = text.indexOf(character, at + 1)) found++
  return found
}

const mayBeDeep = (text: string): boolean =>
  text.length > 2 * maxDepth && count(text, "{", maxDepth) + count(text, "[", maxDepth) > maxDepth

const depthOf = (text: string): number => {
  let depth = 0
  let deepest = 0
  let inString = false
  for (let i = 0; i < text.length; i++) {
    const character = text[i]
    if (inString) {
      if (character === "\\") i++
      else if (character === "\"") inString = false
    } else if (character === "\"") inString = true
    else if (character === "{" || character === "[") deepest = Math.max(deepest, ++depth)
    else if (character === "}" || character === "]") depth--
  }
  return deepest
}

// What JSON.stringify throws at

const explain = (value: unknown, error: unknown): Either.Either<never, Problem> => {
  const message = error instanceof Error ? error.message : String(error)
  if (/^invalid string length/i.test(message)) return tooLarge
  if (/^maximum call stack/i.test(message)) return tooDeep
  const { path, value: culprit } = lastVisited(value)
  if (typeof culprit === "bigint") return problem(path, "JSON has no bigint: encode it as a string")
  if (/circular/i.test(message)) return problem(path, "refers back to an object it is part of")
  return problem([], `cannot be turned into JSON: ${message}`)
}

/** Where JSON.stringify was when it gave up. */
const lastVisited = (root: unknown): { readonly path: ReadonlyArray<string>; readonly value: unknown } => {
  const trail: Array<{ readonly key: string; readonly value: unknown }> = []
  try {
    JSON.stringify(root, function(this: unknown, key: string, value: unknown) {
      while (trail.length > 0 && trail[trail.length - 1]!.value !== this) trail.pop()
      trail.push({ key, value })
      return value
    })
  } catch {
    // This is the failure to be explained.
  }
  return { path: trail.slice(1).map(({ key }) => key), value: trail.at(-1)?.value }
}

/**
 * `payload.items[2].name`, `metadata["a b"]`.
 *
 * @internal
 */
export const formatPath = (root: string, path: ReadonlyArray<PropertyKey>): string =>
  path.reduce<string>((text, key) =>
    /^\d+$/.test(String(key))
      ? `${text}[${String(key)}]`
      : /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(String(key))
      ? `${text}.${String(key)}`
      : `${text}[${JSON.stringify(String(key))}]`, root)
