import { StorageEngine } from "@awa/model"
import { Duration, Effect } from "effect"
import * as assert from "node:assert/strict"
import { command } from "../support/command.js"
import { agree } from "../support/invariants.js"
import { owners, queues } from "../support/real.js"

/** What readers and workers see: every job in its state, the queues with work, what an owner holds open. */
export const look = command("look", {
  weight: 4,
  fields: {},
  run: (_, model) =>
    Effect.gen(function*() {
      yield* agree(model)
      const engine = yield* StorageEngine.StorageEngine
      const waiting = yield* engine.probe(queues)
      assert.deepEqual([...waiting].sort(), queues.filter((queue) => model.claimable(queue).length > 0), "probe")
      for (const owner of owners) {
        const held = yield* engine.openAttempts(owner, Duration.seconds(10))
        const expected = model.open.filter((attempt) =>
          attempt.owner === owner && attempt.claimedAt <= model.now - 10_000
        )
        assert.deepEqual(
          held.map(({ fence }) => fence).sort(),
          expected.map(({ token }) => token.fence).sort(),
          "open attempts"
        )
      }
    })
})
