/** What sessions remember of the layout: slots, lanes, pauses, and whether there are tombstones or wishes to cancel. */
import { sharedServer } from "./support/host.js"
import { begin, claim, commit, complete, drain, enqueue, enqueueOne, Ledger } from "./support/queue.js"
import { type Finding, rule, type Scenario } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import * as Slots from "./support/slots.js"
import type { Session, World } from "./support/world.js"

const server = sharedServer()

const changeNotCounted: Patch = {
  within: "awa.layout_changes",
  find: "perform nextval('awa.layout_changes');",
  replace: ""
}

const changeNotLocked: Patch = {
  within: "awa.layout_changes",
  find: "perform pg_advisory_xact_lock_shared(awa.lock_class('layout'), 0);",
  replace: ""
}

const inLookUp = (find: string, replace: string): Patch => ({ within: "awa.look_up_layout", find, replace })

/** When a session that looks the layout up has read the lanes. */
const afterLanes = inLookUp(
  "v_layout.has_tombstones := exists (",
  "perform test_gate.pass(1::bigint); v_layout.has_tombstones := exists ("
)

/** Does at the end of the look-up what belongs to its beginning. */
const late = (statement: string): ReadonlyArray<Patch> => [
  inLookUp(statement, ""),
  inLookUp("if awa.is_paused(p_queue)", `${statement} if awa.is_paused(p_queue)`)
]

/** One job goes its way, and the session knows the layout. */
const learn = async (session: Session, ledger: Ledger): Promise<void> => {
  ledger.waiting(await enqueue(session))
  await complete(session, ledger.claimed(await claim(session)))
}

const openNext = async (session: Session): Promise<void> => {
  await Slots.rotate(session, 0)
  await Slots.publish(session)
}

rule(server, "a session sees a slot that was opened", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const session = await world.session()
    await learn(claimer, ledger)
    await openNext(session)
    ledger.waiting(await enqueue(session))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "the change is not counted": { breaks: [changeNotCounted], shows: ["job lost"] },
    "it does not compare": {
      breaks: [
        { within: "awa.claim", find: "v_layout.version = awa.layout_version() and", replace: "" },
        {
          within: "awa.lane_ahead",
          find: "coalesce(p_layout.version = awa.layout_version(), false)",
          replace: "true"
        }
      ],
      shows: ["job lost"]
    }
  }
})

/** Between the look at what it remembers and the lock of the lane. */
rule(server, "a claim that waited for its lane sees a slot that was opened meanwhile", {
  gates: [{
    within: "awa.enqueue_many",
    find: "nextval('awa.pos_seq')",
    replace: "case when test_gate.pass(1::bigint) is not null then nextval('awa.pos_seq') end"
  }],
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const session = await world.session()
    const holder = await world.session()
    const writer = await world.gatedSession()
    await learn(claimer, ledger)
    await begin(holder)
    await holder.query("select awa.hold_lanes(array[awa.lane_id('default', 2, 0)])")
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    await world.closeGate()
    const writing = enqueue(writer)
    await world.waitsOrEnds(writer, writing)
    await openNext(session)
    // The next slot gets the lower position, the slot that the claimer knows the higher one.
    ledger.waiting([await enqueueOne(session)])
    await world.openGate()
    ledger.waiting(await writing)
    await commit(holder)
    await complete(claimer, ledger.claimed(await claiming))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it trusts what it remembered": {
      breaks: [{
        within: "awa.lane_ahead",
        find: "coalesce(p_layout.version = awa.layout_version(), false)",
        replace: "true"
      }],
      shows: ["job lost"]
    },
    "it does not ask for the slots": {
      breaks: [{
        within: "awa.covers_slots",
        find: "where awa.is_within(a.slot, p_ranges) is not true",
        replace: "where false"
      }],
      shows: ["job lost"]
    }
  }
})

