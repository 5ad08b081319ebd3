/** @internal What a producer works out itself: `lane_id` and `lock_key` of migrations/0010. */
import { createHash } from "node:crypto"
import { lockKey } from "../lockKey.js"

/** @internal */
export interface Lane {
  /** A 63-bit number in decimal. */
  readonly id: string
  readonly queueKey: number
}

const known = new Map<string, Lane>()

/** Beyond these nothing is remembered: an application with so many queues has other costs. */
const remembered = 10_000

/** @internal The lane of a queue with one shard. */
export const laneOf = (queue: string, priority: number): Lane => {
  const name = `${priority}:0:${queue}`
  let lane = known.get(name)
  if (lane === undefined) {
    const hash = createHash("md5").update(name).digest().readBigUInt64BE(0)
    lane = { id: String(hash & 0x7fffffffffffffffn), queueKey: lockKey(queue) }
    if (known.size < remembered) known.set(name, lane)
  }
  return lane
}
