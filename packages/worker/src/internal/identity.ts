import { randomBytes, randomUUID } from "node:crypto"

// Not `Random`: its default generator starts from 32 bits, and fencing relies on no two processes ever drawing alike.

/** Names this worker in the database. */
export const newInstanceId = (): string => randomUUID()

/** 63 random bits as a decimal number: what PostgreSQL's bigint holds. */
export const newNonce = (): string => (randomBytes(8).readBigUInt64BE() >> 1n).toString()
