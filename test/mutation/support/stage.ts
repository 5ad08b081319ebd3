import type { Ticks } from "./chance.js"
import type { History } from "./history.js"
import type { World } from "./world.js"

/** What the participants of the random program share. */
export interface Stage {
  readonly world: World
  /** Over how many lanes each priority is spread. */
  readonly shards: number
  readonly history: History
  /** A tick is a claim: who pauses, pauses for some claims. */
  readonly claims: Ticks
  /** Whether new transactions begin. */
  readonly goesOn: () => boolean
  /** Whether slots are freed, and with them the jobs that ended in them. */
  readonly turning: boolean
  /** Whether there are transactions left. */
  readonly producing: () => boolean
  /** How much of everything has happened. */
  readonly done: {
    transactions: number
    rolledBack: number
    prepared: number
    conflicts: number
    claimsRolledBack: number
    abandoned: number
    slots: number
    freed?: number
    evicted?: number
    parked?: number
    looks: number
  }
  /** What must not happen. */
  readonly wrong: {
    notAccepted: number
    notRepeated: number
    takenForDead: number
    listedTwice: number
    vanished: number
  }
}
