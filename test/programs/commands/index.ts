import type { Command } from "../support/command.js"
import { complete, heartbeat } from "./attempt.js"
import { claim, claimInVain } from "./claim.js"
import { enqueue, enqueueAlike, enqueueMixed } from "./enqueue.js"
import { look } from "./look.js"
import { promote, rescueExpired, rescueStale, wait } from "./maintenance.js"
import { rotate, tidy } from "./slots.js"
import { begin, endTransaction, enqueueMore, savepoint } from "./transaction.js"

/** All a program may do. */
export const commands: ReadonlyArray<Command> = [
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
  heartbeat,
  wait,
  promote,
  rescueStale,
  rescueExpired,
  rotate,
  tidy,
  look
]
