import { quietServer } from "./support/host.js"
import {
  alice,
  begin,
  claim,
  commit,
  complete,
  drain,
  enqueue,
  enqueueAlike,
  enqueueOne,
  heartbeat,
  hours,
  later,
  Ledger,
  minutes,
  promote,
  rescue
} from "./support/queue.js"
import { rule, type Scenario } from "./support/rule.js"
import { type Patch, slots } from "./support/shipped.js"
import * as Slots from "./support/slots.js"
import type { Session, World } from "./support/world.js"

const server = quietServer()

const atOnce = { retention: 0, settle: 0 }

const openNext = async (session: Session): Promise<void> => {
  await Slots.rotate(session, 0)
  await Slots.publish(session)
}

/** One job goes its way through the open slot, so that there is something to count. */
const oneJob = async (session: Session, ledger: Ledger): Promise<void> => {
  ledger.waiting(await enqueue(session))
  await complete(session, ledger.claimed(await claim(session)))
}

/** Stops a function between reading which slot is open and drawing its first position. */
const gateBefore = (within: string): Patch => ({
  within,
  find: "nextval('awa.pos_seq')",
  replace: "case when test_gate.pass(1::bigint) is not null then nextval('awa.pos_seq') end"
})

/** A producer knows the open slot; before it writes, that is sealed and goes as far as `fate` takes it. */
const overtaken = (
  write: (session: Session) => Promise<ReadonlyArray<string>>,
  fate: (session: Session, written: () => Promise<void>, ledger: Ledger) => Promise<void>
): Scenario =>
async (world) => {
  const ledger = new Ledger()
  const writer = await world.gatedSession()
  const session = await world.session()
  await oneJob(session, ledger)
  await world.closeGate()
  const writing = write(writer)
  await world.waitsOrEnds(writer, writing)
  await openNext(session)
  await fate(session, async () => {
    await world.openGate()
    ledger.waiting(await writing)
  }, ledger)
  await drain(session, ledger)
  return ledger.findings()
}

const freedBefore = async (session: Session, written: () => Promise<void>): Promise<void> => {
  await Slots.turn(session)
  await written()
}

/** What is claimed of a slot that was counted without it looks like something else that was closed. */
const countedBefore = async (session: Session, written: () => Promise<void>, ledger: Ledger): Promise<void> => {
  await Slots.count(session, 0)
  await written()
  await claimedInFreedSlot(session, ledger)
}

/** The attempts' slot goes as far as it can; then their worker is found dead. */
const claimedInFreedSlot = async (session: Session, ledger: Ledger): Promise<void> => {
  const attempts = ledger.claimed(await claim(session))
  await Slots.turn(session)
  const now = new Date()
  await rescue(session, 0, later(now, hours(1)))
  await promote(session, later(now, hours(2)))
  ledger.waiting(attempts.map(({ job }) => job), 2)
}

const noStray: Patch = { within: "awa.settle", find: "if awa.ready_slot() <> p_slot then", replace: "if false then" }

const writers: Readonly<Record<string, readonly [Patch, (session: Session) => Promise<ReadonlyArray<string>>]>> = {
  "several jobs": [gateBefore("awa.enqueue_many"), (session) => enqueue(session, 2)],
  "one job": [gateBefore("awa.enqueue_one"), async (session) => [await enqueueOne(session)]],
  "jobs that are alike": [gateBefore("awa.enqueue_alike"), (session) => enqueueAlike(session, 2)]
}

for (const [what, [gate, write]] of Object.entries(writers)) {
  rule(server, `enqueue of ${what} into a slot that was freed meanwhile is seen by claims`, {
    gates: [gate],
    scenario: overtaken(write, freedBefore),
    mutants: { "it leaves no note": { breaks: [noStray], shows: ["job lost"] } }
  })
  rule(server, `enqueue of ${what} into a slot that was counted meanwhile has it counted again`, {
    gates: [gate],
    scenario: overtaken(write, countedBefore),
    mutants: { "it leaves no note": { breaks: [noStray], shows: ["job lost"] } }
  })
}

rule(server, "a promoted job's slot may be sealed meanwhile, too", {
  gates: [gateBefore("awa.place")],
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const promoter = await world.gatedSession()
    await oneJob(session, ledger)
    ledger.waiting(await enqueue(session, [{ delay_ms: 1000 }]))
    await world.closeGate()
    const promoting = promote(promoter, later(new Date(), hours(1)))
    await world.waitsOrEnds(promoter, promoting)
    await openNext(session)
    await Slots.turn(session)
    await world.openGate()
    await promoting
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: { "it leaves no note": { breaks: [noStray], shows: ["job lost"] } }
})

rule(server, "a slot is counted only when producers are told of the next", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await oneJob(session, ledger)
    await Slots.rotate(session, 0)
    await Slots.count(session, 0)
    ledger.waiting(await enqueue(session, 2))
    await claimedInFreedSlot(session, ledger)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it is counted at once": {
      breaks: [{ within: "awa.count_slot", find: "or awa.ready_slot() = p_slot then", replace: "then" }],
      shows: ["job lost"]
    }
  }
})

