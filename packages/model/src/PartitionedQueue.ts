/**
 * One logical queue over several physical ones: jobs of one key go to one of them, so that each can be worked, paused and
 * limited on its own. Only names are made here, nothing is stored.
 *
 * To spread one queue over several lanes of the database without more names, give it shards instead.
 *
 * @example
 * ```ts
 * import { Job, PartitionedQueue } from "@awa/model"
 * import { Schema } from "effect"
 *
 * const Sync = Job.make("sync", { payload: { customer: Schema.String } })
 * const syncs = PartitionedQueue.unsafeMake("sync", 4) // sync, sync__p1, sync__p2, sync__p3
 *
 * const enqueue = (customer: string) => Sync.enqueue({ customer }, PartitionedQueue.routeByKey(syncs, customer))
 * ```
 *
 * @since 0.1.0
 */
import * as Either from "effect/Either"
import { InvalidPartitionedQueue } from "./Errors.js"
import type { InsertOptions } from "./InsertOptions.js"
import { nameRefusal } from "./internal/insertOptions.js"
import { partitionHash } from "./internal/orderingKey.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface PartitionedQueue {
  /** The physical queues, at least one. A key's partition is a place in this list. */
  readonly queues: readonly [string, ...ReadonlyArray<string>]
}

const maxPartitions = 32_767

/**
 * The queues `name`, `name__p1`, `name__p2`, …: the first keeps the logical name, so that what is enqueued to it goes on
 * being worked when a queue becomes partitioned. 1 to 32,767 partitions; every name has 1 to 200 characters.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (name: string, partitions: number): Either.Either<PartitionedQueue, InvalidPartitionedQueue> => {
  const refusal = nameRefusal("name", name)
  if (refusal !== undefined) return refuse("name", name, refusal.reason)
  const wrong = countProblem(partitions)
  if (wrong !== undefined) return refuse("partitions", partitions, wrong)
  const last = nameRefusal("name", physicalName(name, partitions - 1))
  return last === undefined
    ? fromQueues(Array.from({ length: partitions }, (_, partition) => physicalName(name, partition)))
    : refuse("name", name, `too long for a suffix: ${JSON.stringify(physicalName("", partitions - 1))}`)
}

/**
 * Queues with names of your own, all different. Their order is part of where a key goes.
 *
 * @since 0.1.0
 * @category constructors
 */
export const fromQueues = (
  queues: ReadonlyArray<string>
): Either.Either<PartitionedQueue, InvalidPartitionedQueue> => {
  const wrong = countProblem(queues.length)
  if (wrong !== undefined) return refuse("queues", queues.length, wrong)
  const seen = new Map<string, number>()
  for (const [i, name] of queues.entries()) {
    const field = `queues[${i}]`
    const refusal = nameRefusal(field, name)
    if (refusal !== undefined) return refuse(field, name, refusal.reason)
    const other = seen.get(name)
    if (other !== undefined) return refuse(field, name, `is queues[${other}] already`)
    seen.set(name, i)
  }
  const [first, ...others] = queues
  return first === undefined
    ? refuse("queues", 0, "must be at least one")
    : Either.right({ queues: [first, ...others] })
}

/**
 * `make` for constants of the program: throws the `InvalidPartitionedQueue`.
 *
 * @since 0.1.0
 * @category constructors
 */
export const unsafeMake = (name: string, partitions: number): PartitionedQueue =>
  Either.getOrThrowWith(make(name, partitions), (error) => error)

const physicalName = (name: string, partition: number): string => partition === 0 ? name : `${name}__p${partition}`

const countProblem = (count: number): string | undefined =>
  Number.isInteger(count) && count >= 1 && count <= maxPartitions
    ? undefined
    : `must be a whole number from 1 to ${maxPartitions} of queues`

const refuse = (field: string, value: unknown, reason: string): Either.Either<never, InvalidPartitionedQueue> =>
  Either.left(new InvalidPartitionedQueue({ field, value, reason }))

/**
 * The queue of a key, always the same one: a hash of the key's UTF-8 bytes decides.
 *
 * @since 0.1.0
 * @category routing
 */
export const queueForKey = ({ queues }: PartitionedQueue, key: string): string =>
  queues[Number(partitionHash(key) % BigInt(queues.length))]!

/**
 * The queue of a number, counted round: for a caller that deals its jobs out in turn.
 *
 * @since 0.1.0
 * @category routing
 */
export const queueForIndex = ({ queues }: PartitionedQueue, index: number | bigint): string => {
  const count = BigInt(queues.length)
  const place = BigInt(typeof index === "bigint" ? index : Math.trunc(index)) % count
  return queues[Number((place + count) % count)]!
}

/**
 * The options of a job that belongs to a key: its queue, and the key as ordering key. They go over `options`.
 *
 * @since 0.1.0
 * @category routing
 */
export const routeByKey = (self: PartitionedQueue, key: string, options: InsertOptions = {}): InsertOptions => ({
  ...options,
  queue: queueForKey(self, key),
  orderingKey: key
})

/**
 * The options of a job that is dealt out: its queue. They go over `options`.
 *
 * @since 0.1.0
 * @category routing
 */
export const routeByIndex = (
  self: PartitionedQueue,
  index: number | bigint,
  options: InsertOptions = {}
): InsertOptions => ({ ...options, queue: queueForIndex(self, index) })
