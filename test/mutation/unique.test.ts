import { sharedServer } from "./support/host.js"
import { begin, claim, commit, complete, type End, hours, later, minutes, promote, rescue } from "./support/queue.js"
import { type Finding, rule, type Scenario } from "./support/rule.js"
import type { Session } from "./support/world.js"

const server = sharedServer()

/** A key of 16 equal bytes, given as two digits. */
const keyOf = (byte: string): string => byte.repeat(16)

const live = "11101001"

interface Answer {
  readonly ids: string | null
  readonly duplicates: ReadonlyArray<readonly [number, string | null, number | null]> | null
}

/** Enqueues a job for each key, each by itself or all or none. */
const enqueue = async (
  session: Session,
  keys: ReadonlyArray<string>,
  { each = true, now, states = live, ...job }: {
    readonly each?: boolean
    readonly now?: Date
    readonly states?: string
    readonly run_at?: Date
  } = {}
): Promise<Answer> => {
  const [answer] = await session.query<Answer & { readonly now: Date }>(
    "select ids, duplicates, now from awa.enqueue_unique($1, $2, $3)",
    JSON.stringify(keys.map((byte) => ({ kind: "k", unique: { key: keyOf(byte), states }, ...job }))),
    each,
    now
  )
  return answer ?? { ids: null, duplicates: null }
}

const holder = async (session: Session, byte: string): Promise<string | null> => {
  const [row] = await session.query<{ id: string | null }>(
    "select awa.unique_holder(decode($1, 'hex')) as id",
    keyOf(byte)
  )
  return row?.id ?? null
}

const unlessFree = async (session: Session, byte: string): Promise<ReadonlyArray<Finding>> =>
  await holder(session, byte) === null ? [] : ["key leaked"]

/** A job that was claimed ends by an act that lets its key go. */
const endedBy = (act: End["act"]): Scenario => async (world) => {
  const session = await world.session()
  await enqueue(session, ["aa", "bb"])
  const [first] = await claim(session, { limit: 1 })
  if (first === undefined) throw new Error("nothing was claimed")
  await complete(session, [], { ended: [{ ...first, act }] })
  return [
    ...(await unlessFree(session, "aa")),
    ...(await holder(session, "bb") === null ? ["key lost" as const] : [])
  ]
}

rule(server, "a key is let go with the success of its job", {
  scenario: endedBy("complete"),
  mutants: {
    "the success is only closed": {
      breaks: [{
        within: "awa.close_attempts",
        find: "perform awa.release_completed(v_slot, p_ended, v_accepted);",
        replace: "null;"
      }],
      shows: ["key leaked"]
    },
    "the keys of the whole batch go": {
      breaks: [{
        within: "awa.release_completed",
        find: "where r.slot = p_slot and r.lane_id = b.lane_id and r.pos = awa.member_pos(b, e.member) limit 1",
        replace: "where r.slot = p_slot and r.lane_id = b.lane_id"
      }],
      shows: ["key lost"]
    }
  }
})

rule(server, "a key is let go with the failure of its job", {
  scenario: endedBy("fail"),
  mutants: {
    "the failure is only written": {
      breaks: [{
        within: "awa.settle_unique",
        find: "perform awa.release_unique(array_agg(j.job_id), j.state)",
        replace: "perform count(*)"
      }],
      shows: ["key leaked"]
    }
  }
})

/** Two calls for the same two keys, in opposite orders: the first stops between its keys. */
rule(server, "keys are taken in byte order", {
  gates: [{
    within: "awa.take_keys",
    find: "select w.unique_key, w.job_id, w.states",
    replace:
      "select case when w.ordinal > 1 then test_gate.pass(w.unique_key) else w.unique_key end, w.job_id, w.states"
  }],
  scenario: async (world) => {
    const one = await world.gatedSession()
    const other = await world.session()
    const failure = (error: unknown) => error
    await world.closeGate()
    const first = enqueue(one, ["aa", "bb"]).catch(failure)
    await world.waitsOrEnds(one, first)
    const second = enqueue(other, ["bb", "aa"]).catch(failure)
    await world.waitsOrEnds(other, second)
    await world.openGate()
    const answers = await Promise.all([first, second])
    return answers.some((answer) => answer instanceof Error) ? ["deadlock"] : []
  },
  mutants: {
    "in the order of the call": {
      breaks: [{ within: "awa.take_keys", find: "order by w.unique_key, w.ordinal", replace: "order by w.ordinal" }],
      shows: ["deadlock"]
    }
  }
})

