import { describe, expect, it } from "vitest"
import type { Host } from "./host.js"
import { installation, type Patch } from "./shipped.js"
import { withWorld, type World } from "./world.js"

/** What an observer of the queue can hold against it. */
export type Finding =
  | "job lost"
  | "job doubled"
  | "accepted twice"
  | "stale completion accepted"
  | "foreign completion accepted"
  | "accepted completion refused"
  | "live attempt rescued"
  | "lost attempt not reported"
  | "lease of a closed attempt"
  | "cursor explodes"
  | "claimer waits"
  | "shard unused"
  | "change not made"
  | "probe refuted"
  | "lock leaked"
  | "sleeper locked out"
  | "key leaked"
  | "key lost"
  | "key held by a stranger"
  | "job stopped by another"
  | "deadlock"
  | "enqueue failed"
  | "claimed while paused"
  | "promoted while paused"

/** Plays a situation through and tells what went wrong. */
export type Scenario = (world: World) => Promise<ReadonlyArray<Finding>>

/** One way to break the rule, and what must then be seen. */
export interface Mutant {
  readonly breaks: ReadonlyArray<Patch>
  readonly shows: ReadonlyArray<Finding>
}

/**
 * A rule of the SQL: the shipped text passes the scenario, every mutant fails it in the way it says. `gates` go into
 * both, so that the scenario can stop a function between two steps.
 */
export const rule = (
  on: Host,
  name: string,
  { gates = [], mutants, scenario }: {
    readonly scenario: Scenario
    readonly gates?: ReadonlyArray<Patch>
    readonly mutants: Readonly<Record<string, Mutant>>
  }
): void => {
  const play = (patches: ReadonlyArray<Patch>): Promise<ReadonlyArray<Finding>> => {
    const changes = installation([...gates, ...patches])
    return on.withDatabase((url) =>
      withWorld(url, async (world) => {
        const session = await world.session()
        await session.query(changes)
        return [...new Set(await scenario(world))].sort()
      })
    )
  }
  describe(name, () => {
    it("holds", async () => expect(await play([])).toEqual([]))
    for (const [mutation, { breaks, shows }] of Object.entries(mutants)) {
      it(`catches: ${mutation}`, async () => expect(await play(breaks)).toEqual([...shows].sort()))
    }
  })
}
