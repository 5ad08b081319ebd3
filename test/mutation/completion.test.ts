import { sharedServer } from "./support/host.js"
import {
  type Attempt,
  begin,
  bob,
  claim,
  commit,
  complete,
  crashAndRescue,
  enqueue,
  heartbeat,
  Ledger,
  rollback
} from "./support/queue.js"
import { rule } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import type { Session, World } from "./support/world.js"

const server = sharedServer()

const inClosing = (find: string, replace: string): Patch => ({ within: "awa.close_attempts", find, replace })

/** The statement for one success. */
const inSuccess = (find: string, replace: string): Patch => ({ within: "awa.close_success", find, replace })

const first = (attempts: ReadonlyArray<Attempt>): Attempt => {
  const [attempt] = attempts
  if (attempt === undefined) throw new Error("nothing was claimed")
  return attempt
}

/** Claims `jobs` new jobs, plays `act`, and loses the worker: what was not completed must run again. */
const thenCrash = (
  jobs: number,
  act: (session: Session, attempts: ReadonlyArray<Attempt>) => Promise<ReadonlyArray<Attempt>>
) =>
async (world: World) => {
  const ledger = new Ledger()
  const session = await world.session()
  ledger.waiting(await enqueue(session, jobs))
  const attempts = ledger.claimed(await claim(session))
  const completed = await act(session, attempts)
  ledger.waiting(attempts.filter((attempt) => !completed.includes(attempt)).map(({ job }) => job), 2)
  await crashAndRescue(session, ledger)
  return ledger.findings()
}

/** A completion that no batch answers for, sent before a batch of that number exists. */
rule(server, "a closure belongs to a batch", {
  scenario: async (world) => {
    const session = await world.session()
    await complete(session, [{ slot: 0, batch: "1", nonce: 5, member: 1 }])
    return thenCrash(1, async () => [])(world)
  },
  mutants: {
    "completion without the join": {
      breaks: [
        inClosing("select a.batch, a.nonce, b.n", "select a.batch, a.nonce, 32767::smallint as n"),
        inClosing(
          `join awa.claim_batches b on b.slot = v_slot and b.batch_id = a.batch and b.nonce = a.nonce
          where b.owner = any (p_owners)`,
          ""
        )
      ],
      shows: ["job lost"]
    }
  }
})

rule(server, "a closure belongs to a member of its batch", {
  scenario: thenCrash(1, async (session, attempts) => {
    await complete(session, [{ ...first(attempts), member: 2 }])
    return []
  }),
  mutants: {
    "any number": {
      breaks: [inClosing("when c.n is null or (a.member between 1 and c.n) is not true then", "when c.n is null then")],
      shows: ["job lost"]
    },
    "any number of a success": {
      breaks: [inSuccess("v_member between 1 and b.n", "true")],
      shows: ["job lost"]
    }
  }
})

rule(server, "an attempt counts once in a flush", {
  scenario: thenCrash(2, async (session, attempts) => {
    const done = first(attempts)
    await complete(session, [done, done])
    return [done]
  }),
  mutants: {
    "as often as it is named": {
      breaks: [inClosing("select distinct on (a.batch, a.nonce, a.member) a.*", "select a.*")],
      shows: ["job lost"]
    }
  }
})

rule(server, "only its owner ends an attempt", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session)
    const rejected = await complete(session, await claim(session), { owner: bob })
    return rejected.length === 0 ? ["foreign completion accepted"] : []
  },
  mutants: {
    "any worker": {
      breaks: [inClosing("where b.owner = any (p_owners)", "")],
      shows: ["foreign completion accepted"]
    },
    "any worker's success": {
      breaks: [inSuccess("and b.owner = p_owner", "")],
      shows: ["foreign completion accepted"]
    }
  }
})

/** After a crash of the server the number of a batch may come back. */
rule(server, "a batch is told by its nonce", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session)
    const { nonce, ...attempt } = first(await claim(session))
    const rejected = await complete(session, [{ ...attempt, nonce: nonce + 1 }])
    return rejected.length === 0 ? ["stale completion accepted"] : []
  },
  mutants: {
    "by its number": {
      breaks: [inClosing("b.batch_id = a.batch and b.nonce = a.nonce", "b.batch_id = a.batch")],
      shows: ["stale completion accepted"]
    },
    "by its number, of a success": {
      breaks: [inSuccess("and b.nonce = v_nonce", "")],
      shows: ["stale completion accepted"]
    }
  }
})

rule(server, "a lease ends with its attempt", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session)
    const attempts = await claim(session)
    await heartbeat(session, attempts)
    await complete(session, attempts)
    const [left] = await session.query<{ leases: number }>("select count(*)::int as leases from awa.leases")
    return left?.leases === 0 ? [] : ["lease of a closed attempt"]
  },
  mutants: {
    "it stays": {
      breaks: [inClosing("and x.member = any (k.members)", "and false")],
      shows: ["lease of a closed attempt"]
    },
    "nobody asks for one": {
      breaks: [inSuccess("and awa.may_have_leases(p_owner)", "and false")],
      shows: ["lease of a closed attempt"]
    }
  }
})

