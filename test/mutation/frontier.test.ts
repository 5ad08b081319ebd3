import { Database, QueueStorage, StorageEngine, TimeSource } from "@awa/model"
import { Duration, Effect, Layer, ManagedRuntime } from "effect"
import { quietServer } from "./support/host.js"
import {
  alice,
  type Attempt,
  begin,
  bob,
  carol,
  claim,
  commit,
  complete,
  enqueue,
  heartbeat,
  later,
  minutes
} from "./support/queue.js"
import { rule, type Scenario } from "./support/rule.js"
import type { Session, World } from "./support/world.js"

// Rescue, and a worker that looks for what is open under its name, read batches from a frontier on: nobody would look
// again at what lies below it and is not settled.

// Which transactions have ended is up to the test alone.
const server = quietServer()

/** One pass of the leader, `at` milliseconds after the start; answers the jobs taken back. */
type Pass = (at: number) => Promise<ReadonlyArray<string>>

/** Plays through a situation that ends with a job whose worker is gone; the last pass has to find it. */
const thenRescued = (
  limit: number,
  play: (world: World, pass: Pass, start: Date) => Promise<string | undefined>
): Scenario =>
async (world) => {
  const start = new Date()
  const leader = ManagedRuntime.make(
    Layer.provide(QueueStorage.layer, Database.layer({ url: world.url, maxConnections: 1 }))
  )
  const pass: Pass = (at) => {
    const passing = leader.runPromise(
      StorageEngine.StorageEngine.pipe(
        Effect.flatMap((engine) => engine.rescueStale({ staleness: Duration.minutes(2), limit })),
        Effect.map((rescued) => rescued.map(({ jobId }) => String(jobId))),
        Effect.provideService(TimeSource.TimeSource, Effect.succeed(later(start, at)))
      )
    )
    passing.catch(() => {}) // told to whoever waits for it
    return passing
  }
  try {
    const job = await play(world, pass, start)
    const rescued = await pass(minutes(60))
    return rescued.some((found) => found === job) ? [] : ["job lost"]
  } finally {
    await leader.dispose()
  }
}

/** An attempt of `owner` in a lane of its own. */
const attempt = async (session: Session, owner: string, now: Date): Promise<ReadonlyArray<Attempt>> => {
  await enqueue(session, [{ queue: owner }], now)
  return claim(session, { queue: owner, owner, now })
}

/** The same in a transaction that is left open. */
const openAttempt = async (session: Session, owner: string, now: Date): Promise<ReadonlyArray<Attempt>> => {
  await enqueue(session, [{ queue: owner }], now)
  await begin(session)
  return claim(session, { queue: owner, owner, now })
}

/** An attempt that ends as soon as it has begun. */
const shortAttempt = async (session: Session, now: Date): Promise<void> => {
  await complete(session, await attempt(session, bob, now), { owner: bob, now })
}

rule(server, "the frontier stays below claims that were under way", {
  scenario: thenRescued(100, async (world, pass, start) => {
    const slow = await world.session()
    const [lost] = await openAttempt(slow, alice, start)
    await shortAttempt(await world.session(), start)
    await pass(1_000)
    await commit(slow)
    await pass(2_000)
    await pass(3_000)
    return lost?.job
  }),
  mutants: {}
})

rule(server, "the frontier stays below claims that began during a pass", {
  scenario: thenRescued(100, async (world, pass, start) => {
    const beating = await world.session()
    const slow = await world.session()
    const old = await attempt(beating, alice, later(start, -minutes(10)))
    await begin(beating)
    await heartbeat(beating, old, start)
    const passing = pass(1_000)
    await world.waitedFor(beating)
    const [lost] = await openAttempt(slow, carol, start)
    await shortAttempt(await world.session(), start)
    await commit(beating)
    await passing
    await pass(2_000)
    await commit(slow)
    await pass(3_000)
    return lost?.job
  }),
  mutants: {
    "it is read in the end": {
      breaks: [{
        within: "awa.rescue",
        find: "and v_young is not null then rescue.settled := v_young;",
        replace: `then
          select coalesce(min(b.batch_id), p_frontier) into rescue.settled from awa.claim_batches b
          where b.batch_id >= p_frontier and b.claimed_at >= v_cutoff;`
      }],
      shows: ["job lost"]
    }
  }
})

/** Two passes may look at one attempt only, and see nothing when they look again: its worker is alive. */
rule(server, "the frontier stays where it is when a pass was cut off", {
  scenario: thenRescued(1, async (world, pass, start) => {
    const session = await world.session()
    const alive = [await attempt(session, alice, start), await attempt(session, carol, start)]
    const [lost] = await attempt(session, bob, start)
    await shortAttempt(session, later(start, minutes(4)))
    for (const [index, attempts] of alive.entries()) {
      const beating = await world.session()
      await begin(beating)
      await heartbeat(beating, attempts, later(start, minutes(58)), [alice, carol][index])
      const passing = pass(minutes(5 + index))
      await world.waitedFor(beating)
      await commit(beating)
      await passing
    }
    return lost?.job
  }),
  mutants: {
    "a second look decides alone": {
      breaks: [{
        within: "awa.rescue",
        find: "rescue.complete := v_found < p_limit;",
        replace: "rescue.complete := true;"
      }],
      shows: ["job lost"]
    }
  }
})

/** Looks for Alice's attempts from `frontier` on. */
const look = async (
  session: Session,
  now: Date,
  frontier: string
): Promise<{ readonly frontier: string; readonly attempts: ReadonlyArray<unknown> }> => {
  const [row] = await session.query<{ owned: { frontier: string; attempts: ReadonlyArray<unknown> } }>(
    "select awa.owned_attempts($1, $2, $3, $4) as owned",
    alice,
    minutes(1),
    frontier,
    now
  )
  if (row === undefined) throw new Error("no answer")
  return row.owned
}

rule(server, "a worker's frontier stays below its claims that were under way", {
  scenario: async (world) => {
    const start = new Date()
    const session = await world.session()
    const slow = await world.session()
    await openAttempt(slow, alice, start)
    await shortAttempt(session, start)
    const first = await look(session, later(start, 1_000), "0")
    await commit(slow)
    const second = await look(session, later(start, minutes(2)), first.frontier)
    const third = await look(session, later(start, minutes(5)), second.frontier)
    return second.attempts.length === 1 && third.attempts.length === 1 ? [] : ["job lost"]
  },
  mutants: {
    "it is the first young batch": {
      breaks: [{
        within: "awa.owned_attempts",
        find: "b.claimed_at <= cut.at - interval '1 minute' order by b.batch_id desc limit 1",
        replace: "b.claimed_at > cut.at order by b.batch_id limit 1"
      }],
      shows: ["job lost"]
    }
  }
})
