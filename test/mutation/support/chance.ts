/** Choices that are the same for the same seed. */
export class Chance {
  constructor(private state: number) {}

  /** From 0 up to, not including, 1. */
  private next(): number {
    this.state = (this.state + 0x6d2b79f5) | 0
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }

  happens(probability: number): boolean {
    return this.next() < probability
  }

  /** From 1 to `most`. */
  upTo(most: number): number {
    return 1 + Math.floor(this.next() * most)
  }

  of<A>(values: readonly [A, ...ReadonlyArray<A>]): A {
    return values[this.upTo(values.length) - 1] ?? values[0]
  }
}

/** Lets some wait for what others do. */
export class Ticks {
  private count = 0
  private waiting: Array<{ readonly until: number; readonly go: () => void }> = []

  tick(): void {
    this.count++
    this.release(({ until }) => until <= this.count)
  }

  /** Waits for `ticks` further ticks, or for the end. */
  pass(ticks: number): Promise<void> {
    const until = this.count + ticks
    return new Promise((go) => until > this.count ? this.waiting.push({ until, go }) : go())
  }

  /** There will be no more ticks. */
  end(): void {
    this.count = Infinity
    this.release(() => true)
  }

  private release(isOver: (waiter: { readonly until: number }) => boolean): void {
    const over = this.waiting.filter(isOver)
    this.waiting = this.waiting.filter((waiter) => !isOver(waiter))
    for (const { go } of over) go()
  }
}
