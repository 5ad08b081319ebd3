/**
 * What the benchmarks ask of a job queue: one value of `System` for each, in `systems/`.
 */
import type { Effect, Scope } from "effect"

/** One job. As JSON about 200 bytes, the same for all systems. */
export interface Payload {
  readonly id: number
  readonly to: string
  readonly subject: string
  readonly body: string
  /** `monotonicMillis` at the start of the enqueue call where latency is measured, otherwise 0. */
  readonly sentAt: number
}

export const payload = (id: number, sentAt: number): Payload => ({
  id,
  to: `customer.${String(id).padStart(7, "0")}@example.com`,
  subject: "Your order has left our warehouse",
  body: "Thank you for your order. The parcel will arrive within three working days.",
  sentAt
})

export interface Producer {
  /** Enqueues all jobs in one statement. */
  readonly many: (payloads: ReadonlyArray<Payload>) => Effect.Effect<void>
  /** Enqueues one job in a transaction of its own. */
  readonly one: (payload: Payload) => Effect.Effect<void>
}

/** The settings of a worker that a sweep varies; every system documents its own. */
export type Settings = Readonly<Record<string, number | boolean>>

export interface Worker {
  /** Starts a worker that calls `handle` for each job and does nothing else. It runs until the scope closes. */
  readonly start: (options: {
    readonly url: string
    readonly settings: Settings
    readonly handle: (payload: Payload) => void
  }) => Effect.Effect<void, never, Scope.Scope>
  /** For jobs that wait in a long queue. */
  readonly throughput: Settings
  /** For jobs that arrive one by one. */
  readonly latency: Settings
  /** For one of many processes that works one job at a time. */
  readonly alone?: Settings
  /** Tells the statements that fetch work from all others. */
  readonly claims?: RegExp
  /** A query of one boolean column `settled`: no job waits or runs, everything handled is durably so. */
  readonly settled: string
  /** A query of one column `finished`, the number of finished jobs kept; `null` if the system deletes them. */
  readonly finished: string | null
}

export interface System {
  readonly name: string
  /** What a reader must know to judge the figures. */
  readonly remarks: ReadonlyArray<string>
  /** Creates what the system needs in an empty database. */
  readonly install: (options: { readonly url: string; readonly settings: Settings }) => Effect.Effect<void>
  readonly producer: (options: {
    readonly url: string
    readonly connections: number
  }) => Effect.Effect<Producer, never, Scope.Scope>
  /** `null` for a baseline that only inserts. */
  readonly worker: Worker | null
}
