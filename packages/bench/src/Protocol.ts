/**
 * What the parent asks of a child process, and how the answers come back. One measurement is one fresh child (two for
 * latency), so that no system profits or suffers from another one's heap, compiled code or connections.
 */
import type { Settings } from "./System.js"

interface Call<Input, Output> {
  readonly input: Input
  readonly output: Output
}

export interface Calls {
  readonly install: Call<{ readonly url: string; readonly settings: Settings }, void>
  readonly connect: Call<{ readonly url: string; readonly connections: number }, void>
  /** Enqueues `jobs`, `perStatement` at once, on one connection after another; answers the seconds it took. */
  readonly enqueueMany: Call<
    { readonly jobs: number; readonly perStatement: number; readonly concurrency: number },
    number
  >
  /** Enqueues `jobs`, each in its own transaction; answers the seconds it took. */
  readonly enqueueEach: Call<{ readonly jobs: number; readonly concurrency: number }, number>
  /** Enqueues at random times, waiting for nothing; answers how many. */
  readonly enqueueAtRate: Call<{ readonly rate: number; readonly seconds: number; readonly seed: number }, number>
  readonly work: Call<{ readonly url: string; readonly settings: Settings }, void>
  /** Answers when that many jobs were handled since the start. */
  readonly handled: Call<{ readonly jobs: number }, void>
  /** How many jobs were handled since the start. */
  readonly handledSoFar: Call<void, number>
  /** Milliseconds that the statements took which fetch work, since the last such call. */
  readonly claimTimes: Call<void, ReadonlyArray<number>>
  /** Milliseconds from enqueue call to handler of the jobs handled since the last such call. */
  readonly latencies: Call<void, ReadonlyArray<number>>
  /** `heapUsed` after forced garbage collections, in bytes. */
  readonly heapUsed: Call<void, number>
}

export type Request = {
  readonly [Name in keyof Calls]: { readonly id: number; readonly name: Name; readonly input: Calls[Name]["input"] }
}[keyof Calls]

export type Response =
  | { readonly id: number; readonly ok: true; readonly output: unknown }
  | { readonly id: number; readonly ok: false; readonly message: string }
