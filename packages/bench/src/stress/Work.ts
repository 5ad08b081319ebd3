/** The jobs of the stress programs with worker processes, and what a worker process tells its parent. */
import { Job } from "@awa/model"
import { Schema } from "effect"

/** What a handler does. `slow` takes longer than a heartbeat, and than its slot stays open. */
export const Act = Schema.Literal("complete", "slow", "retry", "snooze", "cancel", "fail")

export type Act = typeof Act.Type

export const queues = ["turmoil-a", "turmoil-b"] as const

export const Work = Job.make("turmoil", { payload: { act: Act, key: Schema.Int } })

export type Message =
  | { readonly _tag: "ready" }
  | { readonly _tag: "ran"; readonly fence: string; readonly claimedAt: number }
  | {
    readonly _tag: "stored"
    readonly results: ReadonlyArray<{ readonly fence: string; readonly verdict: "accepted" | "repeated" }>
  }
