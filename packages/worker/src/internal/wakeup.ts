/**
 * When a dispatcher looks for work again: a decision from what the last claims found, without effects.
 *
 * - A claim that came back full: at once, there is more.
 * - Busy (many jobs came lately): again and again at growing gaps, without an idle mark, so that producers need not
 *   notify anybody.
 * - Otherwise the queue is marked idle, which makes producers notify. A producer that looked before the mark was set may
 *   commit after it, so claims go on for a while with the mark held; then the dispatcher sleeps. The mark stays while
 *   jobs come one by one: each of them is notified and picked up at once.
 */

import type { MarkResult } from "../Notifier.js"

export type Decision =
  /** Claim at once. */
  | { readonly _tag: "again" }
  /** Claim after so many milliseconds, or when woken. */
  | { readonly _tag: "probe"; readonly millis: number }
  /** Set the idle mark and say how that went: `marked`. */
  | { readonly _tag: "mark" }
  /** Wait to be woken, by a notification or by the poll. */
  | { readonly _tag: "sleep" }

/** So many jobs in one claim, or in a row of full ones, make a queue busy. */
const busyBurst = 4

/** So many jobs within `busyMillis` make it busy too: notifying for each would slow producers down to that rate. */
const busyCount = 10

/** How long a queue stays busy after it last was. */
const busyMillis = 20

const busyGaps = [1, 2, 3, 5, 8]

/** How long a producer may take from looking for the mark to its commit without losing the wake-up. */
const settleMillis = 60

const settleGaps = [2, 3, 5, 7, 10, 15, 20]

/** A producer was looking for the mark at the moment it was to be set. */
const contendedMillis = 8

const again: Decision = { _tag: "again" }
const mark: Decision = { _tag: "mark" }
const sleep: Decision = { _tag: "sleep" }

export class Wakeup {
  private held = false
  private busyUntil = 0
  private settledAt = 0
  private gap = 0
  /** Jobs taken by the current row of full claims. */
  private streak = 0
  private windowStart = 0
  private windowCount = 0

  /** Whether the idle mark should be set at this moment. */
  get marked(): boolean {
    return this.held
  }

  /** A claim for up to `limit` jobs was answered with `count`. */
  claimed(count: number, limit: number, now: number): Decision {
    if (count > 0) this.gap = 0
    this.streak += count
    if (this.streak >= busyBurst || this.countWindow(count, now)) this.becomeBusy(now)
    if (count === limit) return again
    this.streak = 0
    if (now < this.busyUntil) return this.probe(busyGaps)
    if (!this.held) return mark
    return now < this.settledAt ? this.probe(settleGaps) : sleep
  }

  /** The idle mark was set, or could not be. Where there are no marks the poll does it all. */
  markedIdle(result: MarkResult, now: number): Decision {
    this.held = result === "held"
    if (result === "unavailable") return sleep
    if (result === "contended") return { _tag: "probe", millis: contendedMillis }
    this.gap = 0
    this.settledAt = now + settleMillis
    return this.probe(settleGaps)
  }

  /** The mark is gone: its connection was lost, or it was released because nobody would listen to a notification. */
  unmarked(): void {
    this.held = false
  }

  private becomeBusy(now: number): void {
    this.busyUntil = now + busyMillis
    this.held = false
  }

  private countWindow(count: number, now: number): boolean {
    if (now - this.windowStart >= busyMillis) {
      this.windowStart = now
      this.windowCount = 0
    }
    this.windowCount += count
    return this.windowCount >= busyCount
  }

  private probe(gaps: ReadonlyArray<number>): Decision {
    const millis = gaps[Math.min(this.gap, gaps.length - 1)]!
    this.gap += 1
    return { _tag: "probe", millis }
  }
}