/** The holder's job ends after the key was found taken, and before it is asked who holds it. */
rule(server, "a key that was let go meanwhile is tried again", {
  gates: [{
    within: "awa.take_keys",
    find: "v_holders := awa.holders_of(p_wanted);",
    replace: "perform test_gate.pass(); v_holders := awa.holders_of(p_wanted);"
  }],
  scenario: async (world) => {
    const worker = await world.session()
    const producer = await world.gatedSession()
    await enqueue(worker, ["aa"])
    const [attempt] = await claim(worker)
    await world.closeGate()
    const enqueueing = enqueue(producer, ["aa"]).catch((error: unknown) => error)
    await world.waitsOrEnds(producer, enqueueing)
    await complete(worker, [], { ended: [{ ...attempt!, act: "complete" }] })
    await world.openGate()
    const answer = await enqueueing
    if (answer instanceof Error) return ["enqueue failed"]
    return await holder(worker, "aa") === null ? ["key lost"] : []
  },
  mutants: {
    "the first look decides": {
      breaks: [{ within: "awa.take_keys", find: "for i in 1..4 loop", replace: "for i in 1..1 loop" }],
      shows: ["enqueue failed"]
    }
  }
})

/** A key is taken by somebody else after the call that wants all or none found all of its keys free. */
rule(server, "a call that is refused keeps no key", {
  gates: [{
    within: "awa.enqueue_unique",
    find: `where w.holder is not null or w.first < w.ordinal ) then
      v_holders := awa.take_keys(v_wanted);`,
    replace: `where w.holder is not null or w.first < w.ordinal ) then
      perform test_gate.pass(); v_holders := awa.take_keys(v_wanted);`
  }],
  scenario: async (world) => {
    const producer = await world.gatedSession()
    const other = await world.session()
    await world.closeGate()
    const enqueueing = enqueue(producer, ["aa", "bb"], { each: false })
    await world.waitsOrEnds(producer, enqueueing)
    await enqueue(other, ["bb"])
    await world.openGate()
    await enqueueing
    return unlessFree(other, "aa")
  },
  mutants: {
    "it keeps what it got": {
      breaks: [{ within: "awa.enqueue_unique", find: "perform awa.release_unique(v_ids);", replace: "" }],
      shows: ["key leaked"]
    }
  }
})

const stateOf = async (session: Session, id: string): Promise<string | undefined> => {
  const [row] = await session.query<{ state: string }>("select state from awa.jobs where id = $1", id)
  return row?.state
}

/** The first of two jobs has lost its key to a third when both come back. */
const comesBack =
  (how: (session: Session, now: Date) => Promise<unknown>, scheduled: boolean): Scenario => async (world) => {
    const session = await world.session()
    const start = new Date()
    const options = scheduled ? { now: start, run_at: later(start, minutes(1)) } : { now: start }
    const { ids } = await enqueue(session, ["aa", "bb"], options)
    const [older = "", other = ""] = ids?.split(",") ?? []
    if (!scheduled) await claim(session, { now: start })
    await session.query("delete from awa.unique_claims where job_id = $1", older)
    const { ids: newer } = await enqueue(session, ["aa"], { now: start, run_at: later(start, hours(24)) })
    await how(session, later(start, minutes(5))).catch(() => undefined)
    const states = [await stateOf(session, older), await stateOf(session, other)]
    return [
      ...(states[0] === "cancelled" ? [] : ["key held by a stranger" as const]),
      ...(["available", "retryable"].includes(states[1] ?? "") ? [] : ["job stopped by another" as const]),
      ...(await holder(session, "aa") === newer ? [] : ["key lost" as const])
    ]
  }

