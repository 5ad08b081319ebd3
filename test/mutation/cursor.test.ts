import { expect } from "vitest"
import { quietServer } from "./support/host.js"
import {
  begin,
  claim,
  commit,
  complete,
  crashAndRescue,
  drain,
  enqueue,
  Ledger,
  rollback,
  transaction
} from "./support/queue.js"
import { rule } from "./support/rule.js"
import type { Session, World } from "./support/world.js"

// Which ids lie between a snapshot's xmax and the claim's own is up to the test alone.
const server = quietServer()

const sqlState = (error: unknown): unknown => error instanceof Error && "code" in error ? error.code : undefined

/** Claims; where the claim is refused as it stands, its transaction is rolled back and it is called on its own. */
const claimOrAgain = async (session: Session): ReturnType<typeof claim> => {
  try {
    return await claim(session)
  } catch (error) {
    if (!["AW001", "AW002", "AW004"].includes(String(sqlState(error)))) throw error
    await rollback(session)
    return claim(session)
  }
}

/** Two open transactions; the younger has position 1 and the older 2. The older one has ended, the younger has not. */
const youngerBelowOlder = async (world: World, ledger: Ledger): Promise<Session> => {
  const older = await transaction(world)
  const younger = await transaction(world)
  ledger.waiting(await enqueue(younger))
  ledger.waiting(await enqueue(older))
  await commit(older)
  return younger
}

rule(server, "ids from xmax up to the claim's own are pending", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const younger = await youngerBelowOlder(world, ledger)
    ledger.claimed(await claim(claimer))
    await commit(younger)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "only the snapshot's running transactions": {
      breaks: [{
        within: "awa.pending_xids",
        find: "union all select i::text::xid8 from generate_series(v_xmax, v_own - 1) i",
        replace: ""
      }],
      shows: ["job lost"]
    },
    "none is, where a claim is short": {
      breaks: [{
        within: "awa.claim",
        find: "v_pending_xids := nullif(",
        replace: "v_pending_xids := nullif('{}'::xid8[], '{}'); perform ("
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "the pending list belongs to the snapshot that was searched", {
  gates: [{
    within: "awa.pending_xids",
    find: "if pg_snapshot_xmin(p_snapshot) = p_own then",
    replace: "perform test_gate.pass(); if pg_snapshot_xmin(p_snapshot) = p_own then"
  }],
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.gatedSession()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow))
    ledger.waiting(await enqueue(await world.session()))
    await world.closeGate()
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    await commit(slow)
    await world.openGate()
    ledger.claimed(await claiming)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "a snapshot of its own": {
      breaks: [{
        within: "awa.pending_xids",
        find: "select x from pg_snapshot_xip(p_snapshot) x",
        replace: "select x from pg_snapshot_xip(pg_current_snapshot()) x"
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a claim has no transaction id before its snapshot", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await transaction(world)
    const younger = await youngerBelowOlder(world, ledger)
    ledger.claimed(await claimOrAgain(claimer))
    await commit(claimer)
    await commit(younger)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "a caller may have drawn one": {
      breaks: [{
        within: "awa.claim",
        find: "if pg_current_xact_id_if_assigned() is not null then",
        replace: "if false then"
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "a claim draws its transaction id under the lane lock", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const holder = await world.session()
    const claimer = await world.session()
    ledger.waiting(await enqueue(claimer))
    await begin(holder)
    ledger.claimed(await claim(holder))
    const claiming = claim(claimer)
    await world.waitsOrEnds(claimer, claiming)
    const younger = await youngerBelowOlder(world, ledger)
    await commit(holder)
    ledger.claimed(await claiming)
    await commit(younger)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it draws it first": {
      breaks: [{
        within: "awa.claim",
        find: "if pg_current_xact_id_if_assigned() is not null then",
        replace: "if pg_current_xact_id() is null then"
      }],
      shows: ["job lost"]
    }
  }
})

/** Jobs 1 to 5 of two transactions that ended after job 6 was claimed: 1 and 2 belong to the second. */
rule(server, "a transaction stays pending from the last position taken from it", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const first = await transaction(world)
    const second = await transaction(world)
    ledger.waiting(await enqueue(second, 2))
    ledger.waiting(await enqueue(first, 3))
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await commit(first)
    ledger.claimed(await claim(claimer, { limit: 2 }))
    await commit(second)
    ledger.claimed(await claim(claimer, { limit: 1 }))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "from the last position taken at all": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "greatest(f.after, t.last) as after",
        replace: "coalesce(t.last, f.after) as after"
      }],
      shows: ["job doubled"]
    },
    "from the beginning": {
      breaks: [{ within: "awa.claim_lanes", find: "greatest(f.after, t.last) as after", replace: "f.after as after" }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a transaction stays pending until all its jobs are taken", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow, 3))
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await commit(slow)
    ledger.claimed(await claim(claimer, { limit: 2 }))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it is dropped": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "where l.n >= p_limit or l.n > coalesce(t.n, 0)",
        replace: "where false"
      }],
      shows: ["job lost"]
    },
    "it is dropped when everything found was taken": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "where l.n >= p_limit or l.n > coalesce",
        replace: "where l.n > coalesce"
      }],
      shows: ["job lost"]
    }
  }
})

