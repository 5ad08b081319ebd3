import * as Database from "@awa/model/Database"
import * as JobAdmin from "@awa/model/JobAdmin"
import type { JobId } from "@awa/model/JobRow"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import * as Jobs from "../../Jobs.js"
import { all, check, checkAlone, idsOf, outcomes } from "./harness.js"

const tags = Effect.map((answers: ReadonlyArray<JobAdmin.Answer>) => answers.map(({ _tag }) => _tag))

const toPriority = (ids: ReadonlyArray<JobId>, priority: 1 | 2 | 3 | 4) =>
  Effect.orDie(JobAdmin.setPriorityMany(ids, priority))

const known = (job: object) => Object.fromEntries(Object.entries(job).filter(([, value]) => value !== undefined))

/** @internal */
export const changing = [
  check("a cancelled job is not handed out, and those behind it are", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(5)
      assert.deepEqual(yield* tags(JobAdmin.cancelMany(ids.slice(0, 3))), ["Changed", "Changed", "Changed"])
      assert.deepEqual(yield* t.engine.probe([t.queue]), [t.queue])
      assert.deepEqual(idsOf(yield* t.claim(1)), [ids[3]])
      assert.deepEqual(yield* tags(JobAdmin.cancelMany([ids[4]!])), ["Changed"])
      assert.deepEqual(yield* t.engine.probe([t.queue]), [])
      assert.deepEqual(idsOf(yield* t.claim()), [])
      for (const id of [...ids.slice(0, 3), ids[4]!]) yield* t.expectState(id, "cancelled")
    })),

  check("a job that is cancelled while it runs is not its worker's any more", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const claimed = yield* t.claimOne
      assert.deepEqual(yield* tags(JobAdmin.cancelMany([id], { reason: "not wanted" })), ["Changed"])
      assert.deepEqual(yield* t.engine.heartbeat(t.owner, [{ token: claimed.token }]), [false])
      assert.equal(yield* t.end(claimed, outcomes.completed), "refused")
      assert.equal(yield* t.end(claimed, outcomes.cancel), "refused")
      const { errors } = yield* t.expectState(id, "cancelled")
      assert.deepEqual(errors.map(({ error }) => error), ["cancelled: not wanted"])
    })),

  check("a moved job is handed out once, at its new place", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(4)
      yield* toPriority([ids[2]!], 1)
      yield* toPriority([ids[0]!], 3)
      assert.deepEqual(idsOf(yield* t.claim()), [ids[2], ids[1], ids[3], ids[0]])
      assert.deepEqual(idsOf(yield* t.claim()), [])
    })),

  check("a job that becomes visible late can be cancelled like any other", (t) =>
    Effect.gen(function*() {
      const late = yield* t.enqueueLate(2)
      yield* t.enqueue()
      yield* t.claimOne
      yield* late.commit
      assert.deepEqual(yield* tags(JobAdmin.cancelMany(late.ids.slice(0, 1))), ["Changed"])
      assert.deepEqual(idsOf(yield* t.claim()), late.ids.slice(1))
    })),

  check("a job waits again from the time it is put off to", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const reschedule = (millis: number) => Effect.orDie(JobAdmin.reschedule(id, new Date(millis)))
      yield* reschedule(60_000)
      yield* t.expectState(id, "scheduled")
      assert.deepEqual(idsOf(yield* t.claim()), [])
      yield* reschedule(0)
      assert.deepEqual(idsOf(yield* t.claim()), [id])
    })),

  check("many thousand cancelled jobs are passed once", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(2000)
      yield* JobAdmin.cancelMany(ids)
      const last = yield* t.enqueue()
      assert.deepEqual(idsOf(yield* t.claim(1)), [last])
      assert.deepEqual(yield* t.engine.probe([t.queue]), [])
    })),

  checkAlone("a request to cancel is honoured by the claim or by the leader", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(4)
      const running = yield* t.claimOne
      const asked = yield* t.inOpenTransaction(JobAdmin.requestCancel(ids.slice(0, 2)))
      assert.equal(yield* t.engine.cancelRequested(all), 0, "before the commit")
      yield* asked.commit
      assert.deepEqual(idsOf(yield* t.claim()), ids.slice(2))
      yield* t.expectState(ids[1]!, "cancelled")
      assert.equal(yield* t.engine.cancelRequested(all), 1)
      yield* t.expectState(ids[0]!, "cancelled")
      assert.equal(yield* t.end(running, outcomes.completed), "refused")
    })),

  check("every job has one fate, whoever changes it beside the claimers", (t) =>
    Effect.gen(function*() {
      const ids = yield* t.enqueueMany(120)
      const handedOut: Array<JobId> = []
      let changing = true
      const claimer = Effect.gen(function*() {
        const owner = randomUUID()
        for (;;) {
          const last = !changing
          const claimed = yield* t.claim(4, { owner })
          handedOut.push(...idsOf(claimed))
          if (claimed.length === 0 && last) return
        }
      })
      const mover = Effect.forEach([1, 3, 2, 4, 1] as const, (priority, turn) =>
        toPriority(ids.filter((_, i) => i % 3 === turn % 3), priority))
      const canceller = JobAdmin.cancelMany(
        ids.filter((_, i) =>
          i % 2 === 0
        ).reverse()
      )
      const changes = Effect.all([mover, canceller], { concurrency: "unbounded" }).pipe(
        Effect.ensuring(Effect.sync(() => {
          changing = false
        }))
      )
      const [[, answers]] = yield* Effect.all([changes, claimer, claimer], { concurrency: "unbounded" })
      assert.equal(new Set(handedOut).size, handedOut.length, "a job was handed out twice")
      const waiting = answers.flatMap((answer) =>
        answer._tag === "Changed" && answer.from === "available" ? [answer.id] : []
      )
      for (const id of waiting) assert.ok(!handedOut.includes(id), `job ${id} was cancelled and handed out`)
      const { available, cancelled, running } = yield* Jobs.countByState({ queue: t.queue })
      assert.deepEqual([available, cancelled + running], [0, ids.length])
      assert.equal(handedOut.length + waiting.length, ids.length)
    })),

  check("a change belongs to the caller's transaction", (t) =>
    Effect.gen(function*() {
      const id = yield* t.enqueue()
      const cancel = JobAdmin.cancelMany([id])
      yield* Effect.ignore(Database.transaction(Effect.zipRight(cancel, Effect.fail(undefined))))
      yield* t.expectState(id, "available")
      yield* Database.transaction(cancel)
      yield* t.expectState(id, "cancelled")
      yield* Database.transaction(Effect.gen(function*() {
        const own = yield* t.enqueue()
        yield* JobAdmin.cancelMany([own])
        assert.equal(Option.getOrThrow(yield* JobAdmin.get(own)).state, "cancelled")
      }))
      assert.deepEqual(idsOf(yield* t.claim()), [])
    })),

  check("jobs are found by id and listed by state in every state", (t) =>
    Effect.gen(function*() {
      const [first, second] = yield* t.enqueueMany(2)
      const seen = Effect.gen(function*() {
        const job = Option.getOrThrow(yield* JobAdmin.get(first!))
        const stored = yield* t.job(first!)
        assert.deepEqual(known(job), known({ ...stored, deadlineAt: undefined, heartbeatAt: undefined }))
        const page = yield* JobAdmin.list({ queue: t.queue, state: job.state, before: second! })
        assert.deepEqual(page.map(({ id }) => id), [first])
        return job.state
      })
      const path = [yield* seen]
      for (const outcome of [outcomes.retry, outcomes.snooze, outcomes.return, outcomes.completed]) {
        yield* TestClock.adjust("1 hour")
        yield* t.engine.promote(all)
        const claimed = (yield* t.claim()).find(({ job }) => job.id === first)!
        path.push(yield* seen)
        yield* t.accept(claimed, outcome)
        path.push(yield* seen)
      }
      assert.deepEqual(path, [
        "available",
        ...["running", "retryable"],
        ...["running", "scheduled"],
        ...["running", "available"],
        ...["running", "completed"]
      ])
    }))
]
