/** @internal One pass over the slots of queue storage: the steps of migrations/0021, in their order. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { Reclaimed, Retention, StorageError } from "../../StorageEngine.js"

/** The functions of the storage, each a transaction of its own. */
export interface Steps {
  readonly rotate: (intervalMillis: number) => Effect.Effect<boolean, StorageError>
  readonly publishSlot: Effect.Effect<unknown, StorageError>
  readonly rotateLeases: (intervalMillis: number) => Effect.Effect<boolean, StorageError>
  readonly sealedSlots: Effect.Effect<ReadonlyArray<number>, StorageError>
  readonly countSlot: (slot: number) => Effect.Effect<boolean, StorageError>
  readonly evict: (slot: number, ageMillis: number, limit: number) => Effect.Effect<number, StorageError>
  readonly drainSlot: (
    slot: number,
    parkMillis: number,
    limit: number
  ) => Effect.Effect<{ readonly lanes: number; readonly drained: boolean }, StorageError>
  readonly keepHistory: (slot: number, retentionMillis: number, limit: number) => Effect.Effect<number, StorageError>
  readonly freeSlot: (
    slot: number,
    retentionMillis: number,
    settleMillis: number
  ) => Effect.Effect<"freed" | "undrained" | "open" | "kept" | "history" | "busy", StorageError>
}

export interface Options {
  readonly rotateInterval: Duration.Duration
  readonly leaseRotateInterval: Duration.Duration
  readonly retention: Retention
  /** How many slots the ring has. */
  readonly slots: number
}

const attemptsAtOnce = 500

const lanesAtOnce = 100

const jobsAtOnce = 1000

/** How long the snapshots of readers may be older than what was carried out of a slot. */
const settleMillis = 60_000

/**
 * The ring must hold the history of the retention. Three slots do not: the open one, the one that is being emptied, and
 * the one that is kept because its newest job is not old enough.
 *
 * @internal
 */
const effectiveInterval = ({ retention, rotateInterval, slots }: Options): number =>
  Math.ceil(Math.max(
    Duration.toMillis(rotateInterval),
    Duration.toMillis(retention.completed) / Math.max(1, slots - 3)
  ))

/** Repeats a step in chunks until one is not full. */
const chunked = (limit: number, step: Effect.Effect<number, StorageError>): Effect.Effect<number, StorageError> =>
  Effect.iterate({ total: 0, more: true }, {
    while: ({ more }) => more,
    body: ({ total }) => Effect.map(step, (count) => ({ total: total + count, more: count === limit }))
  }).pipe(Effect.map(({ total }) => total))

/** @internal */
export const reclaim = (steps: Steps, options: Options): Effect.Effect<Reclaimed, StorageError> => {
  const interval = effectiveInterval(options)
  const retention = Math.ceil(Duration.toMillis(options.retention.completed))

  /** Lane by lane, as long as some of them can be gone on with. */
  const drained = (slot: number): Effect.Effect<boolean, StorageError> =>
    Effect.iterate({ lanes: 1, drained: false }, {
      while: ({ drained, lanes }) => !drained && lanes > 0,
      body: () => steps.drainSlot(slot, options.slots * interval, lanesAtOnce)
    }).pipe(Effect.map(({ drained }) => drained))

  const free = (slot: number) => steps.freeSlot(slot, retention, settleMillis)

  const tidy = (slot: number) =>
    Effect.gen(function*() {
      if (!(yield* steps.countSlot(slot))) return { evicted: 0, kept: 0, freed: 0 }
      const evicted = yield* chunked(attemptsAtOnce, steps.evict(slot, 2 * interval, attemptsAtOnce))
      if (!(yield* drained(slot))) return { evicted, kept: 0, freed: 0 }
      const answer = yield* free(slot)
      if (answer !== "history") return { evicted, kept: 0, freed: Number(answer === "freed") }
      const kept = yield* chunked(jobsAtOnce, steps.keepHistory(slot, retention, jobsAtOnce))
      return { evicted, kept, freed: Number((yield* free(slot)) === "freed") }
    })

  return Effect.gen(function*() {
    const rotated = yield* steps.rotate(interval)
    yield* steps.publishSlot
    yield* steps.rotateLeases(Math.ceil(Duration.toMillis(options.leaseRotateInterval)))
    const done = yield* Effect.forEach(yield* steps.sealedSlots, tidy)
    const sum = (key: "evicted" | "kept" | "freed") => done.reduce((total, slot) => total + slot[key], 0)
    return { rotated, evicted: sum("evicted"), kept: sum("kept"), freed: sum("freed") }
  })
}
