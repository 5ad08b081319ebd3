/** @internal The 32-bit keys of advisory locks: `lock_key` of migrations/0010. */
import { createHash } from "node:crypto"

/** @internal */
export const lockKey = (name: string): number => createHash("md5").update(name).digest().readInt32BE(0)
