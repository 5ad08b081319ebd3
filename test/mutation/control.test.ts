import { sharedServer } from "./support/host.js"
import { claim, commit, drain, enqueue, hours, later, Ledger, promote } from "./support/queue.js"
import { type Finding, rule } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import type { Session, World } from "./support/world.js"

const server = sharedServer()

/** When a claim has its snapshot. */
const afterSnapshot: Patch = {
  within: "awa.lane_ahead",
  find: "seen := pg_current_snapshot();",
  replace: "seen := test_gate.pass(pg_current_snapshot());"
}

const pause = (session: Session): Promise<unknown> => session.query("select awa.pause_queue('default', null, null)")

const claims = async (claiming: Promise<ReadonlyArray<unknown>>): Promise<ReadonlyArray<Finding>> =>
  (await claiming).length === 0 ? [] : ["claimed while paused"]

/** A claim holds the lane and has read what it decides upon, and only then somebody pauses the queue. */
const pausedDuringClaim = async (world: World): Promise<ReadonlyArray<Finding>> => {
  const session = await world.session()
  const claimer = await world.gatedSession()
  const operator = await world.session()
  await enqueue(session)
  await world.closeGate()
  const claiming = claim(claimer)
  await world.waitsOrEnds(claimer, claiming)
  let claimed = false
  const answered = claiming.then((jobs) => {
    claimed = true
    return jobs
  })
  const pausing = pause(operator)
  await world.waitsOrEnds(operator, pausing)
  // A pause that has returned already says that nothing more is claimed.
  const returned = await Promise.race([pausing.then(() => true), new Promise<false>((go) => setImmediate(go, false))])
  await world.openGate()
  const slipped = returned && !claimed ? await claims(answered) : []
  await Promise.all([answered, pausing])
  await enqueue(session)
  return [...slipped, ...(await claims(claim(session)))]
}

rule(server, "when a pause has returned, no claim slips through", {
  gates: [afterSnapshot],
  scenario: pausedDuringClaim,
  mutants: {
    "it does not wait for the lanes": {
      breaks: [{
        within: "awa.pause_queue",
        find: "v_lanes constant bigint[] := awa.lock_queue(p_queue, '{}');",
        replace: "v_lanes constant bigint[] := '{}';"
      }],
      shows: ["claimed while paused"]
    },
    "a session remembers the queue as it was": {
      breaks: [{
        within: "awa.look_up_layout",
        find: "v_layout.lanes := null;",
        replace: "null;"
      }],
      shows: ["claimed while paused"]
    }
  }
})

/** A claim waits for the lane, which somebody has locked in order to pause its queue. */
const pausedBeforeClaim = (jobs: ReadonlyArray<object>) => async (world: World): Promise<ReadonlyArray<Finding>> => {
  const session = await world.session()
  const claimer = await world.session()
  const operator = await world.session()
  await enqueue(session, jobs)
  await operator.query("begin")
  await pause(operator)
  const claiming = claim(claimer)
  await world.waitsOrEnds(claimer, claiming)
  await commit(operator)
  return claims(claiming)
}

rule(server, "a claim decides about the pause when it holds the lane", {
  scenario: pausedBeforeClaim([{}]),
  mutants: {
    "it does not": {
      breaks: [{
        within: "awa.lane_ahead",
        find: "if not is_current or not v_is_known and awa.is_paused(p_queue) then",
        replace: "if not is_current then"
      }],
      shows: ["claimed while paused"]
    },
    "before it has the lock": {
      breaks: [
        {
          within: "awa.claim",
          find: "v_expecting boolean := false;",
          replace: "v_expecting boolean := false; v_paused constant boolean := awa.is_paused(p_queue);"
        },
        {
          within: "awa.claim",
          find: "v_ahead := awa.lane_ahead(p_queue,",
          replace: "v_ahead := awa.lane_ahead(case when v_paused then p_queue else '' end,"
        }
      ],
      shows: ["claimed while paused"]
    }
  }
})

rule(server, "and one of several lanes when it holds them", {
  scenario: pausedBeforeClaim([{ priority: 1 }, { priority: 2 }]),
  mutants: {
    "it does not": {
      breaks: [{ within: "awa.claim_lanes", find: "where not awa.is_paused(p_queue)", replace: "" }],
      shows: ["claimed while paused"]
    }
  }
})

/** A lane comes into being while its queue is being paused, and a claim that saw no pause yet takes from it. */
const pausedWithNewLane = async (world: World): Promise<ReadonlyArray<Finding>> => {
  const session = await world.session()
  const claimer = await world.gatedSession()
  const operator = await world.session()
  await operator.query("begin")
  const [paused] = await operator.query<{ lanes: string }>(
    "select awa.pause_queue('default', null, null)::text as lanes"
  )
  await enqueue(session)
  await world.closeGate()
  const claiming = claim(claimer)
  await world.waitsOrEnds(claimer, claiming)
  await commit(operator)
  const awaiting = operator.query("select awa.await_claims('default', $1::bigint[])", paused?.lanes)
  await world.waitsOrEnds(operator, awaiting)
  const returned = await Promise.race([awaiting.then(() => true), new Promise<false>((go) => setImmediate(go, false))])
  await world.openGate()
  const slipped = returned ? await claims(claiming) : []
  await Promise.all([claiming, awaiting])
  await enqueue(session)
  return [...slipped, ...(await claims(claim(session)))]
}