/** A claim of two takes a late job of the first priority, and of the second priority one of two late jobs. */
rule(server, "a transaction stays pending when another lane used up the limit", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow, [{ priority: 2 }, { priority: 3 }, { priority: 3 }]))
    ledger.waiting(await enqueue(claimer, [{ priority: 2 }, { priority: 3 }]))
    ledger.claimed(await claim(claimer))
    await commit(slow)
    ledger.claimed(await claim(claimer, { limit: 2 }))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it is dropped when the lane's own search was not cut off": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "where l.n >= p_limit or l.n > coalesce(t.n, 0)",
        replace: "where l.n > p_limit"
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "late jobs are those the cursor has passed", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    ledger.waiting(await enqueue(slow))
    await commit(slow)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "all jobs of the transaction": {
      breaks: [{
        within: "awa.late_entries",
        find: "and r.pos > f.after and r.pos <= p_cursor_pos",
        replace: "and r.pos > f.after"
      }],
      shows: ["job doubled"]
    }
  }
})

/** A slow transaction has ended since, and there is a new job, too. */
rule(server, "a short claim takes nothing while something is late", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow))
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await commit(slow)
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it takes what is new": {
      breaks: [{
        within: "awa.lane_ahead",
        find: "or v_xids is not null and exists (",
        replace: "or false and exists ("
      }],
      shows: ["job lost"]
    }
  }
})

rule(server, "the cursor of a lane never falls", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow))
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await commit(slow)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "late jobs put it back": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "greatest( l.cursor_pos, (select max(o.hi)",
        replace: "greatest( 0, (select max(o.hi)"
      }],
      shows: ["job doubled"]
    }
  }
})

/** Twenty transactions have ended since, one has not; a claim that finds nothing remembers that. */
rule(server, "a cursor that has only learned keeps what is pending", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const slow = await transaction(world)
    ledger.waiting(await enqueue(slow))
    const others = await Promise.all(Array.from({ length: 20 }, () => transaction(world)))
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await Promise.all(others.map(rollback))
    ledger.claimed(await claim(claimer))
    const [cursor] = await claimer.query<{ n: number }>(
      "select n from awa.claim_batches order by batch_id desc limit 1"
    )
    expect(cursor?.n).toBe(0)
    await commit(slow)
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "it forgets": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "nullif(p.xids || coalesce(k.xids, '{}'), '{}') as pending_xids",
        replace: "case when b.n > 0 then p.xids end as pending_xids"
      }],
      shows: ["job lost"]
    }
  }
})

