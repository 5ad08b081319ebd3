import { expect, it } from "vitest"
import { quietServer } from "./support/host.js"
import {
  claim,
  complete,
  drain,
  enqueue,
  enqueueAlike,
  enqueueOne,
  hours,
  later,
  Ledger,
  promote
} from "./support/queue.js"
import { rule, type Scenario } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import { type Session, withWorld } from "./support/world.js"

// `nextval` itself draws a transaction id when it writes WAL: once in 32 calls, and after every checkpoint.
const server = quietServer()

/** Stops a function after it has drawn its first position. */
const gateIn = (within: string): Patch => ({
  within,
  find: "nextval('awa.pos_seq')",
  replace: "test_gate.pass(nextval('awa.pos_seq'))"
})

/**
 * `write` puts a job into the queue and is stopped when it has a position. Meanwhile another job gets the next position
 * and is claimed, so that the lane's cursor passes the first one.
 */
const overtaken = (
  write: (session: Session, ledger: Ledger) => Promise<{ readonly job: () => Promise<unknown> }>
): Scenario =>
async (world) => {
  const ledger = new Ledger()
  const writer = await world.gatedSession()
  const other = await world.session()
  ledger.waiting(await enqueue(other))
  ledger.claimed(await claim(other))
  const { job } = await write(writer, ledger)
  await world.closeGate()
  const writing = job()
  await world.waitsOrEnds(writer, writing)
  ledger.waiting(await enqueue(other))
  ledger.claimed(await claim(other))
  await world.openGate()
  await writing
  await drain(other, ledger)
  return ledger.findings()
}

rule(server, "enqueue of one job draws its id before its position", {
  gates: [gateIn("awa.enqueue_one")],
  scenario: overtaken(async (session, ledger) => ({
    job: async () => ledger.waiting([await enqueueOne(session)])
  })),
  mutants: {
    "the id comes with the row": {
      breaks: [
        {
          within: "awa.enqueue_one",
          find: "case when pg_current_xact_id() is not null then",
          replace: "case when true then"
        }
      ],
      shows: ["job lost"]
    }
  }
})

const laneLookedUp = "else awa.plain_lane(p_kind, p_queue, p_priority, p_max_attempts, p_lane_id, p_queue_key, p_now)"

rule(server, "enqueue of one job refuses a lane that is not that of its queue and priority", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await enqueueOne(session, 3).then((id) => ledger.waiting([id]), () => undefined)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it goes into the one that is named": {
      breaks: [{ within: "awa.enqueue_one", find: laneLookedUp, replace: "else p_lane_id" }],
      shows: ["job lost"]
    }
  }
})

/** A first enqueue that is rolled back takes the lane's row with it; the second one in it has seen the lane. */
rule(server, "a session does not remember a lane that was rolled back", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await session.query("begin")
    await enqueueOne(session)
    await enqueueOne(session)
    await session.query("rollback")
    await session.query("begin")
    await session.query("savepoint s")
    await enqueueAlike(session, 2)
    await session.query("rollback to savepoint s")
    ledger.waiting([await enqueueOne(session)])
    await session.query("commit")
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it does, on its own": {
      breaks: [
        {
          within: "awa.enqueue_one",
          find: laneLookedUp,
          replace: `when coalesce(pg_sequence_last_value('awa.pos_seq'), 0) < 2 then ${
            laneLookedUp.slice("else ".length)
          } else p_lane_id`
        }
      ],
      shows: ["job lost"]
    }
  }
})

/** The session's settings are kept by PREPARE, whatever becomes of the transaction. */
rule(server, "a session does not remember a lane whose prepared transaction was rolled back", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    await session.query("begin")
    await session.query("set local awa.wakeup = 'off'")
    await enqueueOne(session)
    await session.query("reset all") // whatever that does away with
    await enqueueOne(session)
    await session.query("prepare transaction 'first'")
    await session.query("rollback prepared 'first'")
    ledger.waiting([await enqueueOne(session)])
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it does as soon as it has seen it": {
      breaks: [{
        within: "awa.plain_lanes",
        find: "and not awa.layout_changed()",
        replace: ""
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a session does not take a lane of a schema that is gone for one of the schema that followed", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const session = await world.session()
    for (let n = 0; n < 2; n++) await enqueueOne(session)
    // As after a schema was dropped and installed anew: no lane, and the table is another.
    await session.query("create table awa.fresh (like awa.lanes including all)")
    await session.query("drop table awa.lanes cascade")
    await session.query("alter table awa.fresh rename to lanes")
    await session.query("truncate awa.ready_entries")
    ledger.waiting([await enqueueOne(session)])
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "the note does not name the table": {
      breaks: [{ within: "awa.lane_note", find: "'awa.lanes'::regclass::oid, ' ', ", replace: "" }],
      shows: ["job lost"]
    }
  }
})

