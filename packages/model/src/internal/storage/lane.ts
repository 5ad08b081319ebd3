/** @internal The name of a lane: `lane_id` of migrations/0010, worked out where a producer calls it. */
import { createHash } from "node:crypto"

const known = new Map<string, string>()

/** Beyond these nothing is remembered: an application with so many queues has other costs. */
const remembered = 10_000

/** @internal A 63-bit number in decimal. */
export const laneId = (queue: string, priority: number, shard = 0): string => {
  const name = `${priority}:${shard}:${queue}`
  let id = known.get(name)
  if (id === undefined) {
    id = String(createHash("md5").update(name).digest().readBigUInt64BE(0) & 0x7fffffffffffffffn)
    if (known.size < remembered) known.set(name, id)
  }
  return id
}