/** A transaction that has written to a slot is still open when that is sealed. */
const openWriter: Scenario = async (world) => {
  const ledger = new Ledger()
  const session = await world.session()
  const writer = await world.session()
  await oneJob(session, ledger)
  await begin(writer)
  const jobs = await enqueue(writer, 2)
  await openNext(session)
  await Slots.turn(session)
  await commit(writer)
  ledger.waiting(jobs)
  await Slots.turn(session)
  await drain(session, ledger)
  return ledger.findings()
}

rule(server, "a slot is counted when its writers have ended", {
  scenario: openWriter,
  mutants: {
    "without a look at them": {
      breaks: [{ within: "awa.count_slot", find: "in share mode nowait", replace: "in access share mode nowait" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a slot is freed only if nobody strayed into it since it was counted", {
  gates: [gateBefore("awa.enqueue_many")],
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const writer = await world.gatedSession()
    await oneJob(session, ledger)
    await world.closeGate()
    const writing = enqueue(writer)
    await world.waitsOrEnds(writer, writing)
    await openNext(session)
    await Slots.count(session, 0)
    await Slots.drain(session, 0, 0)
    await world.openGate()
    ledger.waiting(await writing)
    await Slots.free(session, 0, atOnce)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "whatever its notes say": {
      breaks: [{
        within: "awa.free_slot",
        find: "if exists (select from awa.slot_strays s where s.slot = p_slot) then",
        replace: "if false then"
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a slot that is freed takes no lane's cursor with it", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    for (let slot = 0; slot < slots - 1; slot++) {
      await oneJob(session, ledger)
      await openNext(session)
    }
    await Slots.turn(session)
    // The last slot and the first: the cursor of a claim from both is in the last one, which is freed first.
    ledger.waiting(await enqueue(session))
    await openNext(session)
    ledger.waiting(await enqueue(session))
    await complete(session, ledger.claimed(await claim(session)))
    await Slots.turn(session)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it is not carried on": {
      breaks: [{
        within: "awa.undrained_lanes",
        find: "where w.waits or exists (select from awa.lane_cursor(l.lane_id) c where c.slot = p_slot)",
        replace: "where w.waits"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a cursor is carried on under the lane's lock", {
  gates: [{
    within: "awa.claim",
    find: "nextval('awa.batch_seq')",
    replace: "test_gate.pass(nextval('awa.batch_seq'))"
  }],
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const claimer = await world.gatedSession()
    await oneJob(session, ledger)
    await openNext(session)
    ledger.waiting(await enqueue(session))
    await Slots.count(session, 0)
    await world.closeGate()
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    await Slots.drain(session, 0, hours(1))
    await world.openGate()
    ledger.claimed(await claiming)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "a claim under way does not matter": {
      breaks: [{
        within: "awa.drain_slot",
        find: "continue when not pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_lane));",
        replace: ""
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a slot is drained only when none of its rows waits", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await oneJob(session, ledger)
    ledger.waiting(await enqueue(session, 2))
    await openNext(session)
    await Slots.count(session, 0)
    await Slots.drain(session, 0, hours(1))
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "when its cursors are elsewhere": {
      breaks: [{
        within: "awa.undrained_lanes",
        find: "where w.waits or exists",
        replace: "where exists"
      }, {
        within: "awa.drain_slot",
        find: "where c.slot = p_slot and not exists (select from awa.waiting_in(p_slot, v_lane, 1));",
        replace: "where c.slot = p_slot;"
      }, {
        within: "awa.drain_slot",
        find: "where v_park or not u.waits",
        replace: ""
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a slot is freed only when all of its attempts have ended", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    ledger.waiting(await enqueue(session, 2))
    const [first] = ledger.claimed(await claim(session))
    await complete(session, first === undefined ? [] : [first])
    await openNext(session)
    await Slots.turn(session)
    await rescue(session, 0, later(new Date(), hours(1)))
    await promote(session, later(new Date(), hours(2)))
    ledger.waiting(["2"], 2)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "whatever the count says": {
      breaks: [{
        within: "awa.free_slot",
        find: "if v_closed <> v_slot.counted_rows then",
        replace: "if false then"
      }],
      shows: ["job lost"]
    }
  }
})

/** A producer that read the register before the slot was sealed commits when it has been drained. */
rule(server, "what a stray has written is not taken for lost", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await oneJob(session, ledger)
    await openNext(session)
    await Slots.count(session, 0)
    await Slots.drain(session, 0, hours(1))
    await session.query("select setval('awa.ready_slot', 0)")
    ledger.waiting(await enqueue(session, 3))
    await session.query("insert into awa.slot_strays (slot) values (0)")
    await session.query("select setval('awa.ready_slot', 1)")
    await complete(session, ledger.claimed(await claim(session, { limit: 1 })))
    await Slots.free(session, 0, { retention: 0, settle: 0 })
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it is": {
      breaks: [{
        within: "awa.free_slot",
        find: "if not exists (select from awa.slot_strays s where s.slot = p_slot) and",
        replace: "if"
      }],
      shows: ["job doubled"]
    }
  }
})

/** An attempt outlives its slot. */
const evicted = async (world: World) => {
  const ledger = new Ledger()
  const session = await world.session()
  const start = later(new Date(), -minutes(10))
  ledger.waiting(await enqueue(session, 1, start))
  const attempts = ledger.claimed(await claim(session, { now: start }))
  await openNext(session)
  await Slots.count(session, 0)
  await Slots.evict(session, 0, minutes(1))
  await Slots.turn(session)
  return { attempts, ledger, session }
}

rule(server, "an attempt that outlives its slot ends like any other", {
  scenario: async (world) => {
    const { attempts, ledger, session } = await evicted(world)
    const rejected = await complete(session, attempts)
    const [left] = await session.query<{ state: string }>("select state::text from awa.jobs")
    return [
      ...ledger.findings(),
      ...(rejected.length > 0 || left?.state !== "completed" ? ["accepted completion refused" as const] : [])
    ]
  },
  mutants: {
    "its slot decides": {
      breaks: [{
        within: "awa.close_attempts",
        find:
          "if v_leases and exists (select from awa.leases x where x.owner = any (p_owners) and x.entry is not null) then",
        replace: "if false then"
      }],
      shows: ["accepted completion refused"]
    }
  }
})

/** The worker had other jobs, which ended while it had no leases. */
rule(server, "who has found no leases looks again after an eviction", {
  scenario: async (world) => {
    const session = await world.session()
    const start = later(new Date(), -minutes(10))
    await enqueue(session, 2, start)
    const attempts = await claim(session, { now: start })
    await complete(session, attempts.slice(0, 1))
    await openNext(session)
    await Slots.count(session, 0)
    await Slots.evict(await world.session(), 0, minutes(1))
    const rejected = await complete(session, attempts.slice(1))
    return rejected.length > 0 ? ["accepted completion refused"] : []
  },
  mutants: {
    "it never does": {
      breaks: [{ within: "awa.evict", find: "perform nextval('awa.lease_marks');", replace: "" }],
      shows: ["accepted completion refused"]
    }
  }
})

rule(server, "an attempt that outlives its slot is still its worker's", {
  scenario: async (world) => {
    const { attempts, session } = await evicted(world)
    const lost = await heartbeat(session, attempts)
    const rescued = await rescue(session, minutes(1), new Date())
    return [
      ...(lost > 0 ? ["accepted completion refused" as const] : []),
      ...(rescued.length > 0 ? ["live attempt rescued" as const] : [])
    ]
  },
  mutants: {
    "only while the log has it": {
      breaks: [{ within: "awa.heartbeat", find: "x.entry is not null\n        or exists", replace: "exists" }],
      shows: ["accepted completion refused", "live attempt rescued"]
    }
  }
})

rule(server, "an attempt that outlives its slot is fenced by its nonce", {
  scenario: async (world) => {
    const { attempts, ledger, session } = await evicted(world)
    const stale = await complete(session, attempts.map((attempt) => ({ ...attempt, nonce: attempt.nonce + 1 })))
    const foreign = await complete(session, attempts, { owner: "00000000-0000-4000-8000-00000000000f" })
    return [
      ...ledger.findings(),
      ...(stale.includes("refused") ? [] : ["stale completion accepted" as const]),
      ...(foreign.includes("refused") ? [] : ["foreign completion accepted" as const])
    ]
  },
  mutants: {
    "by its number alone": {
      breaks: [{
        within: "awa.close_evicted",
        find: "where x.batch_id = a.batch and x.member = a.member and x.nonce = a.nonce",
        replace: "where x.batch_id = a.batch and x.member = a.member"
      }],
      shows: ["stale completion accepted"]
    },
    "for anybody": {
      breaks: [{
        within: "awa.close_evicted",
        find: "and x.owner = any (p_owners) and x.entry is not null",
        replace: "and x.entry is not null"
      }, {
        within: "awa.close_attempts",
        find:
          "if v_leases and exists (select from awa.leases x where x.owner = any (p_owners) and x.entry is not null) then",
        replace: "if true then"
      }],
      shows: ["foreign completion accepted"]
    }
  }
})

rule(server, "eviction decides under the owner's lock", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const worker = await world.session()
    const start = later(new Date(), -minutes(10))
    ledger.waiting(await enqueue(session, 1, start))
    const attempts = ledger.claimed(await claim(session, { now: start, owner: alice }))
    await openNext(session)
    await Slots.count(session, 0)
    await begin(worker)
    await complete(worker, attempts)
    const evicting = Slots.evict(session, 0, minutes(1))
    await world.waitsOrEnds(session, evicting)
    await commit(worker)
    await evicting
    // What has ended is not to be done again.
    const now = new Date()
    await rescue(session, 0, later(now, hours(1)))
    await promote(session, later(now, hours(2)))
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "without it": {
      breaks: [{
        within: "awa.evict",
        find: "v_owners := awa.hold_free_owners(v_owners);",
        replace: ""
      }],
      shows: ["job doubled"]
    }
  }
})
