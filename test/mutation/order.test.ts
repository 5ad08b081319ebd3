import { quietServer } from "./support/host.js"
import {
  alice,
  begin,
  claim,
  commit,
  complete,
  crashAndRescue,
  drain,
  enqueue,
  enqueueAlike,
  enqueueOne,
  later,
  Ledger,
  minutes,
  setShards
} from "./support/queue.js"
import { type Finding, rule, type Scenario } from "./support/rule.js"
import type { Session } from "./support/world.js"

const server = quietServer()

/** The lane of priority 4 begins with a young job; behind it is one that has waited so long that it counts 1. */
rule(server, "ageing takes the first jobs of each lane", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const worker = await world.session()
    const [time] = await worker.query<{ now: Date }>("select now()")
    const now = time?.now ?? new Date()
    const ago = (milliseconds: number) => later(now, -milliseconds)
    const enqueuedAgo = async (milliseconds: number, jobs: ReadonlyArray<object>) =>
      ledger.waiting(await enqueue(worker, jobs, ago(milliseconds)))
    await enqueuedAgo(0, [{ priority: 4 }])
    await enqueuedAgo(minutes(10), [{ priority: 4 }])
    await enqueuedAgo(0, [{ priority: 3 }])
    const options = { now, aging: minutes(1), limit: 2 }
    for (let round = 0; round < 3; round++) {
      await complete(worker, ledger.claimed(await claim(worker, options)))
    }
    await crashAndRescue(worker, ledger)
    return ledger.findings()
  },
  mutants: {
    "the jobs that count least": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "window o as (order by w.key, w.pos)",
        replace: "window o as (order by awa.aged_priority(w.priority, w.since, p_now, p_aging_ms), w.pos)"
      }],
      shows: ["job lost"]
    }
  }
})

/** The same with the jobs of a transaction that the lane's cursor has passed: the second of them has waited long. */
rule(server, "ageing takes the first late jobs of each lane", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const worker = await world.session()
    const [time] = await worker.query<{ now: Date }>("select now()")
    const now = time?.now ?? new Date()
    const long = later(now, -minutes(10))
    const slow = await world.session()
    await begin(slow)
    ledger.waiting(await enqueue(slow, [{ priority: 4 }], now))
    ledger.waiting(await enqueue(slow, [{ priority: 4 }], long))
    ledger.waiting(await enqueue(worker, [{ priority: 4 }], now))
    ledger.claimed(await claim(worker, { now }))
    await commit(slow)
    ledger.waiting(await enqueue(worker, [{ priority: 3 }], now))
    const options = { now, aging: minutes(1), limit: 2 }
    for (let round = 0; round < 3; round++) ledger.claimed(await claim(worker, options))
    await drain(worker, ledger)
    return ledger.findings()
  },
  mutants: {
    "the jobs that count least": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "window o as (order by w.key, w.pos)",
        replace: "window o as (order by awa.aged_priority(w.priority, w.since, p_now, p_aging_ms), w.pos)"
      }],
      shows: ["job lost"]
    }
  }
})

/** Two jobs of different shards. One claim is under way when another one starts. */
const twoShards = (prepare: (session: Session) => Promise<unknown>): Scenario => async (world) => {
  const ledger = new Ledger()
  const first = await world.session()
  const second = await world.session()
  await setShards(first, 2)
  await prepare(first)
  ledger.waiting(await enqueue(first, 2))
  await begin(first)
  ledger.claimed(await claim(first, { limit: 1 }))
  const claiming = claim(second, { limit: 1 })
  let waits = true
  claiming.finally(() => {
    waits = false
  })
  await world.waitsOrEnds(second, claiming)
  const findings: ReadonlyArray<Finding> = waits ? ["claimer waits"] : []
  await commit(first)
  ledger.claimed(await claiming)
  await drain(first, ledger)
  return [...findings, ...ledger.findings()]
}

const anyLane = "if pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(lock_lanes.lanes[1])) then"

