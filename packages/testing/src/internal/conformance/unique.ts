import * as Database from "@awa/model/Database"
import { UniqueConflict } from "@awa/model/Errors"
import type { InsertOptions } from "@awa/model/InsertOptions"
import type { JobId } from "@awa/model/JobRow"
import type { Outcome } from "@awa/model/StorageEngine"
import * as Unique from "@awa/model/Unique"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as TestClock from "effect/TestClock"
import * as assert from "node:assert/strict"
import * as Jobs from "../../Jobs.js"
import * as Wait from "../../Wait.js"
import { after, all, check, checkAlone, type CheckError, type Harness, idsOf, outcomes, Unchecked } from "./harness.js"

type Options = InsertOptions<string>

/** One payload for each check, so that keys of one do not meet those of another. */
const payloadOf = (t: Harness, n: number) => ({ check: t.queue, n })

const enqueue = (t: Harness, options: Options = {}, n = 0) =>
  Effect.map(Unchecked.enqueue(payloadOf(t, n), { queue: t.queue, unique: true, ...options }), ({ id }) => id)

const each = (t: Harness, numbers: ReadonlyArray<number>, options: Options = {}) =>
  Unchecked.enqueueEach(numbers.map((n) => payloadOf(t, n)), { queue: t.queue, unique: true, ...options })

const conflictOf = <A, R>(effect: Effect.Effect<A, CheckError, R>): Effect.Effect<UniqueConflict, CheckError, R> =>
  Effect.matchEffect(effect, {
    onFailure: (error) => error instanceof UniqueConflict ? Effect.succeed(error) : Effect.fail(error),
    onSuccess: () => assert.fail("there should have been a conflict")
  })

/** Returns when that many sessions wait for a transaction. */
const waitFor = (sessions: number) =>
  Wait.eventually(
    Effect.flatMap(SqlClient.SqlClient, (sql) =>
      sql<{ n: number }>`select count(*)::int as n from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'transactionid'`).pipe(
        Effect.map(([row]) => assert.equal(row?.n, sessions)),
        Effect.catchTag("SqlError", Database.fromSqlError("look at sessions"))
      )
  )

const holder = (t: Harness, n = 0) =>
  Effect.map(
    Unique.holder(Unchecked.request(payloadOf(t, n), { queue: t.queue, unique: true })),
    Option.getOrUndefined
  )

const ids = (t: Harness) => Effect.map(Jobs.list({ queue: t.queue }), (jobs) => jobs.map(({ id }) => id))

const inserted = (id: JobId): Unique.Answer => ({ _tag: "Inserted", id })
const duplicate = (holder: JobId): Unique.Answer => ({ _tag: "Duplicate", holder })

/** The ids of answers that are all `Inserted`. */
const idsOfAnswers = (answers: ReadonlyArray<Unique.Answer>): ReadonlyArray<JobId> =>
  answers.map((answer) =>
    answer._tag === "Inserted" ? answer.id : assert.fail(`the job is a duplicate of ${answer.holder}`)
  )

const atOnce: Outcome = { _tag: "snooze", delay: Duration.zero }

/** How an attempt may end, and whether the job's key is free then. */
const ends: ReadonlyArray<readonly [outcome: Outcome, isFree: boolean, states?: Options["unique"]]> = [
  [outcomes.completed, true],
  [outcomes.cancel, true],
  [outcomes.fail, true],
  [outcomes.retry, false],
  [outcomes.retryNow, false],
  [outcomes.snooze, false],
  [atOnce, false],
  [outcomes.return, false],
  [outcomes.completed, false, { states: [...Unique.liveStates, "completed"] }],
  [outcomes.fail, true, { states: [...Unique.liveStates, "completed"] }],
  [outcomes.fail, false, { states: [...Unique.liveStates, "failed"] }],
  [outcomes.cancel, false, { states: [...Unique.liveStates, "cancelled"] }]
]

