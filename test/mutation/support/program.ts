import { Chance, Ticks } from "./chance.js"
import { History } from "./history.js"
import { produce } from "./producer.js"
import { setShards } from "./queue.js"
import type { Stage } from "./stage.js"
import { drain, maintain, observe, work } from "./worker.js"
import type { World } from "./world.js"

/** How long the program runs, and what its choices depend on. */
export interface Options {
  readonly seconds: number
  readonly seed: number
  /** Lets the ring of slots turn as fast as it can. */
  readonly turning?: boolean
  /** Over how many lanes each priority is spread. Default 1. */
  readonly shards?: number
}

/** How much of everything has happened, and how often what must not. */
export interface Result {
  readonly done: Readonly<Record<string, number>>
  readonly wrong: Readonly<Record<string, number>>
}

/** Producers, claimers, maintenance and a reader, all at once and at random, on one queue with four priorities. */
export const run = async (
  world: World,
  { seconds, seed, shards = 1, turning = false }: Options
): Promise<Result> => {
  const deadline = performance.now() + seconds * 1000
  let producing = true
  const stage: Stage = {
    world,
    shards,
    history: new History(),
    claims: new Ticks(),
    goesOn: () => performance.now() < deadline,
    producing: () => producing,
    turning,
    done: {
      transactions: 0,
      rolledBack: 0,
      prepared: 0,
      conflicts: 0,
      claimsRolledBack: 0,
      abandoned: 0,
      slots: 0,
      ...(turning ? { freed: 0, evicted: 0 } : undefined),
      looks: 0
    },
    wrong: { notAccepted: 0, notRepeated: 0, takenForDead: 0, listedTwice: 0, vanished: 0 }
  }
  const session = await world.session()
  await session.query("create table unrelated (n integer)")
  await setShards(session, shards)

  const producers = Promise.all(several(10, (number) => produce(stage, number, new Chance(seed + number))))
    .finally(() => {
      producing = false
    })
  const workers = Promise.all(several(4, (number) => work(stage, new Chance(seed + 100 + number))))
    .finally(() => stage.claims.end())
  await Promise.all([producers, workers, maintain(stage), observe(stage)])
  await drain(stage, session)

  const [left] = await session.query<{ unfinished: number; leases: number }>(`
    select
      (select count(*)::int from awa.jobs where state <> 'completed') as unfinished,
      (select count(*)::int from awa.leases) as leases`)
  return {
    done: { ...stage.done, ...stage.history.counts() },
    wrong: { ...stage.history.verdict(), ...stage.wrong, ...left }
  }
}

const several = <A>(count: number, make: (number: number) => Promise<A>): ReadonlyArray<Promise<A>> =>
  Array.from({ length: count }, (_, number) => make(number))