rule(server, "enqueue of jobs that are alike draws its id before their positions", {
  gates: [gateIn("awa.enqueue_alike")],
  scenario: overtaken(async (session, ledger) => ({
    job: async () => ledger.waiting(await enqueueAlike(session, 3))
  })),
  mutants: {
    "the id comes with the rows": {
      breaks: [
        { within: "awa.enqueue_alike", find: "constant xid8 := pg_current_xact_id();", replace: "xid8;" },
        { within: "awa.enqueue_alike", find: "p.pos, v_xid, p.pos", replace: "p.pos, pg_current_xact_id(), p.pos" }
      ],
      shows: ["job lost"]
    }
  }
})

rule(server, "enqueue of several jobs draws its id before their positions", {
  gates: [gateIn("awa.enqueue_many")],
  scenario: overtaken(async (session, ledger) => ({
    job: async () => ledger.waiting(await enqueue(session, 3))
  })),
  mutants: {
    "the id comes with the rows": {
      breaks: [
        {
          within: "awa.enqueue",
          find: "v_xid constant xid8 := pg_current_xact_id();",
          replace: "v_xid constant xid8;"
        },
        {
          within: "awa.enqueue_many",
          find: "v_slot, l.lane_id, p.pos, p_xid, p.pos",
          replace: "v_slot, l.lane_id, p.pos, pg_current_xact_id(), p.pos"
        }
      ],
      shows: ["job lost"]
    }
  }
})

/** `within` begins with drawing the position that `place` uses in the end. */
const positionFirst = (within: string, find: string): ReadonlyArray<Patch> => [
  {
    within,
    find,
    replace: `perform set_config('mutant.pos', test_gate.pass(nextval('awa.pos_seq'))::text, true); ${find}`
  },
  {
    within: "awa.place",
    find: "test_gate.pass(nextval('awa.pos_seq'))",
    replace: "current_setting('mutant.pos')::bigint"
  }
]

rule(server, "promotion draws its id before the positions", {
  gates: [gateIn("awa.place")],
  scenario: overtaken(async (session, ledger) => {
    const now = new Date()
    const jobs = await enqueue(session, [{ run_at: later(now, hours(1)).toISOString() }], now)
    return {
      job: async () => {
        await promote(session, later(now, hours(2)))
        ledger.waiting(jobs)
      }
    }
  }),
  mutants: {
    "positions come first": {
      breaks: positionFirst(
        "awa.lock_due",
        "if not exists (select from awa/*control*/.queues q where q.paused_at is not null) then"
      ),
      shows: ["job lost"]
    }
  }
})

rule(server, "the end of an attempt draws its id before its successor's position", {
  gates: [gateIn("awa.place")],
  scenario: overtaken(async (session, ledger) => {
    ledger.waiting(await enqueue(session))
    const attempts = ledger.claimed(await claim(session))
    return {
      job: async () => {
        await complete(session, [], { ended: attempts.map((token) => ({ ...token, act: "retry", delay_ms: 0 })) })
        ledger.waiting(attempts.map(({ job }) => job), 2)
      }
    }
  }),
  mutants: {
    "positions come first": {
      breaks: positionFirst("awa.complete", "if not awa.is_read_committed() then"),
      shows: ["job lost"]
    }
  }
})

/** An application writes to the log itself and leaves the position to the table. */
rule(server, "no column draws a position by default", {
  scenario: overtaken(async (session, ledger) => ({
    job: async () => {
      try {
        await session.query(`
          insert into awa.ready_entries (
            slot, lane_id, job_id, run_lease, run_at, created_at, attempt, max_attempts, kind, args
          ) values (0, awa.lane_id('default', 2, 0), 1000, 0, now(), now(), 0, 25, 'k', '1')`)
        ledger.waiting(["1000"])
      } catch (error) {
        expect(error).toMatchObject({ code: "23502", column: "pos" })
      }
    }
  })),
  mutants: {
    "the table does": {
      breaks: [{
        find: "create table awa.ready_entries ( lane_id bigint not null, pos bigint not null, xid xid8 not null,",
        replace: `create table awa.ready_entries (
          lane_id bigint not null,
          pos bigint not null default test_gate.pass(nextval('awa.pos_seq')),
          xid xid8 not null default pg_current_xact_id(),`
      }],
      shows: ["job lost"]
    }
  }
})

it("no default anywhere draws from a sequence", () =>
  server.withDatabase((url) =>
    withWorld(url, async (world) => {
      const session = await world.session()
      const found = await session.query(`
        select d.adrelid::regclass::text as relation from pg_attrdef d
        join pg_class c on c.oid = d.adrelid
        where c.relnamespace = 'awa'::regnamespace and pg_get_expr(d.adbin, d.adrelid) like '%nextval%'`)
      expect(found).toEqual([])
    })
  ))
