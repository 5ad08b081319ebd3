import type { ClaimedJob } from "@awa/model/StorageEngine"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as FiberId from "effect/FiberId"
import type { Permits } from "./permits.js"
import { ProgressBuffer } from "./progress.js"

/** Why this worker interrupted an attempt. */
export type StopReason = "shutdown" | "lost" | "deadline"

/** A queue as its attempts know it. */
export interface AttemptQueue {
  readonly name: string
  readonly permits: Permits
  /** In milliseconds; `Infinity` for none. */
  readonly deadlineMillis: number
}

/** One run of one job in this process, from the claim until the database has acknowledged its end. */
export class Attempt {
  /** Set once a stop was asked for; the first reason counts, except that a lost attempt is lost. */
  stop: StopReason | null = null
  /** `null` before the handler starts and after it ended. */
  fiber: Fiber.RuntimeFiber<unknown, unknown> | null = null
  /** Whether the handler is over and only the acknowledgement is missing. */
  closing = false
  private buffer: ProgressBuffer | null = null

  constructor(readonly claimed: ClaimedJob, readonly queue: AttemptQueue, readonly startedAt: number) {}

  get fence(): string {
    return this.claimed.token.fence
  }

  get deadlineAt(): number {
    return this.startedAt + this.queue.deadlineMillis
  }

  /** Made on first use: most attempts never report anything. */
  get progress(): ProgressBuffer {
    return this.buffer ??= new ProgressBuffer(this.claimed.job.progress)
  }

  get pendingProgress() {
    return this.buffer?.pending()
  }

  /** Asks the handler to stop. Harmless when it is over. */
  interrupt(reason: StopReason): void {
    if (this.stop === null || reason === "lost") this.stop = reason
    this.fiber?.unsafeInterruptAsFork(FiberId.none)
  }
}

/**
 * All attempts of this process by fence. Whatever is in here is accounted for: it runs, or its outcome is on the way to
 * the database.
 */
export class Attempts {
  private readonly all = new Set<Attempt>()
  private readonly abandoned = new Set<string>()
  private readonly idle = Effect.unsafeMakeLatch(true)
  private runningCount = 0

  /** Waits until no handler runs. */
  readonly noneRunning: Effect.Effect<void> = this.idle.await

  get running(): number {
    return this.runningCount
  }

  /** In the order of their claims. */
  values(): Iterable<Attempt> {
    return this.all
  }

  /** The attempts of which something is known, so that they must not be given back. */
  known(): ReadonlySet<string> {
    const fences = new Set(this.abandoned)
    for (const { fence } of this.all) fences.add(fence)
    return fences
  }

  start(attempt: Attempt): void {
    this.all.add(attempt)
    this.runningCount += 1
    this.idle.unsafeClose()
  }

  /** The handler is over. Its fiber holds a lot of memory: let it go before the acknowledgement. */
  stopRunning(attempt: Attempt): void {
    attempt.closing = true
    attempt.fiber = null
    this.runningCount -= 1
    if (this.runningCount === 0) this.idle.unsafeOpen()
  }

  /** The attempt is accounted for elsewhere: the database has acknowledged its end, or it belongs to somebody else. */
  forget(attempt: Attempt): void {
    this.all.delete(attempt)
  }

  /** Somebody else ended these: their results do not count any more. */
  abort(fences: ReadonlySet<string>): void {
    for (const attempt of this.all) if (!attempt.closing && fences.has(attempt.fence)) attempt.interrupt("lost")
  }

  /** The attempt ran, and its end cannot be stored: it is left to rescue, which counts it. */
  abandon(attempt: Attempt): void {
    this.all.delete(attempt)
    this.abandoned.add(attempt.fence)
  }

  /** Only these are still open in the database. */
  keepAbandoned(open: ReadonlyArray<string>): void {
    if (this.abandoned.size === 0) return
    const stillOpen = new Set(open)
    for (const fence of this.abandoned) if (!stillOpen.has(fence)) this.abandoned.delete(fence)
  }
}
