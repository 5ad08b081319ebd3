import { FastCheck as fc } from "effect"
import { afterAll, describe, expect, it } from "vitest"
import { installation, type Patch } from "../mutation/support/shipped.js"
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
const chosen = { seed: 7, numRuns: 12, unbiased: true }
const length = 100

describe("random programs", () => {
  it(
    "leave the real queue in the state of a simple one",
    () => fc.assert(programs(on([]), length), chosen),
    120_000
  )

  const mutants: Readonly<Record<string, Patch>> = {
    "that never looks for late jobs": {
      within: "awa.late_entries",
      find: "and r.pos > f.after and r.pos <= p_cursor_pos",
      replace: "and false"
    },
    "that counts an attempt given back": {
      within: "awa.successor_of",
      find: "case when p_act in ('snooze', 'return') then",
      replace: "case when p_act = 'snooze' then"
    }
  }
  for (const [name, patch] of Object.entries(mutants)) {
    it(`catch a queue ${name}`, async () => {
      const { failed } = await fc.check(programs(on([patch]), length), { ...chosen, endOnFailure: true })
      expect(failed).toBe(true)
    }, 120_000)
  }
})
