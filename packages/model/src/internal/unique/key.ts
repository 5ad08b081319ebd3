/**
 * The key of a job: the first half of BLAKE3 over what makes it the same job. Byte-exact: other implementations of the
 * queue compute the same.
 */
import { blake3 } from "@noble/hashes/blake3"
import { stringify } from "./canonicalJson.js"

/** @internal */
export interface Parts {
  readonly kind: string
  readonly queue?: string | undefined
  /** A JSON value. */
  readonly args?: unknown
  readonly bucket?: bigint | undefined
}

/**
 * 32 hexadecimal digits. The parts are not tagged, so that kind `k` with queue `{}` has the key of kind `k` with args `{}`.
 *
 * @internal
 */
export const keyOf = ({ args, bucket, kind, queue }: Parts): string => {
  const hash = blake3.create({ dkLen: 16 }).update(Buffer.from(kind))
  if (queue !== undefined) hash.update(separator).update(Buffer.from(queue))
  if (args !== undefined) hash.update(separator).update(Buffer.from(stringify(args)))
  if (bucket !== undefined) hash.update(separator).update(littleEndian(bucket))
  return Buffer.from(hash.digest()).toString("hex")
}

const separator = new Uint8Array(1)

const littleEndian = (bucket: bigint): Uint8Array => {
  const bytes = Buffer.alloc(8)
  bytes.writeBigInt64LE(bucket)
  return bytes
}
