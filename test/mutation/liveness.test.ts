import { sharedServer } from "./support/host.js"
import {
  type Attempt,
  begin,
  claim,
  commit,
  complete,
  enqueue,
  heartbeat,
  later,
  minutes,
  rescue,
  rollback
} from "./support/queue.js"
import { type Finding, rule, type Scenario } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import type { Session, World } from "./support/world.js"

const server = sharedServer()

/** An attempt claimed at `now`. */
const attemptAt = async (session: Session, now: Date): Promise<ReadonlyArray<Attempt>> => {
  await enqueue(session, 1, now)
  return claim(session, { now })
}

/** A sign of life is being written when rescue, in a transaction of the given kind, comes by and finds none yet. */
const beatUnderRescue = (isolation: string): Scenario => async (world) => {
  const worker = await world.session()
  const rescuer = await world.session()
  const start = new Date()
  const attempts = await attemptAt(worker, start)
  await begin(worker)
  await heartbeat(worker, attempts, later(start, minutes(3)))
  await rescuer.query(`begin isolation level ${isolation}`)
  const rescuing = rescue(rescuer, minutes(2), later(start, minutes(4))).catch((error: unknown) => error)
  await world.waitsOrEnds(rescuer, rescuing)
  await commit(worker)
  const rescued = await rescuing
  await (rescued instanceof Error ? rollback(rescuer) : commit(rescuer))
  return Array.isArray(rescued) && rescued.length > 0 ? ["live attempt rescued"] : []
}

const lockOwners = "v_held := awa.hold_free_owners(v_owners);"

rule(server, "rescue decides under the owners' locks", {
  scenario: beatUnderRescue("read committed"),
  mutants: {
    "it locks what it found before": {
      breaks: [
        { within: "awa.rescue", find: lockOwners, replace: "v_held := v_owners;" },
        {
          within: "awa.rescue",
          find: "if v_ended is not null then",
          replace: `${lockOwners} if v_ended is not null then`
        }
      ],
      shows: ["live attempt rescued"]
    }
  }
})

rule(server, "rescue sees what the last holders of the owners' locks committed", {
  scenario: beatUnderRescue("repeatable read"),
  mutants: {
    "any isolation level": {
      breaks: [{ within: "awa.rescue", find: "perform awa.assert_read_committed();", replace: "" }],
      shows: ["live attempt rescued"]
    }
  }
})

rule(server, "a sign of life outlives the age of the claim", {
  scenario: async (world) => {
    const session = await world.session()
    const start = new Date()
    const attempts = await attemptAt(session, start)
    await heartbeat(session, attempts, later(start, minutes(3)))
    const rescued = await rescue(session, minutes(2), later(start, minutes(4)))
    return rescued.length > 0 ? ["live attempt rescued"] : []
  },
  mutants: {
    "the claim alone counts": {
      breaks: [{
        within: "awa.stale_attempts",
        find: "and not exists (select from awa.leases x where x.batch_id = a.batch_id and x.member = a.member)",
        replace: ""
      }],
      shows: ["live attempt rescued"]
    }
  }
})

const leases = async (session: Session): Promise<ReadonlyArray<Finding>> => {
  const found = await session.query("select from awa.leases")
  return found.length > 0 ? ["lease of a closed attempt"] : []
}

/** The sign of life of an attempt comes when the attempt has ended. */
const lateBeat: Scenario = async (world) => {
  const session = await world.session()
  const attempts = await attemptAt(session, new Date())
  await complete(session, attempts)
  const lost = await heartbeat(session, attempts)
  return [...(lost === 1 ? [] : ["lost attempt not reported" as const]), ...(await leases(session))]
}

/** It comes while the attempt ends. */
const beatUnderCompletion = async (world: World) => {
  const session = await world.session()
  const late = await world.session()
  const attempts = await attemptAt(session, new Date())
  await begin(session)
  await complete(session, attempts)
  const beating = heartbeat(late, attempts)
  await world.waitsOrEnds(late, beating)
  await commit(session)
  const lost = await beating
  return [...(lost === 1 ? [] : ["lost attempt not reported" as const]), ...(await leases(session))]
}

const inHeartbeat = (find: string): Patch => ({ within: "awa.heartbeat", find, replace: "" })

rule(server, "only an open attempt gets a lease", {
  scenario: lateBeat,
  mutants: {
    "any attempt": {
      breaks: [inHeartbeat(
        `and not exists (
          select from awa.closures k where k.slot = e.slot and k.batch_id = e.batch and e.member = any (k.members)
        )`
      )],
      shows: ["lost attempt not reported", "lease of a closed attempt"]
    }
  }
})

rule(server, "a lease is written under the owner's lock", {
  scenario: beatUnderCompletion,
  mutants: {
    "no lock": {
      breaks: [inHeartbeat("perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));")],
      shows: ["lost attempt not reported", "lease of a closed attempt"]
    }
  }
})
