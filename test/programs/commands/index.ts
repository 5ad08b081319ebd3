import type { Command } from "../support/command.js"
import { complete, heartbeat } from "./attempt.js"
import { cancelByKey, cancelRequested, requestCancel, requestCancelMore } from "./cancel.js"
import { cancel, edit, move, prioritise, remove, reschedule, retry } from "./change.js"
import { claim, claimInVain, completeAndClaim } from "./claim.js"
import { bury, buryAll, cleanUp, purge, purgeAll, revive, reviveAll } from "./deadLetters.js"
import { enqueue, enqueueAlike, enqueueMixed } from "./enqueue.js"
import { look } from "./look.js"
import { promote, rescueExpired, rescueStale, wait } from "./maintenance.js"
import { drain, pause, resume, setDeadLetters } from "./queue.js"
import { rotate, tidy } from "./slots.js"
import { begin, endTransaction, enqueueMore, savepoint } from "./transaction.js"
import { enqueueMoreUnique, enqueueUnique, sweep } from "./unique.js"

/** What every program may do. */
export const usual: ReadonlyArray<Command> = [
  enqueue,
  enqueueAlike,
  enqueueMixed,
  begin,
  enqueueMore,
  savepoint,
  endTransaction,
  claim,
  claimInVain,
  complete,
  completeAndClaim,
  heartbeat,
  wait,
  promote,
  rescueStale,
  rescueExpired,
  rotate,
  tidy,
  look
]

/** What a program may do besides: one does a few of these things, for it takes several of a kind to get somewhere. */
export const features = {
  cancel: [cancel, requestCancel, requestCancelMore, cancelRequested, retry],
  change: [move, prioritise, reschedule, edit, remove],
  unique: [enqueueUnique, enqueueMoreUnique, cancelByKey, sweep],
  deadLetters: [setDeadLetters, bury, buryAll, revive, reviveAll, purge, purgeAll, cleanUp],
  queue: [pause, resume, drain]
} satisfies Record<string, ReadonlyArray<Command>>

export type Feature = keyof typeof features