const placing = "p_jobs := awa.settle_unique(p_jobs, p_now);"

rule(server, "a job that is promoted and finds its key taken is cancelled, and the others are promoted", {
  scenario: comesBack(promote, true),
  mutants: {
    "it is not looked at": {
      breaks: [{ within: "awa.place", find: placing, replace: "null;" }],
      shows: ["key held by a stranger"]
    },
    "it is an error": {
      breaks: [{
        within: "awa.settle_unique",
        find: "v_job := v_jobs[v_index];",
        replace: `v_job := v_jobs[v_index];
          insert into awa.unique_claims
          select awa.unique_key(v_job.envelope), v_job.job_id, awa.unique_states(v_job.envelope)
          where v_job.job_id not in (select job_id from awa.unique_claims);`
      }],
      shows: ["job stopped by another", "key held by a stranger"]
    }
  }
})

rule(server, "a job that is rescued and finds its key taken is cancelled, and the others are rescued", {
  scenario: comesBack((session, now) => rescue(session, minutes(1), now), false),
  mutants: {
    "it is not looked at": {
      breaks: [{ within: "awa.place", find: placing, replace: "null;" }],
      shows: ["key held by a stranger"]
    }
  }
})

/** A failed job that still holds its key, by a mistake, is let run again while the sweep comes by. */
rule(server, "the sweep does not take the key of a job that comes back", {
  scenario: async (world) => {
    const operator = await world.session()
    const sweeper = await world.session()
    await enqueue(operator, ["aa"])
    const [attempt] = await claim(operator)
    await complete(operator, [], { ended: [{ ...attempt!, act: "fail" }] })
    await operator.query(
      "insert into awa.unique_claims select decode($1, 'hex'), $2, $3::bit(8)",
      keyOf("aa"),
      attempt!.job,
      live
    )
    await begin(operator)
    await operator.query(`select awa.place(array_agg(
        (job_id, 'available', run_at, created_at, attempted_at, run_lease, priority, shard, 0, max_attempts, queue, kind,
          args, envelope, null)::awa.successor
      ), clock_timestamp()) from awa.finished_jobs`)
    await operator.query("delete from awa.finished_jobs")
    const sweeping = sweeper.query("select awa.sweep_unique(null, 100)")
    await world.waitsOrEnds(sweeper, sweeping)
    await commit(operator)
    await sweeping
    return await holder(operator, "aa") === attempt!.job ? [] : ["key lost"]
  },
  mutants: {
    "it looks at what it has not locked": {
      breaks: [{ within: "awa.sweep_unique", find: "for update skip locked", replace: "" }],
      shows: ["key lost"]
    },
    "who comes back does not lock what it holds": {
      breaks: [{
        within: "awa.settle_unique",
        find: "order by u.unique_key for update of u",
        replace: "order by u.unique_key"
      }],
      shows: ["key lost"]
    }
  }
})

