import { assert, describe, it } from "@effect/vitest"
import * as Audit from "../src/Audit.js"

const expected = (id: string, kind: string, differently: Partial<Audit.Expected> = {}): Audit.Expected => ({
  id,
  kind,
  maxAttempts: 25,
  ends: "completed",
  decidedBy: 1,
  delayMillis: 0,
  ...differently
})

const stored = (id: string, kind: string, differently: Partial<Audit.Stored> = {}): Audit.Stored => ({
  id,
  kind,
  state: "completed",
  attempt: 1,
  createdAtMillis: 0,
  rescued: [],
  ...differently
})

type Attempt = Audit.Evidence["attempts"][number]

const attempt = (jobId: string, number: number, worker: string, outcome: Attempt["outcome"]): Attempt => ({
  jobId,
  attempt: number,
  fence: `${jobId}/${number}`,
  worker,
  begunAtMillis: 1000,
  outcome
})

/**
 * 1 is just completed, 2 retried, 3 cancelled, 4 failed, 5 out of attempts; 6 was begun by the worker that was killed, 7
 * claimed and not begun; 8 ran elsewhere at that moment, and 9 was for later.
 */
const evidence: Audit.Evidence = {
  expected: [
    expected("1", "mail"),
    expected("2", "card", { decidedBy: 2 }),
    expected("3", "item", { ends: "cancelled" }),
    expected("4", "invoice", { ends: "failed" }),
    expected("5", "hook", { ends: "failed", decidedBy: 2, maxAttempts: 2 }),
    expected("6", "video"),
    expected("7", "mail"),
    expected("8", "mail"),
    expected("9", "mail", { delayMillis: 800 })
  ],
  attempts: [
    attempt("1", 1, "one", "completed"),
    attempt("2", 1, "two", "retry"),
    attempt("2", 2, "two", "completed"),
    attempt("3", 1, "one", "cancelled"),
    attempt("4", 1, "two", "failed"),
    attempt("5", 1, "two", "retry"),
    attempt("5", 2, "two", "retry"),
    attempt("6", 1, "one", null),
    attempt("6", 2, "two", "completed"),
    attempt("7", 2, "two", "completed"),
    attempt("8", 1, "two", "completed"),
    attempt("9", 1, "two", "completed")
  ],
  stored: [
    stored("1", "mail"),
    stored("2", "card", { attempt: 2 }),
    stored("3", "item", { state: "cancelled" }),
    stored("4", "invoice", { state: "failed" }),
    stored("5", "hook", { state: "failed", attempt: 2 }),
    stored("6", "video", { attempt: 2, rescued: [1] }),
    stored("7", "mail", { attempt: 2, rescued: [1] }),
    stored("8", "mail"),
    stored("9", "mail")
  ],
  orders: { recorded: 3, stored: 3 },
  regretted: ["100", "101"],
  killed: {
    worker: "one",
    running: [{ jobId: "6", attempt: 1 }, { jobId: "7", attempt: 1 }, { jobId: "8", attempt: 1 }]
  }
}

const changed = (id: string, change: Partial<Audit.Stored>): Partial<Audit.Evidence> => ({
  stored: evidence.stored.map((job) => job.id === id ? { ...job, ...change } : job)
})

const without = (id: string): Partial<Audit.Evidence> => ({ stored: evidence.stored.filter((job) => job.id !== id) })

const lies: Record<string, Partial<Audit.Evidence>> = {
  "a lost job": without("1"),
  "a job nobody enqueued": { stored: [...evidence.stored, stored("50", "mail")] },
  "a job that never ran": changed("1", { state: "available", attempt: 0 }),
  "a job that is still running": changed("1", { state: "running" }),
  "a failure that was taken for a success": changed("4", { state: "completed" }),
  "a cancelled job that failed": changed("3", { state: "failed" }),
  "two jobs that swapped their ends": {
    expected: [...evidence.expected, expected("10", "item")],
    attempts: [...evidence.attempts, attempt("10", 1, "two", "completed")],
    stored: [...changed("3", { state: "completed" }).stored!, stored("10", "item", { state: "cancelled" })]
  },
  "an attempt too many": changed("2", { attempt: 3 }),
  "an attempt too few": changed("2", { attempt: 1 }),
  "an attempt its handler knows nothing of": {
    attempts: evidence.attempts.filter(({ attempt, jobId }) => jobId !== "2" || attempt !== 1)
  },
  "a handler that ended otherwise": {
    attempts: evidence.attempts.map((it) => it.jobId === "1" ? { ...it, outcome: "cancelled" } : it)
  },
  "a handler that never ended": {
    attempts: evidence.attempts.map((it) => it.jobId === "1" ? { ...it, outcome: null } : it)
  },
  "an attempt delivered twice": { attempts: [...evidence.attempts, attempt("1", 1, "two", "completed")] },
  "a job that ran again after its success": { attempts: [...evidence.attempts, attempt("1", 2, "two", "completed")] },
  "a job that was not rescued": changed("6", { rescued: [] }),
  "a rescue of somebody who lives": changed("8", { attempt: 2, rescued: [1] }),
  "another attempt rescued": changed("6", { rescued: [2] }),
  "a rescued job that no other worker ran": {
    attempts: evidence.attempts.filter(({ attempt, jobId }) => jobId !== "6" || attempt !== 2)
  },
  "a worker that was killed while it ran nothing": { killed: { worker: "one", running: [] } },
  "a batch that was not rolled back": { regretted: ["1"] },
  "an order that was not rolled back": { orders: { recorded: 3, stored: 4 } },
  "a job that began too early": {
    attempts: evidence.attempts.map((it) => it.jobId === "9" ? { ...it, begunAtMillis: 700 } : it)
  }
}

describe("the audit", () => {
  it("finds nothing where there is nothing", () => {
    const { differences, facts, rows } = Audit.make(evidence)
    assert.deepStrictEqual(differences, [])
    for (const { recorded, stored } of [...facts, ...rows.flatMap(({ figures }) => figures)]) {
      assert.strictEqual(stored, recorded)
    }
    const mail = rows.find(({ kind }) => kind === "mail")!.figures.map(({ name, stored }) => [name, stored])
    assert.deepStrictEqual(mail, [["jobs", 4], ["completed", 4], ["cancelled", 0], ["failed", 0], ["attempts", 5]])
  })

  it("accepts that the last attempt of a job was lost", () => {
    const { differences } = Audit.make({
      ...evidence,
      attempts: evidence.attempts.map((it) => it.fence === "5/2" ? { ...it, worker: "one", outcome: null } : it),
      stored: changed("5", { rescued: [2] }).stored!,
      killed: { ...evidence.killed, running: [...evidence.killed.running, { jobId: "5", attempt: 2 }] }
    })
    assert.deepStrictEqual(differences, [])
  })

  for (const [name, lie] of Object.entries(lies)) {
    it(`finds ${name}`, () => assert.notDeepEqual(Audit.make({ ...evidence, ...lie }).differences, []))
  }
})
