import { quietServer } from "./support/host.js"
import { begin, change, claim, commit, drain, enqueue, Ledger, transaction } from "./support/queue.js"
import { type Finding, rule, type Scenario } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import type { Session, World } from "./support/world.js"

// Which ids a cursor leaves pending is up to the test alone.
const server = quietServer()

/** Puts a waiting job at the end of another lane. */
const move = (session: Session, ids: ReadonlyArray<string>) => change(session, ids, { op: "priority", priority: 1 })

const unless = (made: boolean): ReadonlyArray<Finding> => made ? [] : ["change not made"]

/** Stops a claim that has taken its jobs, with the lanes locked and nothing visible to others. */
const gateInClaim: Patch = {
  within: "awa.pending_xids",
  find: "if pg_snapshot_xmin(p_snapshot) = p_own then",
  replace: "perform test_gate.pass(); if pg_snapshot_xmin(p_snapshot) = p_own then"
}

/** Somebody changes jobs while a claim that takes them is under way. */
const duringClaim =
  (act: (session: Session, ids: ReadonlyArray<string>) => Promise<unknown>, due = true): Scenario => async (world) => {
    const ledger = new Ledger()
    const claimer = await world.gatedSession()
    const other = await world.session()
    const ids = await enqueue(other, 3)
    if (due) ledger.waiting(ids)
    await world.closeGate()
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    const acting = act(other, ids)
    await world.waitsOrEnds(other, acting)
    await world.openGate()
    ledger.claimed(await claiming)
    await acting
    await drain(claimer, ledger)
    return ledger.findings()
  }

const withoutSecondLook: Patch = {
  within: "awa.change_jobs",
  find: "if v_keys <> '{}' then",
  replace: "if false then"
}

const withoutLock: ReadonlyArray<Patch> = [
  {
    within: "awa.hold_lanes",
    find: "perform pg_advisory_xact_lock(awa.lock_class('lane'), k.key)",
    replace: "perform k.key"
  },
  {
    within: "awa.change_jobs",
    find: "where pg_try_advisory_xact_lock(awa.lock_class('lane'), k.key)",
    replace: ""
  }
]

const changes = {
  priority: { op: "priority", priority: 1 },
  queue: { op: "queue", queue: "other" },
  payload: { op: "payload", args: 1 }
}

for (const [name, to] of Object.entries(changes)) {
  rule(server, `a job is moved (${name}) or claimed, not both`, {
    gates: [gateInClaim],
    scenario: async (world) => {
      const findings = await duringClaim((session, ids) => change(session, ids, to))(world)
      const claimer = await world.session()
      const rest = await claim(claimer, { queue: "other" })
      return rest.length > 0 ? [...findings, "job doubled"] : findings
    },
    mutants: {
      "it is decided from the cursor before the lock": { breaks: [withoutSecondLook], shows: ["job doubled"] },
      "tombstones are written without the lane's lock": { breaks: withoutLock, shows: ["job doubled"] }
    }
  })
}

/** A job is cancelled by a tombstone: whoever claims it too has a job that is over. */
const cancelledTwice =
  (act: (session: Session, ids: ReadonlyArray<string>) => Promise<unknown>): Scenario => async (world) => {
    await duringClaim(act)(world)
    const session = await world.session()
    const [row] = await session.query<{ twice: boolean }>(
      `select exists (select from awa.tombstones t join awa.claim_batches b on b.lane_id = t.lane_id
        and (t.pos = any (b.late) or t.pos - b.lo = any (b.offsets))) as twice`
    )
    return row?.twice === true ? ["job doubled"] : []
  }

for (const to of [{ op: "cancel" }, { op: "delete" }, { op: "run_at", run_at: "2999-01-01" }]) {
  rule(server, `a job is given up (${to.op}) or claimed, not both`, {
    gates: [gateInClaim],
    scenario: cancelledTwice((session, ids) => change(session, ids, to)),
    mutants: {
      "it is decided from the cursor before the lock": { breaks: [withoutSecondLook], shows: ["job doubled"] },
      "tombstones are written without the lane's lock": { breaks: withoutLock, shows: ["job doubled"] }
    }
  })
}

/** Finds a job that is moved a second time, by somebody who looked before the first move. */
rule(server, "a job that moved while the lock was waited for is not moved from where it was", {
  gates: [{
    within: "awa.give_up",
    find: "-- Marked beyond",
    replace: "perform test_gate.pass(); -- Marked beyond"
  }],
  scenario: async (world) => {
    const ledger = new Ledger()
    const first = await world.gatedSession()
    const second = await world.session()
    const ids = await enqueue(second, 2)
    ledger.waiting(ids)
    await world.closeGate()
    const moving = move(first, ids)
    await world.waitsOrEnds(first, moving)
    const again = change(second, ids, { op: "priority", priority: 3 })
    await world.waitsOrEnds(second, again)
    await world.openGate()
    await moving
    const made = await again.then(() => true, () => false)
    await drain(second, ledger)
    return [...ledger.findings(), ...unless(made)]
  },
  mutants: {
    // The index of the tombstones is the last to notice.
    "the place of the first look is believed": { breaks: [withoutSecondLook], shows: ["change not made"] }
  }
})

