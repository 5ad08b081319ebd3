/** @internal The hashes of ordering keys: which shard of a queue, which of several queues. Numbers of 64 bits. */

const encoder = new TextEncoder()

const uint64 = (n: bigint): bigint => BigInt.asUintN(64, n)

/** @internal `ordering_hash` of the migrations: of the UTF-8 bytes, multiply and add. */
export const hash = (key: string): bigint => {
  let state = 14695981039346656037n
  for (const byte of encoder.encode(key)) state = uint64(state * 1099511628211n + BigInt(byte))
  return state
}

/** @internal The same key lies in a partition and in a shard that have nothing to do with each other. */
export const partitionHash = (key: string): bigint => {
  let state = hash(key) ^ 0x9d4d1b2f53a70c91n
  state = uint64((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n)
  state = uint64((state ^ (state >> 27n)) * 0x94d049bb133111ebn)
  return state ^ (state >> 31n)
}
