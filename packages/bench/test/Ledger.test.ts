import { assert, describe, it } from "@effect/vitest"
import * as Ledger from "../src/stress/Ledger.js"

const enqueued = (id: bigint, calledAt: number, lane = "a"): Ledger.Enqueued => ({ id, lane, calledAt })
const claimed = (id: bigint, batch: bigint, lane = "a"): Ledger.Claimed => ({ id, lane, batch })
const nothing = { enqueued: 0, claimed: 0, lost: 0, duplicated: 0, phantoms: 0, orderViolations: 0 }

describe("Ledger", () => {
  it("finds nothing wrong when every job is claimed once and in order", () => {
    const ledger = Ledger.make()
    ledger.committed([enqueued(1n, 0), enqueued(2n, 0)], 1)
    ledger.committed([enqueued(3n, 2)], 3)
    ledger.claimed([claimed(1n, 7n), claimed(2n, 7n)])
    ledger.claimed([claimed(3n, 8n)])
    assert.deepStrictEqual(ledger.verdict(), { ...nothing, enqueued: 3, claimed: 3 })
  })

  it("counts lost, doubled and phantom jobs", () => {
    const ledger = Ledger.make()
    ledger.committed([enqueued(1n, 0), enqueued(2n, 0)], 1)
    ledger.claimed([claimed(1n, 7n), claimed(9n, 7n)])
    ledger.claimed([claimed(1n, 8n)])
    assert.deepStrictEqual(ledger.verdict(), {
      ...nothing,
      enqueued: 2,
      claimed: 2,
      lost: 1,
      duplicated: 1,
      phantoms: 1
    })
  })

  it("counts a job claimed before one that was committed when it was enqueued", () => {
    const ledger = Ledger.make()
    ledger.committed([enqueued(1n, 0)], 1)
    ledger.committed([enqueued(2n, 2)], 3)
    ledger.claimed([claimed(1n, 8n)])
    ledger.claimed([claimed(2n, 7n)])
    assert.strictEqual(ledger.verdict().orderViolations, 1)
  })

  it("allows any order between lanes and between transactions that overlap", () => {
    const ledger = Ledger.make()
    ledger.committed([enqueued(1n, 0)], 5)
    ledger.committed([enqueued(2n, 2)], 3)
    ledger.committed([enqueued(3n, 0, "b")], 1)
    ledger.claimed([claimed(2n, 7n)])
    ledger.claimed([claimed(1n, 8n)])
    ledger.claimed([claimed(3n, 9n, "b")])
    assert.strictEqual(ledger.verdict().orderViolations, 0)
  })

  it("takes the batches of one claim as one", () => {
    const ledger = Ledger.make()
    ledger.committed([enqueued(1n, 0)], 1)
    ledger.committed([enqueued(2n, 2)], 3)
    ledger.claimed([claimed(1n, 8n), claimed(2n, 7n)])
    assert.strictEqual(ledger.verdict().orderViolations, 0)
  })
})