rule(server, "a claimed row is not given up", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const ids = await enqueue(session, 3)
    ledger.waiting(ids)
    ledger.claimed(await claim(session, { limit: 2 }))
    const verdicts = await move(session, ids)
    await drain(session, ledger)
    return [...ledger.findings(), ...unless(verdicts[ids[2] ?? ""] === "changed")]
  },
  mutants: {
    "the cursor is not asked": {
      breaks: [{
        within: "awa.is_consumed",
        find: "select coalesce(p_pos <= p_cursor_pos, false)",
        replace: "select false"
      }],
      shows: ["job doubled"]
    }
  }
})

/** A job whose transaction was open when the cursor passed its position. */
const passed = async (world: World, ledger: Ledger, jobs = 2) => {
  const slow = await transaction(world)
  const session = await world.session()
  const late = await enqueue(slow, jobs)
  ledger.waiting(late)
  ledger.waiting(await enqueue(session))
  ledger.claimed(await claim(session))
  await commit(slow)
  return { late, session }
}

rule(server, "a job that the cursor has passed and not taken can be changed", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const { late, session } = await passed(world, ledger)
    const verdicts = await move(session, late)
    await drain(session, ledger)
    return [...ledger.findings(), ...unless(late.every((id) => verdicts[id] === "changed"))]
  },
  mutants: {
    "what is pending does not count": {
      breaks: [{
        within: "awa.is_consumed",
        find: "p_pending_xids is null or not exists (",
        replace: "true or not exists ("
      }],
      shows: ["change not made"]
    },
    "a claim takes what was given up late": {
      breaks: [{
        within: "awa.late_entries",
        find: "if exists (select from awa.tombstoned_lanes k where k.lane_id = p_lane_id) then",
        replace: "if false then"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a late job that was taken is not given up", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const { late, session } = await passed(world, ledger, 3)
    ledger.claimed(await claim(session, { limit: 2 }))
    await move(session, late)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "the position up to which they were taken does not count": {
      breaks: [{
        within: "awa.is_consumed",
        find: "where p.xid = p_xid and p_pos > p.after",
        replace: "where p.xid = p_xid"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a claim of one lane leaves out what was given up", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const ids = await enqueue(session, 5)
    ledger.waiting(ids)
    await change(session, [ids[0] ?? "", ids[3] ?? ""], changes.payload)
    await drain(session, ledger, { limit: 2 })
    return ledger.findings()
  },
  mutants: {
    "the lane's mark is not looked at": {
      breaks: [{
        within: "awa.lane_ahead",
        find: "v_last_tombstone > lane_ahead.cursor_pos",
        replace: "false"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a claim leaves out what was given up", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const ids = await enqueue(session, 5)
    ledger.waiting(ids)
    await move(session, [ids[0] ?? "", ids[3] ?? ""])
    await drain(session, ledger, { limit: 2 })
    return ledger.findings()
  },
  mutants: {
    "the lane's mark is not looked at": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "k.last_pos > coalesce(c.cursor_pos, 0)",
        replace: "k.last_pos < 0"
      }],
      shows: ["job doubled"]
    },
    "the mark ends before the row": {
      breaks: [{
        within: "awa.give_up",
        find: "awa.mark_tombstones(h.lane_id, h.pos, s.last_value)",
        replace: "awa.mark_tombstones(h.lane_id, h.pos, 1)"
      }],
      shows: ["job doubled"]
    },
    "tombstones are not looked at": {
      breaks: [{ within: "awa.live_entries", find: "and t.is_dead is null", replace: "" }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a parked row is claimed once while claims still look at the slot it left", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    ledger.waiting(await enqueue(session, 3))
    await session.query("select awa.relocate(slot, lane_id, 2, now()) from awa.ready_entries limit 1")
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "its lane is not marked": {
      breaks: [{
        within: "awa.relocate",
        find: "perform awa.mark_tombstones(p_lane_id, v_last, v_last);",
        replace: ""
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a limit counts what can be taken", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const ids = await enqueue(session, 8)
    await change(session, ids.slice(0, 6), { op: "cancel" })
    ledger.waiting(ids.slice(6))
    ledger.claimed(await claim(session, { limit: 2 }))
    return ledger.findings()
  },
  mutants: {
    "it counts what was given up": {
      breaks: [{
        within: "awa.live_entries",
        find:
          "where awa.is_within(r.slot, p_ranges) and r.lane_id = p_lane_id and r.pos > p_cursor_pos and t.is_dead is null order by r.pos limit p_limit",
        replace:
          "where r.lane_id = p_lane_id and t.is_dead is null and r.pos in (select o.pos from awa.ready_entries o where o.lane_id = p_lane_id and o.pos > p_cursor_pos order by o.pos limit p_limit)"
      }],
      shows: ["job lost"]
    }
  }
})

/** More tombstones than a claim wants to see twice, with one job among them; another lane fills the claim. */
rule(server, "a cursor passes tombstones, but no job", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow))
    const ids = await enqueue(session, 700)
    const [kept = ""] = ids.slice(400, 401)
    ledger.waiting([kept])
    await change(session, ids.filter((id) => id !== kept), { op: "cancel" })
    ledger.waiting(await enqueue(session, [{ priority: 1 }]))
    ledger.claimed(await claim(session, { limit: 1 }))
    await commit(slow)
    await drain(session, ledger)
    const [row] = await session.query<{ passed: boolean }>(
      "select exists (select from awa.claim_batches where n = 0 and cursor_pos >= 400) as passed"
    )
    return [...ledger.findings(), ...unless(row?.passed === true)]
  },
  mutants: {
    "it passes all tombstones": {
      breaks: [{ within: "awa.tombstoned_head", find: "and (v_first is null or t.pos < v_first)", replace: "" }],
      shows: ["job lost"]
    },
    "it stays where it is": {
      breaks: [{ within: "awa.claim_lanes", find: "and h.n > 256", replace: "and h.n > 10000" }],
      shows: ["change not made"]
    }
  }
})

rule(server, "a probe sees what a claim can take", {
  scenario: async (world) => {
    const session = await world.session()
    const probe = async () => (await session.query("select awa.probe(array['default']) as queue")).length > 0
    const findings: Array<Finding> = []
    const expect = async (found: boolean) => {
      if ((await probe()) !== found) findings.push("probe refuted")
    }
    const ids = await enqueue(session, 2)
    await change(session, ids.slice(0, 1), { op: "cancel" })
    await expect(true)
    await change(session, ids, { op: "cancel" })
    await expect(false)
    const { late } = await passed(world, new Ledger())
    await change(session, late, { op: "delete" })
    await expect(false)
    // So many that a claim is to pass them; then they are done with.
    await change(session, await enqueue(session, 300), { op: "cancel" })
    await expect(true)
    await claim(session)
    await expect(false)
    return findings
  },
  mutants: {
    "it does not look at tombstones": {
      breaks: [{ within: "awa.probe", find: "when k.lane_id is not null", replace: "when false" }],
      shows: ["probe refuted"]
    }
  }
})

const request = (session: Session, ids: ReadonlyArray<string>) =>
  session.query("select awa.request_cancel($1, null, null)", ids)

const leaderApplies = (session: Session) => session.query("select awa.apply_cancel_requests(100, null)")

rule(server, "a claim cancels what it was asked to before it hands it out", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    const caller = await world.session()
    const ids = await enqueue(session, 5)
    await begin(caller)
    await request(caller, ids.slice(1, 3))
    // The caller's transaction is open: nobody waits for it, and nothing has been asked for.
    ledger.waiting(ids.slice(0, 2))
    ledger.claimed(await claim(session, { limit: 2 }))
    await commit(caller)
    ledger.waiting(ids.slice(3))
    await drain(session, ledger)
    await leaderApplies(session)
    const [row] = await session.query<{ cancelled: number; left: number }>(
      `select (select count(*)::int from awa.jobs where state = 'cancelled') as cancelled,
        (select count(*)::int from awa.cancel_requests) as left`
    )
    return [...ledger.findings(), ...unless(row?.cancelled === 2 && row.left === 0)]
  },
  mutants: {
    "requests are left to the leader": {
      breaks: [{
        within: "awa.claim",
        find: "and pg_relation_size('awa.cancel_requests') > 0",
        replace: "and false"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a request is honoured once by claim and leader at the same time", {
  gates: [gateInClaim],
  scenario: async (world) => {
    const session = await world.session()
    return duringClaim(async (other, ids) => {
      await request(session, ids)
      await leaderApplies(other)
    }, false)(world)
  },
  mutants: {
    "requests are left to the leader": {
      breaks: [{
        within: "awa.claim",
        find: "and pg_relation_size('awa.cancel_requests') > 0",
        replace: "and false"
      }],
      shows: ["job doubled"]
    }
  }
})
