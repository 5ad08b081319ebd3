import { quietServer } from "./support/host.js"
import { claim, commit, complete, crashAndRescue, drain, enqueue, Ledger, transaction } from "./support/queue.js"
import { rule } from "./support/rule.js"
import { rotate, turn } from "./support/slots.js"
import type { Session, World } from "./support/world.js"

// Which transaction comes next is up to the test alone.
const server = quietServer()

const adopt = async (session: Session): Promise<void> => {
  await session.query("select awa.adopt()")
  await session.query("select awa.publish_slot()")
}

/** The data comes from another cluster. */
const move = (session: Session): Promise<unknown> => session.query("update awa.epochs set system_identifier = 42")

/** What cannot be claimed because the claim refuses is not lost yet, but it does not run either. */
const drainIfAllowed = async (session: Session, ledger: Ledger) => {
  try {
    await drain(session, ledger)
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "AW005")) throw error
  }
  return ledger.findings()
}

/** Three jobs wait behind the cursor: their transaction was pending when it moved on. The fourth is finished. */
const threeBehind = async (world: World, ledger: Ledger): Promise<Session> => {
  const session = await world.session()
  const slow = await transaction(world)
  ledger.waiting(await enqueue(slow, 3))
  ledger.waiting(await enqueue(session))
  await complete(session, ledger.claimed(await claim(session)))
  await commit(slow)
  return session
}

rule(server, "a transaction of the new cluster owns nothing below the floor", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    ledger.waiting(await enqueue(session, 3))
    await complete(session, ledger.claimed(await claim(session)))
    await move(session)
    await adopt(session)
    const slow = await transaction(world)
    const [own] = await slow.query<{ xid: string }>("select pg_current_xact_id()::text as xid")
    await session.query("update awa.ready_entries set xid = $1", own?.xid)
    ledger.waiting(await enqueue(slow))
    ledger.waiting(await enqueue(session))
    ledger.claimed(await claim(session))
    await commit(slow)
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "the floor is the first position": {
      breaks: [{
        within: "awa.adopt",
        find: "else (select s.last_value - (not s.is_called)::integer from awa.pos_seq s)",
        replace: "else 0"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "what waits behind a cursor is put in front of it", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await threeBehind(world, ledger)
    await move(session)
    await adopt(session)
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "it is left where it is": {
      breaks: [{
        within: "awa.adopt",
        find: "join awa_adopted_lanes l on l.lane_id = r.lane_id and r.pos <= l.cursor_pos",
        replace: "join awa_adopted_lanes l on false"
      }],
      shows: ["job lost"]
    },
    "claims are not told": {
      breaks: [
        {
          within: "awa.adopt",
          find: "from (select exists (select from awa_adopted_rows r where r.lane_id = l.lane_id) as moved) a",
          replace: "from (select false as moved) a"
        }
      ],
      shows: ["job lost"]
    }
  }
})

/** The repair of slots would find what waits without being given up. */
rule(server, "what was put in front of a cursor waits there alone", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await threeBehind(world, ledger)
    await move(session)
    await adopt(session)
    const attempts = ledger.claimed(await claim(session))
    await complete(session, attempts)
    for (let round = 0; round < 3; round++) {
      await rotate(session, 0)
      await turn(session)
    }
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "it is copied and not given up": {
      breaks: [{
        within: "awa.adopt",
        find: "select a.slot, a.lane_id, a.pos, v_now from awa_adopted_rows a;",
        replace: "select a.slot, a.lane_id, a.pos, v_now from awa_adopted_rows a where false;"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "what was put in front of a cursor can be adopted again", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await threeBehind(world, ledger)
    await adopt(session)
    ledger.claimed(await claim(session, { limit: 1 }))
    await adopt(session)
    ledger.claimed(await claim(session, { limit: 1 }))
    await adopt(session)
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "every epoch has the same transaction": {
      breaks: [{
        within: "awa.adopt",
        find: "a.to_slot, r.lane_id, r.pos, adopt.epoch::text::xid8,",
        replace: "a.to_slot, r.lane_id, r.pos, '2'::xid8,"
      }, {
        within: "awa.adopt",
        find: "array[adopt.epoch::text::xid8] else",
        replace: "array['2'::xid8] else"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "the cursor of a lane is what was claimed, whatever its last row says", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    ledger.waiting(await enqueue(session, 6))
    await complete(session, ledger.claimed(await claim(session, { limit: 4 })))
    await session.query("update awa.claim_batches set cursor_pos = null, pending_xids = null, pending_after = null")
    await move(session)
    await adopt(session)
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "what it says": {
      breaks: [{
        within: "awa.adopt",
        find: "greatest(max(b.cursor_pos), max(b.hi), max((select max(p) from unnest(b.late) p))) as cursor_pos",
        replace: "max(b.cursor_pos) as cursor_pos"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "sequences are put in front of what they number", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await session.query("select setval('awa.batch_seq', 100)")
    ledger.waiting(await enqueue(session, 6))
    await complete(session, ledger.claimed(await claim(session, { limit: 4 })))
    await session.query("select setval('awa.pos_seq', 1, false), setval('awa.batch_seq', 50)")
    await adopt(session)
    await rotate(session, 0)
    await session.query("select awa.publish_slot()")
    ledger.waiting(await enqueue(session, 2))
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "but for that of the positions": {
      breaks: [{ within: "awa.adopt", find: "perform setval('awa.pos_seq', v_last_pos);", replace: "null;" }],
      shows: ["job lost"]
    },
    "but for that of the batches": {
      breaks: [{ within: "awa.adopt", find: "perform setval('awa.batch_seq', v_last_batch);", replace: "null;" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "producers write where claims look", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await session.query("select setval('awa.ready_slot', 3)")
    ledger.waiting(await enqueue(session))
    await adopt(session)
    ledger.waiting(await enqueue(session))
    return drainIfAllowed(session, ledger)
  },
  mutants: {
    "the register of the open slot stays": {
      breaks: [{
        within: "awa.adopt",
        find: "perform setval('awa.ready_slot', v_open);",
        replace: "perform setval('awa.ready_slot', 2);"
      }, { within: "awa.publish_slot", find: "perform setval('awa.ready_slot', v_slot);", replace: "null;" }],
      shows: ["job lost"]
    },
    "slots that the ledger does not know stay unknown": {
      breaks: [{ within: "awa.adopt", find: "where awa.slot_is_used(s.slot);", replace: "where false;" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "attempts of workers that did not come along are rescued", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await threeBehind(world, ledger)
    ledger.waiting(await enqueue(session, 2))
    const [first] = ledger.claimed(await claim(session, { limit: 1 }))
    ledger.waiting([first?.job ?? ""], 2)
    await move(session)
    await adopt(session)
    await crashAndRescue(session, ledger)
    return ledger.findings()
  },
  mutants: {}
})
