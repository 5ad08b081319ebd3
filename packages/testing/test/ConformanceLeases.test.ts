import { Conformance, TestDatabase } from "@awa/testing"
import { afterAll, describe, it } from "vitest"

const leases = TestDatabase.layerQueueStorage({
  queueStorage: { queueSlotCount: 4, leaseSlotCount: 2, leaseClaimReceipts: false }
})

Conformance.suite("queue storage without receipts", leases, { afterAll, describe, it })