/** A job whose success was told by a client that does not know of keys, beside jobs that wait, run and come again. */
rule(server, "the sweep finds the keys of jobs that ended, and no others", {
  scenario: async (world) => {
    const session = await world.session()
    const start = new Date()
    await enqueue(session, ["11", "22", "33", "44"], { now: start })
    const [unnoticed, running, retried, returned] = await claim(session, { now: start })
    await complete(session, [unnoticed!], {
      now: start,
      ended: [{ ...retried!, act: "retry", delay_ms: hours(1) }, { ...returned!, act: "return" }]
    })
    await enqueue(session, ["55"], { now: start })
    await enqueue(session, ["66"], { now: start, run_at: later(start, hours(1)) })
    await session.query("select awa.sweep_unique(null, 100)")
    const held: Array<string | null> = []
    for (const byte of ["22", "33", "44", "55", "66"]) held.push(await holder(session, byte))
    return [
      ...(await unlessFree(session, "11")),
      ...(held.includes(null) || held[0] !== running!.job ? ["key lost" as const] : [])
    ]
  },
  mutants: {
    "it does not know deferred jobs": {
      breaks: [{
        within: "awa.is_claim_due",
        find: "select from awa.deferred_jobs d where d.job_id = p_claim.job_id",
        replace: "select where false"
      }],
      shows: ["key lost"]
    },
    "it does not know jobs that came back": {
      breaks: [{
        within: "awa.is_claim_due",
        find: "where j.job_id = p_claim.job_id and j.job_id <> j.pos and",
        replace: "where false and"
      }],
      shows: ["key lost"]
    },
    "it does not know jobs that wait or run": {
      breaks: [{
        within: "awa.is_claim_due",
        find: "on j.lane_id = l.lane_id and j.pos = p_claim.job_id",
        replace: "on false"
      }],
      shows: ["key lost"]
    },
    "it takes a success for a job that holds its key": {
      breaks: [{
        within: "awa.is_claim_due",
        find: "and j.pos = p_claim.job_id where awa.holds_key(p_claim.states, j.state)",
        replace: "and j.pos = p_claim.job_id"
      }],
      shows: ["key leaked"]
    }
  }
})

/** As `live`, and completed and failed. */
const toTheEnd = "11111101"

rule(server, "a key is let go when its job is forgotten", {
  scenario: async (world) => {
    const session = await world.session()
    const start = new Date()
    await enqueue(session, ["aa"], { now: start, states: toTheEnd })
    const [attempt] = await claim(session, { now: start })
    await complete(session, [], { now: start, ended: [{ ...attempt!, act: "fail" }] })
    const early = await holder(session, "aa")
    await session.query("select awa.expire($1, $1, $1, 100, $2)", hours(72), later(start, hours(73)))
    return [...(early === null ? ["key lost" as const] : []), ...(await unlessFree(session, "aa"))]
  },
  mutants: {
    "it goes with its state alone": {
      breaks: [{ within: "awa.expire", find: "if v_holders is not null then", replace: "if false then" }],
      shows: ["key leaked"]
    },
    "it goes before": {
      breaks: [
        {
          within: "awa.settle_unique",
          find: "where j.envelope ? 'unique' and not awa.holds_key(awa.unique_states(j.envelope), j.state)",
          replace: "where j.envelope ? 'unique'"
        },
        { within: "awa.release_unique", find: "or not awa.holds_key(u.states, p_state)", replace: "or true" }
      ],
      shows: ["key lost"]
    }
  }
})

/** A slot is forgotten when one of its jobs has succeeded, and others have gone elsewhere. */
rule(server, "the keys of successes are let go with their slot, and no others", {
  scenario: async (world) => {
    const session = await world.session()
    const start = new Date()
    await enqueue(session, ["11", "22", "33"], { now: start, states: toTheEnd })
    const [done, retried, failed] = await claim(session, { now: start })
    await complete(session, [], {
      now: start,
      ended: [
        { ...done!, act: "complete" },
        { ...retried!, act: "retry", delay_ms: hours(1) },
        { ...failed!, act: "fail" }
      ]
    })
    await session.query("select awa.release_slot(0::smallint)")
    const lost = await holder(session, "22") === null || await holder(session, "33") === null
    return [...(await unlessFree(session, "11")), ...(lost ? ["key lost" as const] : [])]
  },
  mutants: {
    "those of deferred jobs, too": {
      breaks: [{
        within: "awa.release_slot",
        find: "and not exists (select from awa.deferred_jobs d where d.job_id = u.job_id)",
        replace: ""
      }],
      shows: ["key lost"]
    },
    "those of jobs that failed, too": {
      breaks: [{
        within: "awa.release_slot",
        find: "and not exists (select from awa.finished_jobs f where f.job_id = u.job_id)",
        replace: ""
      }],
      shows: ["key lost"]
    }
  }
})