rule(server, "small claims of a queue with several shards and one priority do not wait for each other", {
  scenario: twoShards(async () => {}),
  mutants: {
    "they take the same lane, whoever has it": {
      breaks: [{
        within: "awa.lock_lanes",
        find: anyLane,
        replace:
          "perform pg_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(lock_lanes.lanes[1])); if true then"
      }],
      shows: ["claimer waits"]
    },
    "they lock no lane": {
      breaks: [{ within: "awa.lock_lanes", find: anyLane, replace: "if true then" }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a claim that took any lane and found nothing says so", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await setShards(session, 2)
    for (const key of ["a", "customer-1"]) ledger.waiting(await enqueue(session, [{ ordering_key: key }]))
    ledger.claimed(await claim(session, { limit: 3 }))
    const [row] = await session.query<{ answers: number }>(
      "select count(*)::int as answers from awa.claim('default', 3, $1, 1, null, true, null)",
      alice
    )
    if (row?.answers === 1) await drain(session, ledger, { limit: 3 })
    return ledger.findings()
  },
  mutants: {
    "it does not": {
      breaks: [{
        within: "awa.claim",
        find: "if claim.jobs is not null or v_expecting then",
        replace: "if claim.jobs is not null then"
      }],
      shows: ["job lost"]
    },
    "it takes any lane again": {
      breaks: [{
        within: "awa.claim",
        find: "case when claim.jobs is null then 'on' else 'off' end",
        replace: "'off'"
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "claims of a queue with several shards do not wait for each other", {
  // Lanes of another priority, too: they look which have jobs.
  scenario: twoShards(async (session) => {
    await enqueue(session, [{ priority: 1 }, { priority: 1 }])
    await claim(session)
  }),
  mutants: {
    "they take the first lane, whoever has it": {
      breaks: [{
        within: "awa.lock_lanes",
        find: "if pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_head.lane_id)) then",
        replace:
          "perform pg_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_head.lane_id)); if true then"
      }],
      shows: ["claimer waits"]
    },
    "they lock no lane": {
      breaks: [{
        within: "awa.lock_lanes",
        find: "if pg_try_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_head.lane_id)) then",
        replace: "if true then"
      }],
      shows: ["job doubled"]
    },
    "they lock all lanes": {
      breaks: [{
        within: "awa.lock_lanes",
        find: "exit when v_n >= p_limit or v_head.n >= v_deep;",
        replace: ""
      }],
      shows: ["claimer waits"]
    }
  }
})

/** A claim that has looked at the only lane with jobs is under way when one more job comes, and its notification. */
rule(server, "a claim that finds all lanes taken waits for one", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const first = await world.session()
    const second = await world.session()
    await setShards(first, 2)
    ledger.waiting(await enqueue(first, [{ ordering_key: "a" }]))
    ledger.waiting(await enqueue(first, [{ ordering_key: "customer-1" }]))
    ledger.claimed(await claim(first))
    ledger.waiting(await enqueue(first, [{ ordering_key: "a" }]))
    await begin(first)
    ledger.claimed(await claim(first))
    ledger.waiting(await enqueue(second, [{ ordering_key: "a" }]))
    const claiming = claim(second)
    await world.waitsOrEnds(second, claiming)
    await commit(first)
    ledger.claimed(await claiming)
    return ledger.findings()
  },
  mutants: {
    "it comes back empty": {
      breaks: [{
        within: "awa.lock_lanes",
        find: "if lock_lanes.lanes is null and v_taken is not null then",
        replace: "if false then"
      }],
      shows: ["job lost"]
    }
  }
})

// What producers remember

const shardsUsed = async (session: Session): Promise<number> => {
  const [row] = await session.query<{ used: number }>(
    "select count(distinct lane_id)::int as used from awa.ready_entries where pos > (select max(pos) - 8 from awa.ready_entries)"
  )
  return row?.used ?? 0
}

/** Eight jobs, which spread over four shards. */
const spread = async (session: Session, ledger: Ledger): Promise<ReadonlyArray<Finding>> => {
  for (let n = 0; n < 8; n++) ledger.waiting([await enqueueOne(session)])
  const alone = await shardsUsed(session)
  ledger.waiting(await enqueueAlike(session, 8))
  return alone < 4 || await shardsUsed(session) < 4 ? ["shard unused"] : []
}

rule(server, "a session forgets what it remembers when the number of shards changes", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const producer = await world.session()
    const operator = await world.session()
    for (let n = 0; n < 3; n++) ledger.waiting([await enqueueOne(producer)])
    await setShards(operator, 4)
    const findings = await spread(producer, ledger)
    await setShards(operator, 1)
    for (let n = 0; n < 8; n++) ledger.waiting([await enqueueOne(producer)])
    const single = await shardsUsed(producer)
    await drain(operator, ledger)
    return [...findings, ...(single > 1 ? ["shard unused" as const] : []), ...ledger.findings()]
  },
  mutants: {
    "the change is not counted": {
      breaks: [{ within: "awa.layout_changes", find: "perform nextval('awa.layout_changes');", replace: "" }],
      shows: ["shard unused"]
    }
  }
})

/** The change is made, but not committed, when a session looks. */
rule(server, "a session remembers nothing while the number of shards changes", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const producer = await world.session()
    const operator = await world.session()
    for (let n = 0; n < 3; n++) ledger.waiting([await enqueueOne(producer)])
    await begin(operator)
    await setShards(operator, 4)
    for (let n = 0; n < 3; n++) ledger.waiting([await enqueueOne(producer)])
    await commit(operator)
    const findings = await spread(producer, ledger)
    await drain(operator, ledger)
    return [...findings, ...ledger.findings()]
  },
  mutants: {
    "it does": {
      breaks: [{ within: "awa.plain_lanes", find: "if v_settled", replace: "if true" }],
      shows: ["shard unused"]
    }
  }
})

rule(server, "a session remembers nothing of an old snapshot", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const producer = await world.session()
    const operator = await world.session()
    for (let n = 0; n < 3; n++) ledger.waiting([await enqueueOne(producer)])
    await producer.query("begin isolation level repeatable read")
    ledger.waiting([await enqueueOne(producer)])
    await setShards(operator, 4)
    for (let n = 0; n < 3; n++) ledger.waiting([await enqueueOne(producer)])
    await commit(producer)
    const findings = await spread(producer, ledger)
    await drain(operator, ledger)
    return [...findings, ...ledger.findings()]
  },
  mutants: {
    "it does": {
      breaks: [{
        within: "awa.plain_lanes",
        find: "and awa.is_read_committed()",
        replace: ""
      }],
      shows: ["shard unused"]
    }
  }
})
