/**
 * One text for one JSON value, byte for byte what serde_json writes of its own values: no white space, members sorted by
 * the UTF-8 bytes of their keys, numbers in their shortest form.
 */

/**
 * Of what `JSON.parse` answers. Strings hold no lone surrogates.
 *
 * @internal
 */
export const stringify = (value: unknown): string => {
  if (typeof value === "number") return number(value)
  if (typeof value !== "object" || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(stringify).join(",")}]`
  const members = Object.entries(value).sort(([a], [b]) => compare(a, b))
  return `{${members.map(([key, member]) => `${JSON.stringify(key)}:${stringify(member)}`).join(",")}}`
}

/** UTF-8 orders strings by code points, JavaScript by UTF-16 units: they differ where there are surrogates. */
const compare = (a: string, b: string): number =>
  surrogates.test(a) || surrogates.test(b) ? Buffer.compare(Buffer.from(a), Buffer.from(b)) : a < b ? -1 : 1

const surrogates = /[\ud800-\udfff]/

const smallest = -(2n ** 63n)
const largest = 2n ** 64n - 1n

/**
 * A number that JSON writes as an integer of 64 bits stays one. All others are floats, written without an exponent from
 * 0.00001 up to sixteen digits.
 */
const number = (value: number): string => {
  const text = JSON.stringify(value)
  if (/^-?\d+$/.test(text) && BigInt(text) >= smallest && BigInt(text) <= largest) return text
  return value < 0 ? `-${float(-value)}` : float(value)
}

const float = (value: number): string => {
  // The shortest digits that name this number, and where the point is among them.
  const [digits = "", exponent = ""] = value.toExponential().replace(".", "").split("e")
  const point = Number(exponent) + 1
  if (point > 16 || point <= -5) {
    return `${digits[0]}${digits.length > 1 ? `.${digits.slice(1)}` : ""}e${point - 1}`
  }
  return point <= 0 ? `0.${"0".repeat(-point)}${digits}` : `${digits.slice(0, point)}.${digits.slice(point)}`
}
