import type { Effect, Scope } from "effect"
import type { ChildFailed } from "./ChildProcess.js"
import type { Report } from "./Report.js"
import type { Server } from "./Server.js"
import type { System } from "./System.js"

export interface Options {
  /** Jobs of one measurement; every benchmark has its default. */
  readonly jobs: number | undefined
  readonly rounds: number | undefined
  /** Concurrent producers of a benchmark that enqueues. */
  readonly connections: number | undefined
  /** Length of a measurement at a fixed rate. */
  readonly minutes: number | undefined
  /** The same, of what it is compared with. */
  readonly freeMinutes: number | undefined
  /** Jobs a second, where they arrive at a fixed rate. */
  readonly rate: number | undefined
  /** Worker processes, where there are many. */
  readonly processes: number | undefined
  /** Other job queues to compare with. */
  readonly peers: ReadonlyArray<string>
}

export interface Benchmark {
  readonly summary: string
  readonly systems: (peers: ReadonlyArray<string>) => ReadonlyArray<string>
  readonly run: (context: {
    readonly server: Server
    readonly options: Options
    readonly systems: ReadonlyArray<System>
  }) => Effect.Effect<Report, ChildFailed, Scope.Scope>
}