rule(server, "nor one that takes from a lane the pause did not know", {
  gates: [afterSnapshot],
  scenario: pausedWithNewLane,
  mutants: {
    "nobody looks for new lanes": {
      breaks: [{
        within: "awa.await_claims",
        find: "perform awa.lock_queue(p_queue, p_except);",
        replace: ""
      }],
      shows: ["claimed while paused"]
    }
  }
})

const dead = async (session: Session): Promise<string> => {
  const [job] = await enqueue(session)
  const [attempt] = await claim(session)
  await session.query(
    "select awa.complete($1, '[]', $2, null, '{\"enabled\": true}')",
    "00000000-0000-4000-8000-00000000000a",
    JSON.stringify([{ ...attempt, act: "fail", error: "broken" }])
  )
  return job ?? ""
}

rule(server, "the run lease of a job never falls, not even when it comes back from the dead", {
  scenario: async (world) => {
    const session = await world.session()
    const ledger = new Ledger()
    const job = await dead(session)
    await session.query("select awa.dlq_retry($1, null, null, null, null)", job)
    ledger.waiting([job], 2)
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "it begins anew": {
      breaks: [{
        within: "awa.revived",
        find: "v_job.run_lease := p_entry.run_lease;",
        replace: "v_job.run_lease := 0;"
      }],
      shows: ["job doubled", "job lost"]
    },
    "it is lost on the way there": {
      breaks: [{
        within: "awa.place",
        find:
          "date_trunc('milliseconds', p_now), j.dlq_reason, p_now, j.run_at, j.created_at, j.attempted_at, j.run_lease,",
        replace: "date_trunc('milliseconds', p_now), j.dlq_reason, p_now, j.run_at, j.created_at, j.attempted_at, 0,"
      }],
      shows: ["job doubled", "job lost"]
    }
  }
})

rule(server, "two who let a dead letter run again make one job of it", {
  scenario: async (world) => {
    const session = await world.session()
    const other = await world.session()
    const ledger = new Ledger()
    const job = await dead(session)
    ledger.waiting([job], 2)
    await session.query("begin")
    await session.query("select awa.dlq_retry($1, null, null, null, null)", job)
    const chunk = other.query(
      "select awa.dlq_retry_chunk(null, null, null, null, null, now() + interval '1 h', 10, null)"
    )
    await world.waitsOrEnds(other, chunk)
    await commit(session)
    await chunk
    await drain(session, ledger)
    return ledger.findings()
  },
  mutants: {
    "without a lock": {
      breaks: [{ within: "awa.dlq_chunk", find: "for update;", replace: ";" }],
      shows: ["job doubled"]
    }
  }
})

rule(server, "jobs of a paused queue stay where they are, the others are promoted", {
  scenario: async (world) => {
    const session = await world.session()
    const now = new Date()
    await enqueue(session, [{ queue: "default", delay_ms: 1 }, { queue: "other", delay_ms: 1 }], now)
    await pause(session)
    await promote(session, later(now, hours(1)))
    const [left] = await session.query<{ n: number }>("select count(*)::int as n from awa.deferred_jobs")
    return left?.n === 1 ? [] : ["promoted while paused"]
  },
  mutants: {
    "all are": {
      breaks: [{ within: "awa.lock_due", find: "where not awa.is_paused(q.name)", replace: "" }],
      shows: ["promoted while paused"]
    }
  }
})

/** A claim takes jobs while somebody empties the queue. */
rule(server, "what a claim takes while its queue is drained is not cancelled", {
  gates: [afterSnapshot],
  scenario: async (world) => {
    const session = await world.session()
    const claimer = await world.gatedSession()
    const operator = await world.session()
    const ledger = new Ledger()
    await enqueue(session, 3)
    await world.closeGate()
    const claiming = claim(claimer, { limit: 2 })
    await world.waitsOrEnds(claimer, claiming)
    const draining = operator.query("select * from awa.drain_ready('default', null, null, 100, null)")
    await world.waitsOrEnds(operator, draining)
    await world.openGate()
    const jobs = (await claiming).map(({ job }) => job)
    await draining
    const both = await session.query("select from awa.finished_jobs where job_id = any ($1::bigint[])", jobs)
    await drain(session, ledger)
    return both.length > 0 ? ["job doubled"] : ledger.findings()
  },
  mutants: {
    "without the lanes' locks": {
      breaks: [{
        within: "awa.drain_ready",
        find: "awa.lock_queue(p_queue, '{}')",
        replace: "array(select distinct l.lane_id from awa.lanes l where l.queue = p_queue)"
      }],
      shows: ["job doubled"]
    },
    "the rows are only written down as cancelled": {
      breaks: [{
        within: "awa.drain_ready",
        find: "perform awa.give_up(",
        replace: "perform ("
      }],
      shows: ["job doubled"]
    }
  }
})