/** A lane comes into being in a transaction that is still open when a session looks the layout up. */
const laneUnderWay = async (world: World): Promise<ReadonlyArray<Finding>> => {
  const ledger = new Ledger()
  const claimer = await world.session()
  const producer = await world.session()
  ledger.waiting(await enqueue(producer))
  await begin(producer)
  ledger.waiting(await enqueue(producer, [{ priority: 1 }]))
  await complete(claimer, ledger.claimed(await claim(claimer)))
  await commit(producer)
  await drain(claimer, ledger)
  return ledger.findings()
}

rule(server, "a session remembers nothing while a lane comes into being", {
  scenario: laneUnderWay,
  mutants: {
    "it does": { breaks: [inLookUp("or not v_settled then", "then")], shows: ["job lost"] },
    "the change takes no lock": { breaks: [changeNotLocked], shows: ["job lost"] }
  }
})

/** The same, but the transaction ends while the session looks. */
rule(server, "a session asks whether the layout is being changed before it looks", {
  gates: [afterLanes],
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.gatedSession()
    const producer = await world.session()
    ledger.waiting(await enqueue(producer))
    await begin(producer)
    ledger.waiting(await enqueue(producer, [{ priority: 1 }]))
    await world.closeGate()
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    await commit(producer)
    await world.openGate()
    await complete(claimer, ledger.claimed(await claiming))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it asks afterwards": { breaks: late("v_settled := awa.layout_settled();"), shows: ["job lost"] }
  }
})

/** The change begins and ends while the session looks. */
rule(server, "a session reads the count of the changes before it looks", {
  gates: [afterLanes],
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.gatedSession()
    const producer = await world.session()
    ledger.waiting(await enqueue(producer))
    await world.closeGate()
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    ledger.waiting(await enqueue(producer, [{ priority: 1 }]))
    await world.openGate()
    await complete(claimer, ledger.claimed(await claiming))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it reads it afterwards": { breaks: late("v_layout.version := awa.layout_version();"), shows: ["job lost"] }
  }
})

/** As somebody does who knows the table and not the function. */
rule(server, "a session learns of a pause however it is made", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const operator = await world.session()
    await learn(claimer, ledger)
    await operator.query("insert into awa.queues (name) values ('default')")
    await learn(claimer, ledger)
    await begin(operator)
    await operator.query("update awa.queues set paused_at = now() where name = 'default'")
    await learn(claimer, ledger)
    await commit(operator)
    await enqueue(operator)
    return (await claim(claimer)).length > 0 ? ["claimed while paused"] : ledger.findings()
  },
  mutants: {
    "the change is not counted": { breaks: [changeNotCounted], shows: ["claimed while paused"] },
    "it remembers while it is made": {
      breaks: [inLookUp("or not v_settled then", "then")],
      shows: ["claimed while paused"]
    }
  }
})

/** Somebody does away with a waiting job after a session has learned that there is nothing of the kind. */
const cancelledBy = (text: string): Scenario => async (world) => {
  const ledger = new Ledger()
  const claimer = await world.session()
  const operator = await world.session()
  await learn(claimer, ledger)
  const [job] = await enqueue(operator)
  await operator.query(text, job)
  return (await claim(claimer)).length > 0 ? ["job doubled"] : ledger.findings()
}