/** @internal */
export const beingUnique = [
  check("a second job of a unique key is refused with the id of the first", (t) =>
    Effect.gen(function*() {
      const first = yield* enqueue(t)
      const conflict = yield* conflictOf(enqueue(t, { priority: 1, delay: "1 hour" }))
      assert.equal(conflict.jobId, first)
      const other = yield* enqueue(t, {}, 1)
      assert.deepEqual(yield* ids(t), [first, other])
      assert.deepEqual([yield* holder(t, 0), yield* holder(t, 1), yield* holder(t, 2)], [first, other, undefined])
    })),

  check("what is part of the key makes jobs different", (t) =>
    Effect.gen(function*() {
      const different: ReadonlyArray<Options["unique"]> = [
        true,
        { byQueue: true },
        { byPayload: ["n"] },
        { byPayload: false, bucket: BigInt(`0x${t.queue.slice(-12)}`) },
        { period: "1 hour" }
      ]
      for (const unique of different) yield* enqueue(t, { unique })
      for (const unique of different) yield* conflictOf(enqueue(t, { unique }))
      yield* enqueue(t, { queue: `${t.queue}-2`, unique: { byQueue: true } })
      yield* conflictOf(enqueue(t, { unique: { byPayload: ["n"] } }))
      yield* TestClock.adjust("1 hour")
      yield* enqueue(t, { unique: { period: "1 hour" } })
      yield* enqueue(t, { unique: false })
      assert.equal((yield* ids(t)).length, different.length + 2)
    })),

  check("a conflict leaves the caller's transaction usable", (t) =>
    Effect.gen(function*() {
      const first = yield* enqueue(t)
      const [id, holders] = yield* Database.transaction(Effect.gen(function*() {
        yield* conflictOf(enqueue(t))
        yield* conflictOf(Unchecked.enqueueMany([payloadOf(t, 1), payloadOf(t, 0)], { queue: t.queue, unique: true }))
        const id = yield* enqueue(t, {}, 1)
        yield* conflictOf(enqueue(t, {}, 1))
        return [id, yield* Effect.all([holder(t, 0), holder(t, 1)])] as const
      }))
      assert.deepEqual(holders, [first, id])
      assert.deepEqual(idsOf(yield* t.claim()), [first, id])
    })),

  check("a transaction or savepoint that is rolled back lets its keys go", (t) =>
    Effect.gen(function*() {
      yield* Effect.flip(Database.transaction(Effect.zipRight(enqueue(t), Effect.fail("no"))))
      const id = yield* Database.transaction(Effect.gen(function*() {
        yield* Effect.flip(Database.transaction(Effect.zipRight(enqueue(t), Effect.fail("no"))))
        return yield* enqueue(t)
      }))
      assert.equal(yield* holder(t), id)
    })),

  check("unique jobs may be enqueued at any isolation level", (t) =>
    Effect.gen(function*() {
      for (const [n, isolation] of (["read committed", "repeatable read", "serializable"] as const).entries()) {
        const id = yield* Database.transaction(enqueue(t, {}, n), { isolation })
        const conflict = yield* conflictOf(Database.transaction(enqueue(t, {}, n), { isolation }))
        assert.equal(conflict.jobId, id)
      }
    })),

  check("one conflict keeps all jobs of a call out, and says which", (t) =>
    Effect.gen(function*() {
      const first = yield* enqueue(t, {}, 3)
      const many = (...numbers: ReadonlyArray<number>) =>
        Unchecked.enqueueMany(numbers.map((n) => payloadOf(t, n)), { queue: t.queue, unique: true })
      const conflict = yield* conflictOf(many(0, 1, 3, 2))
      assert.deepEqual([conflict.index, conflict.jobId], [2, first])
      const twins = yield* conflictOf(many(0, 1, 2, 1))
      assert.deepEqual([twins.index, twins.sameAs, twins.jobId], [3, 1, undefined])
      assert.deepEqual(yield* ids(t), [first])
      const rest = yield* many(2, 0, 1)
      assert.deepEqual(idsOf(yield* t.claim()), [first, ...rest])
    })),

  check("each job of a call gets its own answer", (t) =>
    Effect.gen(function*() {
      const first = yield* enqueue(t, {}, 3)
      const answers = yield* each(t, [5, 3, 4, 5, 3])
      const stored = yield* ids(t)
      assert.equal(stored.length, 3)
      assert.deepEqual(answers, [
        inserted(stored[1]!),
        duplicate(first),
        inserted(stored[2]!),
        duplicate(stored[1]!),
        duplicate(first)
      ])
      assert.deepEqual(yield* each(t, [3, 5]), [duplicate(first), duplicate(stored[1]!)])
      const mixed = yield* Unchecked.enqueueEach(
        [3, 6, 3].map((n) => payloadOf(t, n)),
        (_, i) => ({ queue: t.queue, unique: i < 2, ...(i === 1 ? { delay: "1 hour" } : {}) })
      )
      assert.deepEqual(mixed.map(({ _tag }) => _tag), ["Duplicate", "Inserted", "Inserted"])
      const claimed = yield* t.claim()
      assert.deepEqual(claimed.map(({ args }) => args), [3, 5, 4, 3].map((n) => payloadOf(t, n)))
    })),

  check("a call of several statements stores all of its unique jobs, or none", (t) =>
    Effect.gen(function*() {
      const many = Array.from({ length: 10_050 }, (_, n) => payloadOf(t, n))
      const options = { queue: t.queue, unique: true }
      const last = yield* enqueue(t, {}, 10_049)
      const conflict = yield* conflictOf(Unchecked.enqueueMany(many, options))
      assert.deepEqual([conflict.index, conflict.jobId], [10_049, last])
      assert.deepEqual(yield* ids(t), [last])
      const answers = yield* Unchecked.enqueueEach([...many, ...many.slice(0, 1)], options)
      assert.deepEqual(answers.slice(-2), [duplicate(last), duplicate(idsOfAnswers(answers.slice(0, 1))[0]!)])
      assert.equal((yield* ids(t)).length, 10_050)
    })),

  check(
    "who enqueues a key that is being enqueued waits, and learns of the job that was committed",
    (t) =>
      Effect.gen(function*() {
        const late = yield* t.inOpenTransaction(enqueue(t))
        const waiting = yield* Effect.fork(conflictOf(enqueue(t)))
        const several = yield* Effect.fork(each(t, [1, 0]))
        yield* waitFor(2)
        yield* late.commit
        assert.equal((yield* Fiber.join(waiting)).jobId, late.value)
        const [one, two] = yield* Fiber.join(several)
        assert.deepEqual([one?._tag, two], ["Inserted", duplicate(late.value)])
      })
  ),

  check(
    "who enqueues a key that is being enqueued waits, and takes it when that is rolled back",
    (t) =>
      Effect.gen(function*() {
        const late = yield* t.inOpenTransaction(enqueue(t))
        const waiting = yield* Effect.fork(enqueue(t))
        yield* waitFor(1)
        yield* late.rollback
        const id = yield* Fiber.join(waiting)
        assert.deepEqual([yield* holder(t), yield* ids(t)], [id, [id]])
      })
  ),

  check("of producers of one key at the same time one wins", (t) =>
    Effect.gen(function*() {
      const answers = yield* Effect.all(
        Array.from({ length: 8 }, () => Effect.either(enqueue(t))),
        { concurrency: "unbounded" }
      )
      const won = answers.filter((answer) => answer._tag === "Right").map(({ right }) => right)
      assert.equal(won.length, 1)
      assert.deepEqual(yield* ids(t), won)
      const lost = answers.filter((answer) => answer._tag === "Left").map(({ left }) => left)
      for (const error of lost) {
        assert.deepEqual(error instanceof UniqueConflict && error.jobId, won[0], String(error))
      }
    })),

  check("calls for the same keys in any order do not wait for each other in a circle", (t) =>
    Effect.gen(function*() {
      for (const round of Array.from({ length: 10 }, (_, i) => i * 100)) {
        const numbers = Array.from({ length: 50 }, (_, n) => round + n)
        const orders = [numbers, [...numbers].reverse(), [...numbers.slice(25), ...numbers.slice(0, 25)]]
        const answers = yield* Effect.all(orders.map((order) => each(t, order)), { concurrency: "unbounded" })
        assert.equal(answers.flat().filter(({ _tag }) => _tag === "Inserted").length, 50)
      }
      assert.equal((yield* ids(t)).length, 500)
    })),

  ...ends.map(([outcome, isFree, unique = true]) => {
    const masked = typeof unique === "object" ? ` when ${unique.states?.at(-1)} holds it` : ""
    const name = `${outcome._tag}${"delay" in outcome && outcome.delay !== null ? " by a delay" : ""}`
    return check(
      `the end "${name}" of an attempt ${isFree ? "lets a unique key go" : "keeps a unique key"}${masked}${
        outcome === outcomes.snooze ? ", also for a while" : ""
      }`,
      (t) =>
        Effect.gen(function*() {
          const id = yield* enqueue(t, { unique })
          const plain = yield* t.enqueue()
          assert.equal(yield* holder(t), id)
          const claimed = yield* t.claim()
          assert.deepEqual(idsOf(claimed), [id, plain])
          assert.equal((yield* conflictOf(enqueue(t))).jobId, id, "running")
          const verdicts = yield* t.engine.complete(t.owner, claimed.map(({ token }) => ({ token, outcome })))
          assert.deepEqual(verdicts, ["accepted", "accepted"])
          if (isFree) {
            assert.equal(yield* holder(t), undefined)
            assert.notEqual(yield* enqueue(t), id)
          } else {
            assert.equal((yield* conflictOf(enqueue(t))).jobId, id)
          }
          assert.equal((yield* t.job(id)).state, (yield* t.job(plain)).state)
        })
    )
  }),

  check("a unique job is like any other to its worker", (t) =>
    Effect.gen(function*() {
      const id = yield* enqueue(t, { metadata: { a: 1 }, tags: ["b"], maxAttempts: 3 })
      const first = yield* t.claimOne
      assert.deepEqual([first.job.metadata, first.job.tags], [{ a: 1 }, ["b"]])
      yield* t.accept(first, outcomes.retryNow, { done: 1 })
      const second = yield* t.claimOne
      assert.deepEqual(second.job.errors.map(({ error }) => error), ["it broke"])
      assert.deepEqual([second.job.progress, second.job.metadata], [{ done: 1 }, { a: 1 }])
      yield* t.accept(second, outcomes.completed)
      assert.equal(yield* t.end(second, outcomes.completed), "repeated")
      assert.equal(yield* t.end(second, outcomes.fail), "refused")
      assert.equal(yield* t.end(first, outcomes.completed), "refused")
      const job = yield* t.expectState(id, "completed")
      assert.deepEqual([job.attempt, job.metadata, job.tags], [2, { a: 1 }, ["b"]])
    })),

  check("a result that is refused lets no key go", (t) =>
    Effect.gen(function*() {
      const id = yield* enqueue(t)
      const { token, ...claimed } = yield* t.claimOne
      assert.equal(yield* t.end({ ...claimed, token: { ...token, nonce: "1" } }, outcomes.completed), "refused")
      assert.deepEqual(
        yield* t.engine.complete(t.otherOwner, [{ token, outcome: outcomes.completed }]),
        ["refused"]
      )
      assert.equal(yield* holder(t), id)
    })),

  checkAlone(
    "a job keeps its key through promotion, rescue and retries, and lets it go when it fails",
    (t) =>
      Effect.gen(function*() {
        const id = yield* enqueue(t, { runAt: yield* after("1 hour"), maxAttempts: 2 })
        const isHeld = Effect.map(conflictOf(enqueue(t)), ({ jobId }) => assert.equal(jobId, id))
        yield* isHeld
        yield* TestClock.adjust("1 hour")
        assert.equal(yield* t.engine.promote(all), 1)
        yield* isHeld
        yield* t.claimOne
        yield* TestClock.adjust("2 minutes")
        const rescue = t.engine.rescueStale({ staleness: Duration.minutes(1), limit: all })
        assert.deepEqual((yield* rescue).map(({ state }) => state), ["retryable"])
        yield* isHeld
        yield* TestClock.adjust("1 hour")
        yield* t.engine.promote(all)
        yield* t.claimOne
        yield* TestClock.adjust("2 minutes")
        assert.deepEqual((yield* rescue).map(({ state }) => state), ["failed"])
        const next = yield* enqueue(t)
        assert.equal(yield* holder(t), next)
      })
  ),

  checkAlone("the sweep of keys lets those go whose jobs ended unnoticed", (t) =>
    Effect.gen(function*() {
      const [, , third] = idsOfAnswers(yield* each(t, [0, 1, 2]))
      const claimed = yield* t.claim()
      const forgetful = claimed.slice(0, 2).map(({ token: { unique, ...token } }) => {
        assert.equal(unique, true)
        return token
      })
      yield* t.engine.complete(t.owner, forgetful.map((token) => ({ token, outcome: outcomes.completed })))
      let released = 0
      for (let left = 3; left > 0; left--) released += yield* t.engine.sweepKeys(2)
      // Whether it was noticed is the engine's affair.
      assert.ok(released <= 2)
      assert.deepEqual([yield* holder(t, 0), yield* holder(t, 1), yield* holder(t, 2)], [undefined, undefined, third])
    })),

  checkAlone("the sweep of keys takes none that a job holds", (t) =>
    Effect.gen(function*() {
      const held = [...Unique.liveStates, "completed", "failed", "cancelled"] as const
      yield* each(t, [0, 1, 2, 3], { unique: { states: held } })
      yield* each(t, [4, 5])
      const claimed = yield* t.claim()
      const [completed, failed, cancelled, retried] = claimed
      yield* t.accept(completed!, outcomes.completed)
      yield* t.accept(failed!, outcomes.fail)
      yield* t.accept(cancelled!, outcomes.cancel)
      yield* t.accept(retried!, outcomes.retry)
      yield* each(t, [6])
      yield* each(t, [7], { delay: "1 hour" })
      const holders = Effect.forEach([0, 1, 2, 3, 4, 5, 6, 7], (n) => holder(t, n))
      const before = yield* holders
      assert.ok(before.every((id) => id !== undefined))
      assert.deepEqual(yield* Effect.replicateEffect(t.engine.sweepKeys(3), 4), [0, 0, 0, 0])
      assert.deepEqual(yield* holders, before)
    }))
]
