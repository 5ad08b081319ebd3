import { expect } from "vitest"
import { sharedServer } from "./support/host.js"
import {
  type Attempt,
  claim,
  commit,
  complete,
  drain,
  enqueue,
  heartbeat,
  Ledger,
  transaction
} from "./support/queue.js"
import { rule } from "./support/rule.js"
import type { Session, World } from "./support/world.js"

const server = sharedServer()

/**
 * Finished jobs were restored into a cluster whose transaction ids are lower. Now one of its transactions has the id
 * that they carry.
 */
rule(server, "a pending transaction starts at the floor of the epoch", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const worker = await world.session()
    ledger.waiting(await enqueue(worker, 3))
    await complete(worker, ledger.claimed(await claim(worker)))
    await worker.query(`
      insert into awa.epochs (epoch, system_identifier, floor_pos)
      select 2, system_identifier, (select last_value from awa.pos_seq) from pg_control_system()`)
    const slow = await transaction(world)
    const [{ xid }] = await slow.query<{ xid: string }>("select pg_current_xact_id()::text as xid") as [{ xid: string }]
    await worker.query("update awa.ready_entries set xid = $1", xid)
    ledger.waiting(await enqueue(slow))
    ledger.waiting(await enqueue(worker))
    ledger.claimed(await claim(worker))
    await commit(slow)
    await drain(worker, ledger)
    return ledger.findings()
  },
  mutants: {
    "it starts at the first position": {
      breaks: [
        {
          within: "awa.claim",
          find: "(select e.floor_pos from awa.epochs e order by e.epoch desc limit 1), array[",
          replace: "0::bigint, array["
        }
      ],
      shows: ["job doubled"]
    }
  }
})

/** A claim not yet written to disk, and with it the number of its batch, are lost in a crash of the server. */
const loseClaim = async (session: Session, attempt: Attempt): Promise<void> => {
  await session.query("delete from awa.claim_batches where batch_id = $1", attempt.batch)
  await session.query("select setval('awa.batch_seq', $1, false)", attempt.batch)
}

/** Attempts of the same worker, before and after such a crash, at different jobs, with the same batch number. */
const sameBatchTwice = async (world: World) => {
  const session = await world.session()
  await enqueue(session, [{ queue: "a" }, { queue: "b" }])
  const [stale] = await claim(session, { queue: "a", nonce: 1 })
  if (stale === undefined) throw new Error("nothing was claimed")
  await loseClaim(session, stale)
  const [live] = await claim(session, { queue: "b", nonce: 2 })
  if (live === undefined) throw new Error("nothing was claimed")
  expect({ ...stale, job: live.job, nonce: live.nonce }).toEqual(live)
  return { session, stale, live }
}

rule(server, "a completion belongs to the claim, not to its number", {
  scenario: async (world) => {
    const { live, session, stale } = await sameBatchTwice(world)
    const staleAnswer = await complete(session, [stale])
    const liveAnswer = await complete(session, [live])
    return [
      ...(staleAnswer.length === 0 ? ["stale completion accepted" as const] : []),
      ...(liveAnswer.length > 0 ? ["accepted completion refused" as const] : [])
    ]
  },
  mutants: {
    "no comparison of nonces": {
      breaks: [
        {
          within: "awa.close_attempts",
          find: "b.batch_id = a.batch and b.nonce = a.nonce",
          replace: "b.batch_id = a.batch"
        }
      ],
      shows: ["stale completion accepted", "accepted completion refused"]
    }
  }
})

rule(server, "a sign of life belongs to the claim, not to its number", {
  scenario: async (world) => {
    const { session, stale } = await sameBatchTwice(world)
    return await heartbeat(session, [stale]) === 1 ? [] : ["lost attempt not reported"]
  },
  mutants: {
    "no comparison of nonces": {
      breaks: [{ within: "awa.heartbeat", find: "and b.nonce = e.nonce", replace: "" }],
      shows: ["lost attempt not reported"]
    }
  }
})

/** Claims until nothing is left; a refusal is loud, and so not a loss. */
const drainOrRefuse = async (session: Session, ledger: Ledger) => {
  try {
    await drain(session, ledger, { limit: 1 })
    return ledger.findings()
  } catch (error) {
    expect(error).toMatchObject({ code: "AW005" })
    return []
  }
}

/** The log goes on in its next slot, so that a position can come back unnoticed. */
const openNextSlot = async (session: Session): Promise<void> => {
  await session.query("update awa.slots set sealed_at = now() where ring = 'ready'")
  await session.query("insert into awa.slots (ring, generation, slot) values ('ready', 2, 1)")
  await session.query("select setval('awa.ready_slot', 1)")
}

const positionsBehind = "coalesce(coalesce(pg_sequence_last_value('awa.pos_seq'), 0) < p_cursor, false)"

rule(server, "positions are never behind a cursor", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    ledger.waiting(await enqueue(session, 10))
    await complete(session, ledger.claimed(await claim(session)))
    await openNextSlot(session)
    await session.query("select setval('awa.pos_seq', 1, false)")
    await enqueue(session, 3)
    ledger.waiting(["1", "2", "3"], 2) // three more jobs by these numbers
    return drainOrRefuse(session, ledger)
  },
  mutants: {
    "no guard": {
      breaks: [{ within: "awa.sequences_behind", find: positionsBehind, replace: "false" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "batch numbers are never behind the newest of the lane", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    ledger.waiting(await enqueue(session, 3))
    await session.query("select setval('awa.batch_seq', 100)")
    ledger.claimed(await claim(session, { limit: 1 }))
    await session.query("select setval('awa.batch_seq', 50)")
    return drainOrRefuse(session, ledger)
  },
  mutants: {
    "no guard": {
      breaks: [{ within: "awa.sequences_behind", find: "or p_batch <= p_newest", replace: "" }],
      shows: ["job doubled", "job lost"]
    }
  }
})
