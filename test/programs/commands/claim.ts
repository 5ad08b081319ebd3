import { StorageEngine } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { Duration, Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { randomBytes } from "node:crypto"
import { command, owner, queue } from "../support/command.js"
import { inVain } from "../support/real.js"

/** Some claims leave jobs behind, some take all there is. */
const limit = fc.constantFrom(1, 2, 3, 5, 100, 100)

const nonce = (): string => String(randomBytes(8).readBigInt64BE())

export const claim = command("claim", {
  weight: 8,
  fields: { queue, limit, owner, deadline: fc.constantFrom(null, null, 40_000) },
  run: ({ deadline, limit, owner, queue }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      const claimed = yield* engine.claim({
        queue,
        limit,
        owner,
        nonce: nonce(),
        deadline: deadline === null ? null : Duration.millis(deadline),
        durability: "async"
      })
      const expected = model.take(queue, limit)
      assert.deepEqual(claimed.map(({ job }) => BigInt(job.id)), expected.map(({ id }) => id), "claimed jobs, in order")
      for (const [i, { job, token }] of claimed.entries()) {
        const known = expected[i]!
        assert.ok(job.runLease > known.runLease, "the lease of a job only grows")
        assert.deepEqual(job.progress, known.progress, "progress of an earlier attempt")
        model.claim(known, token, owner, deadline ?? Infinity)
      }
    })
})

/** A claim whose transaction is rolled back, as that of a process that has died. */
export const claimInVain = command("claim in vain", {
  weight: 2,
  fields: { queue, limit, owner },
  run: ({ limit, owner, queue }, model) =>
    Effect.flatMap(
      SqlClient.SqlClient,
      (sql) =>
        inVain(sql`select from awa.claim(${queue}, ${limit}, ${owner}, ${nonce()}, null, true, ${new Date(model.now)})`)
    )
})
