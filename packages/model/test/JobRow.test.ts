import { Dlq, Errors, JobRow, JobState } from "@awa/model"
import { assert, it } from "@effect/vitest"
import { Arbitrary, FastCheck, Schema } from "effect"
import * as jobRow from "../src/internal/jobRow.js"

const encode = Schema.encodeSync(JobRow.JobRow)
const decode = Schema.decodeUnknownSync(JobRow.JobRow)

const json: typeof JobRow.JobRow.Encoded = {
  id: "9223372036854775807",
  kind: "send_email",
  queue: "email",
  args: { to: "ada@example.com" },
  state: "retryable",
  priority: 2,
  attempt: 1,
  maxAttempts: 25,
  runLease: "1",
  runAt: "2030-01-01T00:00:00.000Z",
  createdAt: "2029-01-01T00:00:00.000Z",
  attemptedAt: "2029-01-02T00:00:00.000Z",
  metadata: JSON.parse("{\"a\":1,\"__proto__\":{\"b\":2}}"),
  tags: ["t"],
  errors: [{ error: "no", attempt: 1, at: "2029-01-02T00:00:01.000Z", terminal: false }],
  progress: { percent: 5 }
}

it("a row is JSON on the outside", () => {
  const row = decode(json)
  assert.strictEqual(row.id, JobRow.JobId.make(9223372036854775807n))
  assert.deepStrictEqual(row.errors[0]!.at, new Date("2029-01-02T00:00:01.000Z"))
  assert.deepStrictEqual(encode(row), json)
  assert.throws(() => decode({ ...json, state: "unknown" }))
})

it.prop("encodes and decodes every row", [Arbitrary.make(JobRow.JobRow)], ([row]) => {
  FastCheck.pre([row.runAt, row.createdAt, row.attemptedAt, row.finalizedAt, ...row.errors.map(({ at }) => at)]
    .every((date) => date === undefined || !Number.isNaN(date.getTime())))
  assert.deepStrictEqual(decode(encode(row)), row)
}, { fastCheck: { numRuns: 100 } })

it("a row made without the constructor is the same", () => {
  const row = decode(json)
  const made = jobRow.make({ ...row })
  assert.instanceOf(made, JobRow.JobRow)
  assert.deepStrictEqual(made, row)
  assert.deepStrictEqual(encode(made), json)
})

it("a row can be given to JSON.stringify", () => {
  const row = decode(json)
  for (const one of [row, jobRow.make({ ...row })]) assert.deepStrictEqual(JSON.parse(JSON.stringify(one)), json)
  const entry = new Dlq.DlqEntry({ ...row, reason: "terminal_error", dlqAt: row.runAt })
  assert.deepStrictEqual(
    JSON.parse(JSON.stringify([entry])),
    [{ ...json, reason: "terminal_error", dlqAt: json.runAt }]
  )
})

it("so can the errors that name a job", () => {
  const at = { operation: "retry", id: 7n }
  for (const error of [new Errors.JobNotFound(at), new Errors.JobBusy(at)]) {
    assert.deepStrictEqual(JSON.parse(JSON.stringify(error)), { _tag: error._tag, operation: "retry", id: "7" })
  }
  assert.deepStrictEqual(
    JSON.parse(JSON.stringify(new Errors.JobNotInState({ ...at, state: "running" }))),
    { _tag: "JobNotInState", operation: "retry", id: "7", state: "running" }
  )
})

it("tells which states end a job", () => {
  assert.deepStrictEqual(JobState.JobState.literals.filter(JobState.isTerminal), ["completed", "failed", "cancelled"])
})
