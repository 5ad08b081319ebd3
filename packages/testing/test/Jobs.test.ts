import { Job, JobRow, StorageEngine } from "@awa/model"
import { Jobs, TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, layer } from "@effect/vitest"
import { Cause, Effect, Exit, Schema } from "effect"

const Work = Job.make("work", { payload: Schema.Int })
const Play = Job.make("play", { payload: Schema.Int, queue: "fun" })

describe("Jobs", () => {
  layer(TestDatabase.layerQueueStorage())((it) => {
    it.effect("reads jobs as the view shows them", () =>
      Effect.gen(function*() {
        const row = yield* Work.enqueue(1, { priority: 3, metadata: { a: [1] }, tags: ["x", "y"], maxAttempts: 4 })
        const { deadlineAt, heartbeatAt, ...stored } = yield* Jobs.get(row.id)
        assert.deepStrictEqual(
          { ...stored },
          { ...row, attemptedAt: undefined, finalizedAt: undefined, orderingKey: undefined, progress: undefined }
        )
        assert.deepStrictEqual([deadlineAt, heartbeatAt], [undefined, undefined])
      }))

    it.effect("finds and counts what matches", () =>
      Effect.gen(function*() {
        const some = yield* Play.enqueueMany([1, 2, 3])
        const later = yield* Play.enqueueMany([4], { delay: "1 hour" })
        const ids = (filter: Jobs.Filter) => Effect.map(Jobs.list(filter), (jobs) => jobs.map(({ id }) => id))
        assert.deepStrictEqual(yield* ids({ queue: "fun" }), [...some, ...later])
        assert.deepStrictEqual(yield* ids({ kind: "play", state: "scheduled" }), later)
        assert.deepStrictEqual(yield* ids({ ids: [some[2]!, some[0]!], state: "available" }), [some[0], some[2]])
        assert.deepStrictEqual(yield* Jobs.countByState({ kind: "play" }), {
          scheduled: 1,
          available: 3,
          running: 0,
          completed: 0,
          retryable: 0,
          failed: 0,
          cancelled: 0,
          waiting_external: 0
        })
      }))

    it.effect("dies when a job is nowhere", () =>
      Effect.gen(function*() {
        const exit = yield* Effect.exit(Jobs.get(JobRow.JobId.make(-1n)))
        assert.isTrue(Exit.isFailure(exit) && Cause.isDie(exit.cause))
      }))

    it.effect("tells what was written, and whether the log was only added to", () =>
      Effect.gen(function*() {
        const engine = yield* StorageEngine.StorageEngine
        const sql = yield* SqlClient.SqlClient
        const owner = "00000000-0000-4000-8000-000000000001"
        yield* Work.enqueueMany([1, 2, 3], { queue: "writes" })
        const inserted = (tables: ReadonlyArray<Jobs.TableWrites>, name: string) =>
          tables.filter(({ table }) => table.startsWith(name)).reduce((sum, { inserts }) => sum + inserts, 0)
        const before = yield* Jobs.tableWrites
        const claimed = yield* engine.claim({
          queue: "writes",
          limit: 3,
          owner,
          nonce: "1",
          deadline: null,
          durability: "async"
        })
        yield* engine.complete(owner, claimed.map(({ token }) => ({ token, outcome: { _tag: "completed" } })))
        const [after] = yield* Effect.all([Jobs.tableWrites, Jobs.tableWrites], { concurrency: "unbounded" })
        assert.strictEqual(inserted(after, "claim_batches_") - inserted(before, "claim_batches_"), 1)
        assert.strictEqual(inserted(after, "closures_") - inserted(before, "closures_"), 1)
        assert.strictEqual(inserted(after, "ready_entries_"), inserted(before, "ready_entries_"))
        yield* Jobs.assertNoDeadRows
        yield* sql`update awa.closures set finished_at = finished_at`
        const exit = yield* Effect.exit(Jobs.assertNoDeadRows)
        assert.isTrue(Exit.isFailure(exit) && Cause.pretty(exit.cause).includes("rows of the log were changed"))
      }))
  })
})