/** A worker's second attempt shows a sign of life, after its first had ended without one. */
rule(server, "who has found no leases looks again when there may be some", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session, 2)
    const attempts = await claim(session)
    await complete(session, attempts.slice(0, 1))
    await heartbeat(await world.session(), attempts.slice(1))
    await complete(session, attempts.slice(1))
    const [left] = await session.query<{ leases: number }>("select count(*)::int as leases from awa.leases")
    return left?.leases === 0 ? [] : ["lease of a closed attempt"]
  },
  mutants: {
    "it never does": {
      breaks: [{ within: "awa.heartbeat", find: "perform nextval('awa.lease_marks');", replace: "" }],
      shows: ["lease of a closed attempt"]
    },
    "what was found once is believed": {
      breaks: [{
        within: "awa.may_have_leases",
        find: "if starts_with(v_note, v_mark) then",
        replace: "if v_note is not null then"
      }],
      shows: ["lease of a closed attempt"]
    }
  }
})

/** A claim cancels a job that it was asked to, while a sign of life for another attempt is being written. */
rule(server, "who looks for leases to remember it holds the owner's lock", {
  scenario: async (world) => {
    const session = await world.session()
    const heart = await world.session()
    const [first, second] = await enqueue(session, 2)
    const attempts = await claim(session, { limit: 1 })
    await session.query("select awa.request_cancel(array[$1::bigint], null, null)", second)
    await begin(heart)
    await heartbeat(heart, attempts)
    const claiming = claim(session)
    await world.waitsOrEnds(session, claiming)
    await commit(heart)
    await claiming
    await complete(session, attempts)
    const left = await session.query("select from awa.leases where job_id = $1", first)
    return left.length === 0 ? [] : ["lease of a closed attempt"]
  },
  mutants: {
    "it does not": {
      breaks: [{
        within: "awa.without_cancelled",
        find: "perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));",
        replace: ""
      }],
      shows: ["lease of a closed attempt"]
    }
  }
})

const timesClosed = async (session: Session): Promise<number | undefined> => {
  const [closed] = await session.query<{ times: number }>("select sum(n)::int as times from awa.closures")
  return closed?.times
}

rule(server, "a member has a number", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session)
    const attempt = first(await claim(session))
    const rejected = await complete(session, [{ ...attempt, member: null as never }])
    return rejected.length === 0 ? ["stale completion accepted"] : []
  },
  mutants: {
    "or none": {
      breaks: [inClosing("(a.member between 1 and c.n) is not true", "a.member not between 1 and c.n")],
      shows: ["stale completion accepted"]
    }
  }
})

rule(server, "every success of a flush is counted", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session, 2)
    await complete(session, await claim(session))
    return await timesClosed(session) === 2 ? [] : ["job lost"]
  },
  mutants: {
    "several taken for one": {
      breaks: [inSuccess("if v_token -> 'members' -> 1 is not null then", "if false then")],
      shows: ["job lost"]
    }
  }
})

/** The same flush again, in a transaction of the given kind, while the first one is under way. */
const twoFlushes = (isolation: string) => async (world: World) => {
  const session = await world.session()
  const again = await world.session()
  await enqueue(session)
  const attempts = await claim(session)
  await begin(session)
  await complete(session, attempts)
  await again.query(`begin isolation level ${isolation}`)
  const flush = complete(again, attempts).catch((error: unknown) => error)
  await world.waitsOrEnds(again, flush)
  await commit(session)
  const rejected = await flush
  await (rejected instanceof Error ? rollback(again) : commit(again))
  return await timesClosed(session) === 1 ? [] : ["accepted twice" as const]
}

rule(server, "one flush of an owner at a time", {
  scenario: twoFlushes("read committed"),
  mutants: {
    "no owner lock": {
      breaks: [{
        within: "awa.complete",
        find: "perform pg_advisory_xact_lock(awa.lock_class('owner'), awa.lock_key(p_owner::text));",
        replace: ""
      }],
      shows: ["accepted twice"]
    }
  }
})

rule(server, "a flush sees what the last holder of the owner lock committed", {
  scenario: twoFlushes("repeatable read"),
  mutants: {
    "any isolation level": {
      breaks: [{ within: "awa.complete", find: "perform awa.assert_read_committed();", replace: "" }],
      shows: ["accepted twice"]
    }
  }
})

/** The answer to a flush was lost, and the worker sends it again. */
rule(server, "a flush that is sent again is told apart from a stale one", {
  scenario: async (world) => {
    const session = await world.session()
    await enqueue(session)
    const attempts = await claim(session)
    await complete(session, attempts)
    switch (String(await complete(session, attempts))) {
      case "repeated":
        return []
      case "refused":
        return ["accepted completion refused"]
      default:
        return ["accepted twice"]
    }
  },
  mutants: {
    "both are refused": {
      breaks: [inClosing("when k.act = a.act and k.act not in ('rescue', 'evict', 'abort') then 'repeated'", "")],
      shows: ["accepted completion refused"]
    },
    "it counts again": {
      breaks: [inClosing("when k.act is null then 'accepted'", "when true then 'accepted'")],
      shows: ["accepted twice"]
    },
    "a success counts again": {
      breaks: [inSuccess("and v_member = any (k.members)", "and false")],
      shows: ["accepted twice"]
    }
  }
})

rule(server, "the end of an attempt that somebody else ended is refused", {
  scenario: async (world) => {
    const session = await world.session()
    const ledger = new Ledger()
    await enqueue(session)
    const attempts = await claim(session)
    await crashAndRescue(session, ledger)
    const verdicts = await complete(session, attempts)
    return String(verdicts) === "refused" ? [] : ["stale completion accepted"]
  },
  mutants: {
    "it is taken for a repetition": {
      breaks: [
        inClosing(
          "when k.act = a.act and k.act not in ('rescue', 'evict', 'abort') then 'repeated'",
          "else 'repeated'"
        ),
        inClosing(
          "else 'repeated' else 'refused'",
          "else 'repeated'"
        )
      ],
      shows: ["stale completion accepted"]
    }
  }
})
