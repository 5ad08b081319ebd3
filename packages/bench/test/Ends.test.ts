import { assert, describe, it } from "@effect/vitest"
import * as Ends from "../src/stress/Ends.js"

const line = (job: number, lease: number, at: number, state: Ends.Line["state"] = "completed"): Ends.Line => ({
  job: String(job),
  lease: String(lease),
  nonce: state === "completed" ? "7" : null,
  state,
  at
})

/** A job that was enqueued, ran and was completed at 10, in the program's record. */
const completed = (): Ends.Ends => {
  const ends = Ends.make()
  ends.committed([1n])
  ends.ran({ fence: "1.1.7", claimedAt: 5 })
  ends.acknowledged("1.1.7", "accepted")
  return ends
}

const fine: Ends.Verdict = {
  enqueued: 1,
  runs: 1,
  acknowledged: 1,
  ended: 1,
  revived: 0,
  lost: 0,
  duplicated: 0,
  phantoms: 0,
  disagreements: 0
}

describe("Ends", () => {
  it("finds nothing wrong when every job ended once", () => {
    assert.deepStrictEqual(completed().verdict([line(1, 1, 10)]), fine)
  })

  it("allows attempts that were taken away, answers that were repeated, and claims that a crash undid", () => {
    const ends = completed()
    ends.ran({ fence: "1.1.8", claimedAt: 3 })
    ends.ran({ fence: "1.2.9", claimedAt: 8 })
    ends.acknowledged("1.1.7", "repeated")
    assert.deepStrictEqual(ends.verdict([line(1, 1, 10)]), { ...fine, runs: 3 })
  })

  it("counts a job that never ended, and an answer the database does not know", () => {
    assert.deepStrictEqual(completed().verdict([]), { ...fine, ended: 0, lost: 1, disagreements: 1 })
  })

  it("counts a job that ended twice, unless it was revived in between", () => {
    const ends = completed()
    ends.ran({ fence: "1.2.7", claimedAt: 15 })
    assert.deepStrictEqual(
      ends.verdict([line(1, 1, 10), line(1, 2, 20)]),
      { ...fine, runs: 2, duplicated: 1 }
    )
    assert.deepStrictEqual(
      ends.verdict([line(1, 1, 10, "failed"), line(1, 1, 12, "revived"), line(1, 2, 20)]),
      { ...fine, runs: 2, revived: 1, disagreements: 1 }
    )
    assert.strictEqual(ends.verdict([line(1, 1, 10, "failed"), line(1, 1, 12, "revived")]).lost, 1)
  })

  it("counts an attempt that was accepted twice, and a run after the end", () => {
    const ends = completed()
    ends.acknowledged("1.1.7", "accepted")
    ends.ran({ fence: "1.2.7", claimedAt: 11 })
    assert.deepStrictEqual(ends.verdict([line(1, 1, 10)]), { ...fine, runs: 2, duplicated: 2 })
  })

  it("counts what was rolled back and ran, and what ended without a run", () => {
    const ends = completed()
    ends.rolledBack([2n])
    ends.ran({ fence: "2.1.7", claimedAt: 5 })
    assert.strictEqual(ends.verdict([line(1, 1, 10)]).phantoms, 1)
    assert.strictEqual(ends.verdict([line(1, 1, 10), line(3, 1, 10)]).disagreements, 1)
  })

  it("counts a job that was said to be cancelled and was not", () => {
    const ends = completed()
    ends.cancelled(1n)
    assert.strictEqual(ends.verdict([line(1, 1, 10)]).disagreements, 1)
  })

  it("takes an end for that of the attempt when the log had let go of it", () => {
    assert.deepStrictEqual(completed().verdict([{ ...line(1, 1, 10), nonce: null }]), fine)
    assert.strictEqual(completed().verdict([{ ...line(1, 1, 10), nonce: "8" }]).disagreements, 1)
  })
})