/** Sixteen transactions have ended since, each with a job. */
rule(server, "a claim of nothing learns nothing", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const others = await Promise.all(Array.from({ length: 16 }, () => transaction(world)))
    for (const other of others) ledger.waiting(await enqueue(other))
    ledger.waiting(await enqueue(claimer))
    ledger.claimed(await claim(claimer))
    await Promise.all(others.map(commit))
    ledger.claimed(await claim(claimer, { limit: 0 }))
    await drain(claimer, ledger)
    return ledger.findings()
  },
  mutants: {
    "that what has ended left no rows": {
      breaks: [{ within: "awa.claim", find: "if p_limit = 0 then", replace: "if false then" }],
      shows: ["job lost"]
    }
  }
})

/** One claim is under way when another one starts. */
const twoClaims = (isolation: string) => async (world: World) => {
  const ledger = new Ledger()
  const first = await world.session()
  const second = await world.session()
  ledger.waiting(await enqueue(first, 4))
  await begin(first)
  ledger.claimed(await claim(first, { limit: 2 }))
  await second.query(`begin isolation level ${isolation}`)
  const claiming = claimOrAgain(second)
  await world.waitsOrEnds(second, claiming)
  await commit(first)
  ledger.claimed(await claiming)
  await commit(second)
  await drain(first, ledger)
  return ledger.findings()
}

rule(server, "one claim of a lane at a time", {
  scenario: twoClaims("read committed"),
  mutants: {
    "no lane lock": {
      breaks: [{
        within: "awa.claim",
        find: "perform pg_advisory_xact_lock(awa.lock_class('lane'), awa.lane_lock_key(v_lanes[1]));",
        replace: "null;"
      }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "a claim sees what the last holder of the lane lock committed", {
  scenario: twoClaims("repeatable read"),
  mutants: {
    "any isolation level": {
      breaks: [{ within: "awa.claim", find: "perform awa.assert_read_committed();", replace: "" }],
      shows: ["job doubled"]
    }
  }
})

/** The second job of the first lane is the oldest, as after a retry or an earlier `run_at`. */
rule(server, "a claim takes the first jobs of each lane", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const worker = await world.session()
    const [time] = await worker.query<{ now: Date }>("select now()")
    const ago = (hours: number) => new Date((time?.now.getTime() ?? 0) - hours * 3_600_000).toISOString()
    ledger.waiting(
      await enqueue(worker, [
        { priority: 1, run_at: ago(1) },
        { priority: 1, run_at: ago(3) },
        { priority: 2, run_at: ago(2) }
      ])
    )
    for (let round = 0; round < 3; round++) {
      await complete(worker, ledger.claimed(await claim(worker, { limit: 2 })))
    }
    await crashAndRescue(worker, ledger)
    return ledger.findings()
  },
  mutants: {
    "the oldest jobs": {
      breaks: [{
        within: "awa.claim_lanes",
        find: "window o as (order by w.key, w.pos)",
        replace: "window o as (order by w.body::jsonb -> 5)"
      }],
      shows: ["job lost"]
    }
  }
})

/** An import whose 300 exception blocks have ids above the snapshot's xmax is under way. */
rule(server, "a storm of subtransactions stays out of the cursor", {
  scenario: async (world) => {
    const ledger = new Ledger()
    const claimer = await world.session()
    const importer = await world.session()
    await importer.query("create table imported (n integer)")
    ledger.waiting(await enqueue(claimer))
    await begin(importer)
    await importer.query(`
      do $$ begin
        for i in 1..300 loop
          begin insert into imported values (i); exception when others then null; end;
        end loop;
      end $$`)
    ledger.waiting(await enqueue(importer))
    ledger.claimed(await claimOrAgain(claimer))
    const [cursor] = await claimer.query<{ pending: number }>(
      "select cardinality(pending_xids) as pending from awa.claim_batches order by batch_id desc limit 1"
    )
    await commit(importer)
    await drain(claimer, ledger)
    return [...(cursor?.pending === 1 ? [] : ["cursor explodes" as const]), ...ledger.findings()]
  },
  mutants: {
    "no bound": {
      breaks: [{ within: "awa.pending_xids", find: "if v_own - v_xmax > 256 then", replace: "if false then" }],
      shows: ["cursor explodes"]
    }
  }
})
