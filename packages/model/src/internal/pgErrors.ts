/**
 * What a failure below the SQL client means. node-postgres fails with a server's error (a severity and a five-letter
 * SQLSTATE), with an error of Node's sockets (a code such as ECONNREFUSED), or with a bare message of its own.
 */
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"

/** @internal */
export type ConnectionReason = "refused" | "authentication" | "database-missing" | "timeout" | "other"

const property = (error: unknown, key: string): string | undefined =>
  Predicate.hasProperty(error, key) && typeof error[key] === "string" ? error[key] : undefined

/**
 * The SQLSTATE, if it was the server that failed. The severity tells, not the shape of the code: EPIPE has five letters
 * too.
 *
 * @internal
 */
export const sqlState = (cause: unknown): Option.Option<string> =>
  property(cause, "severity") === undefined ? Option.none() : Option.fromNullable(property(cause, "code"))

/**
 * The failure in a few words. Of several addresses tried in vain, Node reports an error without a message.
 *
 * @internal
 */
export const describe = (cause: unknown): string => {
  const message = property(cause, "message") || property(cause, "code") || "unknown cause"
  const hint = property(cause, "hint")
  // PostgreSQL's own hints are for who writes the statement.
  return hint !== undefined && property(cause, "code")?.startsWith("AW") === true ? `${message}. ${hint}` : message
}

const reasons: ReadonlyMap<string, ConnectionReason> = new Map<string, ConnectionReason>([
  ["ECONNREFUSED", "refused"],
  ["ENOENT", "refused"], // no socket file
  ["57P03", "refused"], // starting up or shutting down
  ["53300", "refused"], // too many connections
  ["28P01", "authentication"],
  ["28000", "authentication"],
  ["42501", "authentication"], // no CONNECT privilege
  ["3D000", "database-missing"],
  ["ETIMEDOUT", "timeout"],
  ["ENOTFOUND", "other"],
  ["EAI_AGAIN", "other"],
  ["EHOSTUNREACH", "other"],
  ["ENETUNREACH", "other"]
])

/** The words of node-postgres: a full pool, a slow server, a password that was not given. */
const phrases: ReadonlyArray<readonly [RegExp, ConnectionReason]> = [
  [
    /^(timeout expired|timeout exceeded when trying to connect|connection terminated due to connection timeout)/i,
    "timeout"
  ],
  [/^SASL: /, "authentication"]
]

/**
 * Why no connection came about; `None` when the failure came later, from a statement.
 *
 * @internal
 */
export const connectionReason = (cause: unknown): Option.Option<ConnectionReason> => {
  const code = property(cause, "code")
  const known = code === undefined ? undefined : reasons.get(code)
  if (known !== undefined) return Option.some(known)
  const message = describe(cause)
  return Option.fromNullable(phrases.find(([pattern]) => pattern.test(message))?.[1])
}

/** Serialization failure, deadlock, lock not available, server going down, session ended by a time limit. */
const transient = new Set([
  "AW001", // too many transactions between snapshot and claim
  "40001",
  "40P01",
  "55P03",
  "57P01",
  "57P02",
  "57P03",
  "57P05",
  "25P03",
  "53300"
])

/**
 * Whether the same statement may succeed when it is sent again. Without a SQLSTATE the connection failed, not the
 * statement.
 *
 * @internal
 */
export const isTransientState = (state: string | null): boolean =>
  state === null || transient.has(state) || state.startsWith("08")
