import * as Effect from "effect/Effect"

/**
 * The slots of one queue. They are taken before a claim, as many as are free, and given back one by one; only the
 * queue's dispatcher takes and waits.
 */
export class Permits {
  private taken = 0
  private wanted = 1
  private readonly latch = Effect.unsafeMakeLatch(true)

  constructor(readonly size: number) {}

  get inUse(): number {
    return this.taken
  }

  get free(): number {
    return this.size - this.taken
  }

  takeUpTo(limit: number): number {
    const count = Math.min(limit, this.free)
    this.taken += count
    return count
  }

  release(count: number): void {
    this.taken -= count
    if (this.free >= this.wanted) this.latch.unsafeOpen()
  }

  /** Waits until at least `count` are free. */
  awaitFree(count: number): Effect.Effect<void> {
    return Effect.suspend(() => {
      this.wanted = Math.min(count, this.size)
      if (this.free >= this.wanted) return Effect.void
      this.latch.unsafeClose()
      return this.latch.await
    })
  }
}
