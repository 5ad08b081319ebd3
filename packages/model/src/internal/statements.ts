/**
 * The hot statements of this process, by text. Their texts are constant, so a client that names them lets PostgreSQL
 * parse and plan each once a connection (`Database.layer` does).
 */
import { createHash } from "node:crypto"

const names = new Map<string, string>()

/**
 * Registers a constant text and returns it. The name follows from the text: it is the same in every process, as poolers
 * that track prepared statements like it.
 *
 * @internal
 */
export const registerStatement = (text: string): string => {
  names.set(text, `awa_${createHash("sha256").update(text).digest("hex").slice(0, 16)}`)
  return text
}

/** @internal */
export const statementName = (text: string): string | undefined => names.get(text)