rule(server, "a session learns that waiting jobs were cancelled", {
  scenario: cancelledBy("select awa.change_jobs(array[$1::bigint], '{\"op\": \"cancel\"}', null)"),
  mutants: {
    "the change is not counted": { breaks: [changeNotCounted], shows: ["job doubled"] },
    "it does not look for tombstones": {
      breaks: [inLookUp(
        "exists (select from awa.tombstoned_lanes k where k.lane_id = any (v_layout.lanes))",
        "false"
      )],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a session learns that jobs are to be cancelled", {
  scenario: cancelledBy("insert into awa.cancel_requests (job_id, requested_at) values ($1, now())"),
  mutants: {
    "the change is not counted": { breaks: [changeNotCounted], shows: ["job doubled"] },
    "it does not look for requests": {
      breaks: [inLookUp("exists (select from awa.cancel_requests)", "false")],
      shows: ["job doubled"]
    }
  }
})

/** The names of settings are hashes. */
rule(server, "a session does not take what it remembers of one queue for that of another", {
  scenario: async (world) => {
    const session = await world.session()
    const ledger = new Ledger()
    await learn(session, ledger)
    for (const queue of ["a", "default ", "a,\"(b)\"\\'"]) {
      ledger.waiting(await enqueue(session, [{ queue }]))
      await claim(session)
      await session.query(
        "select set_config('awa.queue_' || awa.layout_key($1), current_setting('awa.queue_' || awa.layout_key('default')), false)",
        queue
      )
      await complete(session, ledger.claimed(await claim(session, { queue })))
      await complete(session, ledger.claimed(await claim(session, { queue })))
    }
    return ledger.findings()
  },
  mutants: {
    "it does not look at the name": {
      breaks: [{ within: "awa.claim", find: "and v_layout.queue = p_queue", replace: "" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a session learns that the lanes are gone", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const producer = await world.session()
    for (let n = 0; n < 2; n++) ledger.waiting([await enqueueOne(producer)])
    await drain(producer, ledger)
    await (await world.session()).query("truncate awa.lanes")
    ledger.waiting([await enqueueOne(producer)])
    await drain(await world.session(), ledger)
    return ledger.findings()
  },
  mutants: { "the change is not counted": { breaks: [changeNotCounted], shows: ["job lost"] } }
})

rule(server, "a session learns of what is replicated", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const replica = await world.session()
    await learn(claimer, ledger)
    await replica.query("set session_replication_role = replica")
    await replica.query("insert into awa.queues (name, paused_at) values ('default', now())")
    await enqueue(replica)
    return (await claim(claimer)).length > 0 ? ["claimed while paused"] : ledger.findings()
  },
  mutants: { "the change is not counted": { breaks: [changeNotCounted], shows: ["claimed while paused"] } }
})

const setShards = (session: Session, shards: number) => session.query("select awa.set_shards('default', $1)", shards)

/** A claim of a queue with several shards looks for lanes after it knows the layout. */
rule(server, "a lane that a claim did not know has a priority, too", {
  gates: [{
    within: "awa.lock_lanes",
    find: "lock_lanes.expecting := false;",
    replace: "lock_lanes.expecting := false; perform test_gate.pass(1::bigint);"
  }],
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.gatedSession()
    const producer = await world.session()
    await setShards(producer, 2)
    ledger.waiting(await enqueue(producer, [{ priority: 3 }, { priority: 4 }, { priority: 3 }, { priority: 4 }]))
    await drain(claimer, ledger)
    await world.closeGate()
    const claiming = claim(claimer, { limit: 1 }).catch(() => [])
    await world.waitsOrEnds(claimer, claiming)
    ledger.waiting(await enqueue(producer, [{ priority: 1 }]))
    await world.openGate()
    await complete(claimer, ledger.claimed(await claiming))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it is looked for in what was known": {
      breaks: [{ within: "awa.claim", find: "if v_priority is null then", replace: "if false then" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a paused queue with several shards says nothing of jobs", {
  scenario: async (world) => {
    const session = await world.session()
    await setShards(session, 3)
    await enqueue(session, 2)
    await session.query("select awa.pause_queue('default', null, null)")
    const rows = await session.query(
      "select from awa.claim('default', 10, '00000000-0000-4000-8000-00000000000a', 1, null, true, null)"
    )
    return rows.length > 0 ? ["claimed while paused"] : []
  },
  mutants: {
    "it has lanes": {
      breaks: [inLookUp("v_layout.lanes := null;", "null;")],
      shows: ["claimed while paused"]
    }
  }
})
