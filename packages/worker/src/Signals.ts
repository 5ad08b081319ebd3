/**
 * What a worker did, told the moment it did it: for tests that wait for an event instead of sleeping.
 *
 * @since 0.1.0
 */
import type { Reclaimed, Rescued, Verdict } from "@awa/model/StorageEngine"
import * as Context from "effect/Context"
import { constVoid } from "effect/Function"

/**
 * One thing a worker did.
 *
 * - `claimed`: a claim was answered; `count` may be 0.
 * - `flushed`: a batch of outcomes was acknowledged, one entry an attempt.
 * - `marked`: a queue's idle mark was set or released.
 * - `asleep`: a dispatcher stopped probing and waits to be woken.
 * - `beat`: a heartbeat pass ended; `lost` attempts were no longer this worker's, `returned` ones it did not run.
 * - `promoted`, `rescued`, `reclaimed`, `expired`: a maintenance pass ended; told also when there was nothing to do.
 * - `purged`: a pass over the dead letters ended; told also when none was old enough.
 * - `overridden`: other overrides of a queue hold now than before.
 * - `leader`: this worker became the leader, or stopped being it.
 * - `listening`: the notification connection came up or went down.
 * - `failed`: a turn of a background loop failed and will be tried again.
 * - `stopped`: the worker has shut down.
 *
 * @since 0.1.0
 * @category models
 */
export type Signal =
  | { readonly _tag: "claimed"; readonly queue: string; readonly count: number }
  | { readonly _tag: "flushed"; readonly results: ReadonlyArray<Flushed> }
  | { readonly _tag: "marked"; readonly queue: string; readonly held: boolean }
  | { readonly _tag: "asleep"; readonly queue: string; readonly marked: boolean }
  | { readonly _tag: "beat"; readonly count: number; readonly lost: number; readonly returned: number }
  | { readonly _tag: "promoted"; readonly count: number }
  | { readonly _tag: "rescued"; readonly attempts: ReadonlyArray<Rescued> }
  | { readonly _tag: "reclaimed"; readonly reclaimed: Reclaimed }
  | { readonly _tag: "expired"; readonly count: number }
  | { readonly _tag: "purged"; readonly count: number }
  | { readonly _tag: "overridden"; readonly queue: string }
  | { readonly _tag: "leader"; readonly leading: boolean }
  | { readonly _tag: "listening"; readonly up: boolean }
  | { readonly _tag: "failed"; readonly loop: string; readonly failures: number }
  | { readonly _tag: "stopped" }

/**
 * The acknowledgement of one attempt's outcome.
 *
 * @since 0.1.0
 * @category models
 */
export interface Flushed {
  readonly fence: string
  readonly outcome: string
  readonly verdict: Verdict
}

/**
 * The receiver of a worker's signals. The default ignores them and costs nothing. It is called inside the worker's
 * loops, so it must neither block nor throw.
 *
 * @since 0.1.0
 * @category references
 */
export class Signals extends Context.Reference<Signals>()("@awa/worker/Signals", {
  defaultValue: (): (signal: Signal) => void => constVoid
}) {}
