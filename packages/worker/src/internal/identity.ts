import { randomFillSync, randomUUID } from "node:crypto"

// Not `Random`: its default generator starts from 32 bits, and fencing relies on no two processes ever drawing alike.

/** Names this worker in the database. */
export const newInstanceId = (): string => randomUUID()

// Drawn many at a time: a call takes as long as half a kilobyte.
const bits = new BigUint64Array(64)

let used = bits.length

/** 63 random bits as a decimal number: what PostgreSQL's bigint holds. */
export const newNonce = (): string => {
  if (used === bits.length) {
    randomFillSync(bits)
    used = 0
  }
  return (bits[used++]! >> 1n).toString()
}
