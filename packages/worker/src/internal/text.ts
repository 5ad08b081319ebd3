/** Text that goes into the database from places nobody validated: error messages, reasons, progress. */

/** The longest error text that is stored, in UTF-16 code units. */
const maxErrorLength = 8192

const ellipsis = "… (cut)"

/** Under the `u` flag a surrogate is matched only where it stands alone. */
const loneSurrogates = /\p{Surrogate}/gu

/** PostgreSQL takes neither NUL nor half a surrogate pair. */
export const storable = (text: string): string => text.replaceAll("\0", "").replace(loneSurrogates, "\uFFFD")

export const bounded = (text: string): string => {
  const clean = storable(text)
  return clean.length <= maxErrorLength
    ? clean
    : storable(clean.slice(0, maxErrorLength - ellipsis.length)) + ellipsis
}

/** `JSON.stringify` writes NUL and lone surrogates as escapes, which jsonb refuses. The other escapes stay. */
const escapes = /\\(?:u([0-9a-f]{4})|.)/g

const isUnstorable = (code: string): boolean => code === "0000" || /^d[89a-f]/.test(code)

/** A copy of a JSON value that the database can store. Throws what `JSON.stringify` throws. */
export const storableJson = (value: unknown): unknown => {
  const json = JSON.stringify(value)
  return json === undefined
    ? null
    : JSON.parse(
      json.replace(
        escapes,
        (escape: string, code: string | undefined) => code !== undefined && isUnstorable(code) ? "\uFFFD" : escape
      )
    )
}
