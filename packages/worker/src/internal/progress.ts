import * as Predicate from "effect/Predicate"
import { storable, storableJson } from "./text.js"

/** The shape of a job's stored progress. */
export interface Progress {
  readonly percent: number
  readonly message?: string
  readonly metadata?: Readonly<Record<string, unknown>>
}

/** A value on its way to the database. */
export interface Snapshot {
  readonly generation: number
  readonly value: Progress
}

/** The longest JSON of an attempt's progress, in bytes. */
const maxBytes = 1024 * 1024

const initial: Progress = { percent: 0 }

const isProgress = (u: unknown): u is Progress => Predicate.hasProperty(u, "percent") && Predicate.isNumber(u.percent)

const clampPercent = (percent: number): number => Number.isNaN(percent) ? 0 : Math.min(100, Math.max(0, percent))

/**
 * The progress of one attempt: what the handler said last, and how much of it is stored.
 *
 * Every change is a new generation. A slow acknowledgement of an old generation never hides a newer one.
 */
export class ProgressBuffer {
  private latest: Progress
  private generation = 0
  private stored = 0

  /** `checkpoint` is what earlier attempts left in the database. */
  constructor(checkpoint: unknown) {
    this.latest = isProgress(checkpoint) ? checkpoint : initial
  }

  set(percent: number, message: string | undefined): void {
    const { metadata } = this.latest
    this.change({
      percent: clampPercent(percent),
      ...(message === undefined ? undefined : { message: storable(message) }),
      ...(metadata === undefined ? undefined : { metadata })
    })
  }

  merge(metadata: Readonly<Record<string, unknown>>): void {
    const clean = storableJson(metadata)
    if (!Predicate.isRecord(clean)) throw new TypeError("The metadata of a job's progress must be an object")
    const known = this.latest.metadata
    this.change({ ...this.latest, metadata: Predicate.isRecord(known) ? { ...known, ...clean } : clean })
  }

  /** What is not stored yet. */
  pending(): Snapshot | undefined {
    return this.generation > this.stored ? { generation: this.generation, value: this.latest } : undefined
  }

  acknowledge(generation: number): void {
    this.stored = Math.max(this.stored, generation)
  }

  private change(progress: Progress): void {
    const bytes = Buffer.byteLength(JSON.stringify(progress))
    if (bytes > maxBytes) {
      throw new RangeError(`The progress of a job is too large: ${bytes} bytes of JSON, at most ${maxBytes} are stored`)
    }
    this.latest = progress
    this.generation += 1
  }
}
