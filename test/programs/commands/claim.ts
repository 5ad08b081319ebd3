import { StorageEngine } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { Duration, Effect, FastCheck as fc } from "effect"
import * as assert from "node:assert/strict"
import { randomBytes } from "node:crypto"
import { command, owner, queue, stranger } from "../support/command.js"
import type { Model } from "../support/model.js"
import { inVain } from "../support/real.js"
import { ending, ends, hasAttempts } from "./attempt.js"

/** Some claims leave jobs behind, some take all there is. */
const limit = fc.constantFrom(1, 2, 3, 5, 100, 100)

const nonce = (): string => String(randomBytes(8).readBigInt64BE())

const deadline = fc.constantFrom(null, null, 40_000)

interface Asked {
  readonly queue: string
  readonly limit: number
  readonly owner: string
  readonly deadline: number | null
}

const request = ({ deadline, ...asked }: Asked) => ({
  ...asked,
  nonce: nonce(),
  deadline: deadline === null ? null : Duration.millis(deadline),
  durability: "async" as const
})

/** Claims in the model and compares what was claimed. */
const agree = (claimed: ReadonlyArray<StorageEngine.ClaimedJob>, asked: Asked, model: Model): void => {
  const expected = model.take(asked.queue, asked.limit)
  assert.deepEqual(claimed.map(({ job }) => BigInt(job.id)), expected.map(({ id }) => id), "claimed jobs, in order")
  for (const [i, { job, token }] of claimed.entries()) {
    const known = expected[i]!
    assert.ok(job.runLease > known.runLease, "the lease of a job only grows")
    assert.deepEqual(job.progress, known.progress, "progress of an earlier attempt")
    model.claim(known, token, asked.owner, asked.deadline ?? Infinity)
  }
}

export const claim = command("claim", {
  weight: 8,
  fields: { queue, limit, owner, deadline },
  run: (asked, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      agree(yield* engine.claim(request(asked)), asked, model)
    })
})

/** Ends attempts and claims in one call, as their owner. */
export const completeAndClaim = command("complete and claim", {
  weight: 4,
  fields: { ends, stranger, queue, limit, deadline },
  check: hasAttempts,
  run: ({ ends, stranger, ...rest }, model) =>
    Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      const ended = ending(ends, stranger, model)
      const asked = { ...rest, owner: ended.owner }
      const { jobs, verdicts } = yield* engine.completeAndClaim(ended.completions, request(asked))
      ended.agree(verdicts)
      agree(jobs, asked, model)
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
