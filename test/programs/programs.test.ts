import { FastCheck as fc } from "effect"
import { afterAll, describe, expect, it } from "vitest"
import { installation, type Patch } from "../mutation/support/shipped.js"
import type { Feature } from "./commands/index.js"
import { programs } from "./support/program.js"
import { type Host, makeHost } from "./support/real.js"

const hosts: Array<Host> = []
afterAll(() => Promise.all(hosts.map((host) => host.close())))

const on = (changes: ReadonlyArray<Patch>): Host => {
  const host = makeHost(installation(changes))
  hosts.push(host)
  return host
}

/** The same programs in every run; the long form, `npm run stress -- programs`, has others each time. */
const chosen = { seed: 5, numRuns: 16, unbiased: true }
const length = 100

describe("random programs", () => {
  it(
    "leave the real queue in the state of a simple one",
    () => fc.assert(programs(on([]), length), chosen),
    120_000
  )

  const mutants: Readonly<Record<string, Patch & { readonly features: ReadonlyArray<Feature> }>> = {
    "that never looks for late jobs": {
      features: [],
      within: "awa.late_entries",
      find: "and r.pos > f.after and r.pos <= p_cursor_pos",
      replace: "and false"
    },
    "that counts an attempt given back": {
      features: [],
      within: "awa.successor_of",
      find: "case when p_act in ('snooze', 'return') then",
      replace: "case when p_act = 'snooze' then"
    },
    "whose cancelled jobs still wait": {
      features: ["cancel"],
      within: "awa.change_jobs",
      find: "perform awa.give_up(",
      replace: "perform cardinality("
    },
    "whose claims hand out what is to be cancelled": {
      features: ["cancel"],
      within: "awa.claim",
      find: "claim.jobs := awa.without_cancelled(claim.jobs, p_owner, p_nonce, claim.claimed_at);",
      replace: "null;"
    },
    "whose moved jobs keep their place": {
      features: ["change"],
      within: "awa.changed",
      find: "v_job.queue := p_change ->> 'queue';",
      replace: "null;"
    },
    "that keeps the key of a job which was cancelled": {
      features: ["unique"],
      within: "awa.settle_unique",
      find: "perform awa.release_unique(array_agg(j.job_id), j.state)",
      replace: "perform awa.release_unique(null, j.state)"
    },
    "that keeps a dead letter which runs again": {
      features: ["deadLetters"],
      within: "awa.dlq_retry",
      find: "delete from awa.dlq_entries e where e.job_id = p_job_id;",
      replace: "null;"
    },
    "that retries a job whose key another has": {
      features: ["cancel", "unique"],
      within: "awa.key_conflicts",
      find: "if v_in_doubt or key_conflicts.holder is not null then",
      replace: "if false then"
    },
    "that claims from a paused queue": {
      features: ["queue"],
      within: "awa.is_paused",
      find: "return exists (",
      replace: "return false and exists ("
    }
  }
  for (const [name, { features, ...patch }] of Object.entries(mutants)) {
    it(`catch a queue ${name}`, async () => {
      const { failed } = await fc.check(programs(on([patch]), length, features), {
        ...chosen,
        numRuns: 300,
        endOnFailure: true
      })
      expect(failed).toBe(true)
    }, 120_000)
  }
})
