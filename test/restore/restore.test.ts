import { Database, QueueStorage } from "@awa/model"
import { Effect, Layer } from "effect"
import { beforeAll, describe, expect, it } from "vitest"
import { claim, commit, complete, drain, enqueue, Ledger, transaction } from "../mutation/support/queue.js"
import type { Session } from "../mutation/support/world.js"
import {
  advanceTo,
  caughtUp,
  type Cluster,
  cluster,
  inWorld,
  newQueue,
  restore,
  standbyOf
} from "./support/clusters.js"
import { finish, finishedOf, jobsOf, live, work } from "./support/story.js"

let home: Cluster
let abroad: Cluster

beforeAll(async () => {
  home = await cluster()
  abroad = await cluster()
}, 120_000)

/** How the engine greets a database: with its refusal, or not at all. */
const greeting = (url: string): Promise<string> =>
  Effect.runPromise(
    QueueStorage.make.pipe(
      Effect.as("welcome"),
      Effect.catchAll(({ _tag }) => Effect.succeed(_tag)),
      Effect.provide(Layer.orDie(Database.layer({ url, maxConnections: 1 })))
    )
  )

const adopt = (url: string): Promise<QueueStorage.Adopted> =>
  Effect.runPromise(QueueStorage.adopt.pipe(Effect.provide(Database.layer({ url, maxConnections: 1 }))))

/** A queue at home that its cluster has had for a while: the ids in its log are not given out abroad yet. */
const queueAtHome = async (name: string) => {
  const ledger = new Ledger()
  const url = await newQueue(home, name)
  await inWorld(url, async (world) => {
    await advanceTo(world, 3000n)
    await live(world, ledger)
  })
  return { ledger, url }
}

/** The highest transaction id in the log, and the number of rows that carry it. */
const lastXid = async (session: Session): Promise<bigint> => {
  const [row] = await session.query<{ xid: string }>(
    "select max(xid::text::bigint)::text as xid from awa.ready_entries"
  )
  return BigInt(row?.xid ?? 0)
}

describe("a queue that is restored in another cluster", () => {
  for (const sequences of [true, false]) {
    it(
      `${sequences ? "with" : "without"} its sequences keeps every job, and none that has ended runs again`,
      async () => {
        const database = sequences ? "dumped" : "data_only"
        const { ledger, url } = await queueAtHome(database)
        const copy = await newQueue(abroad, database)
        await restore(url, copy, { sequences })
        expect(await greeting(copy)).toBe("ForeignDatabase")

        await inWorld(copy, async (world) => {
          const session = await world.session()
          const before = await jobsOf(session)
          expect(await adopt(copy)).toEqual({ epoch: 2, requeued: 5 })
          expect(await greeting(copy)).toBe("welcome")
          expect(await jobsOf(session)).toEqual(before)

          // The cluster comes to the ids that stand in the log: each is pending once when a claim moves the cursor.
          const finished = await finishedOf(session)
          const last = await lastXid(session)
          await advanceTo(world, last - 40n)
          const again: Array<string> = []
          for (let i = 0; i < 40; i++) {
            const slow = await transaction(world)
            ledger.waiting(await enqueue(session))
            again.push(...(await work(session, ledger, finished, 2)).again)
            await commit(slow)
          }
          expect([...again, ...await finish(session, ledger, finished)]).toEqual([])
          expect(ledger.findings()).toEqual([])
        })
      },
      120_000
    )
  }
})

it("a queue whose sequences alone were put back is refused, and adopted in its own cluster", async () => {
  const { ledger, url } = await queueAtHome("put_back")
  await inWorld(url, async (world) => {
    const session = await world.session()
    const finished = await finishedOf(session)
    await session.query("select setval('awa.pos_seq', 1, false), setval('awa.batch_seq', 1, false)")
    expect(await greeting(url)).toBe("StorageInconsistent")
    expect((await adopt(url)).epoch).toBe(2)
    expect(await greeting(url)).toBe("welcome")
    ledger.waiting(await enqueue(session, 3))
    expect(await finish(session, ledger, finished)).toEqual([])
    expect(ledger.findings()).toEqual([])
  })
}, 120_000)

it("a standby that is promoted goes on where its primary ended", async () => {
  const primary = await cluster()
  const ledger = new Ledger()
  const url = await newQueue(primary, "failing_over")
  await inWorld(url, (world) => live(world, ledger))
  const standby = await standbyOf(primary)
  const follower = standby.urlOf("failing_over")
  await inWorld(url, async (world) => {
    await live(world, ledger) // while it is followed
    await inWorld(follower, (other) => caughtUp(world, other))
  })
  await Effect.runPromise(primary.kill)
  await inWorld(follower, async (world) => {
    const session = await world.session()
    expect(await session.query("select pg_promote(true) as promoted")).toEqual([{ promoted: true }])
    expect(await greeting(follower)).toBe("welcome")
    const finished = await finishedOf(session)
    expect(finished.size).toBeGreaterThan(50)
    ledger.waiting(await enqueue(session, 3))
    expect(await finish(session, ledger, finished)).toEqual([])
    expect(ledger.findings()).toEqual([])
  })
}, 120_000)

it("a session does not remember what it saw on a standby when that is promoted", async () => {
  const primary = await cluster()
  const ledger = new Ledger()
  const url = await newQueue(primary, "looked_on")
  await inWorld(url, async (world) => {
    const session = await world.session()
    await complete(session, (await enqueue(session), await claim(session)))
  })
  const standby = await standbyOf(primary)
  await inWorld(standby.urlOf("looked_on"), async (follower) => {
    const survivor = await follower.session()
    await inWorld(url, async (world) => {
      const session = await world.session()
      // A sequence writes ahead for 32 values: the standby does not see the next changes counted.
      await enqueue(session, [{ queue: "other" }])
      await caughtUp(world, follower)
      expect(await claim(survivor)).toEqual([])
      ledger.waiting(await enqueue(session, [{ priority: 1 }]))
      await caughtUp(world, follower)
    })
    await Effect.runPromise(primary.kill)
    await survivor.query("select pg_promote(true)")
    await drain(survivor, ledger)
    expect(ledger.findings()).toEqual([])
  })
}, 120_000)
