import { Database, Dlq, Job, JobAdmin, type JobRow, Producer, QueueStorage, Unique } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Duration, Effect, Fiber, Option, Schema } from "effect"
import { MigratedLive } from "./support/database.js"

const Sync = Job.make("sync", { payload: { tenant: Schema.String }, unique: true })
const acme = { tenant: "acme" }

const owner = "00000000-0000-4000-8000-000000000001"

const select = <Row extends object>(text: string, values: ReadonlyArray<unknown> = []) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe<Row>(text, values as Array<never>).withoutTransform)

interface Seen {
  readonly state: string
  readonly errors: ReadonlyArray<{ readonly error: string; readonly attempt: number; readonly terminal?: boolean }>
}

const jobOf = (id: JobRow.JobId) =>
  Effect.map(select<Seen>("select state::text, errors from awa.jobs where id = $1", [String(id)]), ([row]) => row!)

const claim = (limit = 10) =>
  Effect.flatMap(
    QueueStorage.make,
    (engine) => engine.claim({ queue: "default", limit, owner, nonce: "1", deadline: null, durability: "async" })
  )

const claims = Effect.map(
  select<{ n: number }>("select count(*)::int as n from awa.unique_claims"),
  ([row]) => row!.n
)

const holder = Effect.map(Unique.holder(Sync.request(acme)), Option.getOrUndefined)

/** As after a restore without the claims: the job has its key no more, and does not know. */
const steal = (id: JobRow.JobId) =>
  Effect.zipRight(select("delete from awa.unique_claims where job_id = $1", [String(id)]), Sync.enqueue(acme))

const promote = Effect.flatMap(QueueStorage.make, (engine) => engine.promote(100))

const isDue = (id: JobRow.JobId) =>
  select("update awa.deferred_jobs set run_at = now() - interval '1 second' where job_id = $1", [String(id)])

describe("a job that comes back and finds its key taken", () => {
  it.scopedLive("is cancelled, says why, and stops no other", () =>
    Effect.gen(function*() {
      const older = yield* Sync.enqueue(acme, { delay: "1 hour" })
      const other = yield* Sync.enqueue({ tenant: "other" }, { delay: "1 hour" })
      const newer = yield* steal(older.id)
      yield* Effect.all([isDue(older.id), isDue(other.id)])
      assert.strictEqual(yield* promote, 2)
      const { errors, state } = yield* jobOf(older.id)
      assert.strictEqual(state, "cancelled")
      assert.deepInclude(errors[0], {
        error: `cancelled: job ${newer.id} holds the unique key of this one`,
        attempt: 0,
        terminal: true
      })
      assert.strictEqual((yield* jobOf(other.id)).state, "available")
      assert.deepStrictEqual([yield* holder, yield* claims], [newer.id, 2])
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("is cancelled at the retry of an attempt, which is accepted", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      const { id } = yield* Sync.enqueue(acme, { unique: { states: [...Unique.liveStates, "cancelled"] } })
      const [claimed] = yield* claim()
      const newer = yield* steal(id)
      const verdicts = yield* engine.complete(owner, [
        { token: claimed!.token, outcome: { _tag: "retry", delay: Duration.hours(1), error: "it broke" } }
      ])
      assert.deepStrictEqual(verdicts, ["accepted"])
      const { errors, state } = yield* jobOf(id)
      assert.deepStrictEqual([state, errors.map(({ error }) => error)], [
        "cancelled",
        ["it broke", `cancelled: job ${newer.id} holds the unique key of this one`]
      ])
      const [row] = yield* select<{ envelope: object }>("select envelope from awa.finished_jobs")
      assert.notProperty(row!.envelope, "unique", "in this state it would have to hold its key")
      assert.strictEqual(yield* holder, newer.id)
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("takes its key again when it is free", () =>
    Effect.gen(function*() {
      const { id } = yield* Sync.enqueue(acme, { delay: "1 hour" })
      yield* select("delete from awa.unique_claims")
      yield* isDue(id)
      yield* promote
      assert.deepStrictEqual([(yield* jobOf(id)).state, yield* holder], ["available", id])
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("does not wait for a transaction that may take it, nor make others wait", () =>
    Effect.gen(function*() {
      const { id } = yield* Sync.enqueue(acme, { delay: "1 hour" })
      const other = yield* Sync.enqueue({ tenant: "other" }, { delay: "1 hour" })
      yield* select("delete from awa.unique_claims where job_id = $1", [String(id)])
      yield* Effect.all([isDue(id), isDue(other.id)])
      const taken = yield* Deferred.make<void>()
      const gate = yield* Deferred.make<void>()
      const open = yield* Sync.enqueue(acme).pipe(
        Effect.zipRight(Deferred.succeed(taken, undefined)),
        Effect.zipRight(Deferred.await(gate)),
        Effect.zipRight(Effect.fail("rolled back")),
        Database.transaction,
        Effect.fork
      )
      yield* Deferred.await(taken)
      assert.strictEqual(yield* promote, 2)
      assert.strictEqual((yield* jobOf(other.id)).state, "available")
      assert.strictEqual((yield* jobOf(id)).state, "scheduled", "to be asked again")
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.await(open)
      yield* isDue(id)
      yield* promote
      assert.deepStrictEqual([(yield* jobOf(id)).state, yield* holder], ["available", id])
    }).pipe(Effect.provide(MigratedLive())))
})

describe("claims", () => {
  it.scopedLive("are nothing that plain jobs look at, from their enqueueing to their end", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      /** How often the table was read; building its indexes counts, too. */
      const looks = Effect.zipRight(
        select("select pg_stat_force_next_flush()"),
        select<{ n: number }>(
          "select (seq_scan + coalesce(idx_scan, 0))::int as n from pg_stat_user_tables where relname = 'unique_claims'"
        )
      ).pipe(Effect.map(([row]) => row!.n))
      const before = yield* looks
      const plain = { unique: false } as const
      yield* Sync.enqueue(acme, plain)
      yield* Sync.enqueueMany([acme, acme], plain)
      yield* Sync.enqueueMany([acme, acme], { ...plain, tags: ["t"] })
      yield* Sync.enqueueEach([acme, acme], { ...plain, delay: "1 hour" })
      yield* select("update awa.deferred_jobs set run_at = created_at")
      yield* engine.promote(10)
      const claimed = yield* claim()
      assert.strictEqual(claimed.length, 7)
      const outcomes = [
        { _tag: "retry", delay: Duration.hours(1), error: "no" },
        { _tag: "retry", delay: Duration.zero, error: "no" },
        { _tag: "fail", error: "no" },
        { _tag: "cancel", reason: "no" }
      ] as const
      const completed = { _tag: "completed" } as const
      yield* engine.complete(owner, claimed.map(({ token }, i) => ({ token, outcome: outcomes[i] ?? completed })))
      assert.strictEqual(yield* looks, before)
      yield* Sync.enqueue({ tenant: "unique" })
      assert.isAbove(yield* looks, before)
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  for (const isolation of ["read committed", "repeatable read", "serializable"] as const) {
    it.scopedLive(`that were let go since the caller's snapshot are taken, at ${isolation}`, () =>
      Effect.gen(function*() {
        const { id } = yield* Sync.enqueue(acme)
        const answers = yield* Database.transaction(
          Effect.gen(function*() {
            yield* select("select count(*) from awa.unique_claims")
            yield* Database.outsideTransaction(JobAdmin.cancel(id))
            return yield* Sync.enqueueEach([acme, { tenant: "other" }, acme])
          }),
          { isolation }
        )
        const taken = answers.map((answer) => answer._tag === "Inserted" ? answer.id : undefined)
        const waiting = yield* select<{ id: string }>("select id from awa.jobs where state = 'available' order by id")
        assert.deepStrictEqual(taken.map(String), [...waiting.map(({ id }) => id), "undefined"])
        assert.strictEqual(yield* holder, taken[0])
      }).pipe(Effect.provide(MigratedLive())))
  }

  it.scopedLive("are written for jobs with a key alone", () =>
    Effect.gen(function*() {
      const engine = yield* QueueStorage.make
      yield* Sync.enqueueMany([acme, { tenant: "b" }], { unique: false, tags: ["t"] })
      yield* Sync.enqueue(acme, { unique: false })
      assert.strictEqual(yield* claims, 0)
      yield* Sync.enqueueMany([acme, { tenant: "b" }])
      assert.strictEqual(yield* claims, 2)
      const claimed = yield* claim()
      assert.deepStrictEqual(claimed.map(({ token }) => token.unique), [undefined, undefined, undefined, true, true])
      assert.deepStrictEqual(claimed.map(({ job }) => job.metadata), [{}, {}, {}, {}, {}])
      yield* engine.complete(owner, claimed.map(({ token }) => ({ token, outcome: { _tag: "completed" } })))
      assert.strictEqual(yield* claims, 0)
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("are let go for whole jobs, or as far as a state holds nothing", () =>
    Effect.gen(function*() {
      const states = [...Unique.liveStates, "completed"] as const
      const ids = yield* Sync.enqueueMany(
        [acme, { tenant: "b" }, { tenant: "c" }],
        ({ tenant }) => tenant === "acme" ? { unique: { states } } : {}
      )
      const release = (state: string) => select(`select awa.release_unique($1, ${state})`, [ids.map(String)])
      yield* release("'running'")
      assert.strictEqual(yield* claims, 3)
      yield* release("'completed'")
      assert.deepStrictEqual([yield* claims, yield* holder], [1, ids[0]])
      yield* release("null")
      assert.strictEqual(yield* claims, 0)
    }).pipe(Effect.provide(MigratedLive())))
})

describe("a change of a job", () => {
  const change = (id: JobRow.JobId, op: string) =>
    select("select awa.change_jobs(array[$1::bigint], $2, null)", [String(id), JSON.stringify({ op })])

  it.scopedLive("that ends or deletes it lets its key go", () =>
    Effect.gen(function*() {
      for (const op of ["cancel", "delete"]) {
        for (const options of [{}, { delay: "1 hour" }] as const) {
          const { id } = yield* Sync.enqueue(acme, options)
          yield* change(id, op)
          assert.isUndefined(yield* holder, op)
        }
      }
      const running = yield* Sync.enqueue(acme)
      yield* claim()
      yield* change(running.id, "cancel")
      assert.strictEqual(yield* claims, 0)
    }).pipe(Effect.provide(MigratedLive())))
})

describe("plain SQL", () => {
  const key = "00112233445566778899aabbccddeeff"
  const call = (unique: unknown, name = "enqueue_unique") =>
    select<{ ids: string; duplicates: unknown }>(
      `select * from awa.${name}($1::jsonb${name === "enqueue" ? "" : ", true"})`,
      [JSON.stringify([{ kind: "k" }, { kind: "k", unique }])]
    )

  it.effect("is refused what is no key, or no mask that is closed", () =>
    Effect.gen(function*() {
      const refused: ReadonlyArray<readonly [unknown, RegExp]> = [
        [7, /^job 1: unique: must be an object/],
        [{ states: "11101001" }, /^job 1: unique\.key: must be 32/],
        [{ key: `${key}00`, states: "11101001" }, /^job 1: unique\.key/],
        [{ key: key.toUpperCase(), states: "11101001" }, /^job 1: unique\.key/],
        [{ key }, /^job 1: unique\.states: must be 8 bits/],
        [{ key, states: "1110100" }, /^job 1: unique\.states: must be 8 bits/],
        [{ key, states: "11111000" }, /^job 1: unique\.states: must hold scheduled/],
        [{ key, states: "00010000" }, /^job 1: unique\.states: must hold scheduled/]
      ]
      for (const [unique, expected] of refused) {
        assert.match(Database.describe(yield* Effect.flip(call(unique))), expected)
      }
      const [fine] = yield* call({ key, states: "11101001" })
      assert.match(fine!.ids, /^\d+,\d+$/)
      const error = yield* Effect.flip(call({ key, states: "11101001" }, "enqueue"))
      assert.match(Database.describe(error), /^job 1: unique: jobs with a key go through enqueue_unique/)
      assert.strictEqual(yield* claims, 1)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("is told of duplicates by the statement for other clients", () =>
    Effect.gen(function*() {
      const { id } = yield* Sync.enqueue(acme)
      const { text, values } = Producer.insertStatement([
        Sync.request({ tenant: "b" }),
        Sync.request(acme),
        Sync.request({ tenant: "b" })
      ])
      const [row] = yield* select<{ ids: string; duplicates: unknown }>(text, values)
      const [first, ...others] = row!.ids.split(",")
      assert.deepStrictEqual(others, ["", ""])
      assert.deepStrictEqual(row!.duplicates, [[1, String(id), null], [2, first, 0]])
    }).pipe(Effect.provide(MigratedLive())))
})

describe("a failed job whose key another job has", () => {
  const { retry: runAgain } = JobAdmin
  const { retry: revive } = Dlq

  const failed = (tenants: ReadonlyArray<string>) =>
    Effect.gen(function*() {
      const ids = yield* Sync.enqueueMany(tenants.map((tenant) => ({ tenant })))
      const { complete } = yield* QueueStorage.make
      const jobs = yield* claim()
      yield* complete(owner, jobs.map(({ token }) => ({ token, outcome: { _tag: "fail", error: "no" } as const })))
      return ids
    })

  it.scopedLive("is not retried, and the caller's transaction goes on", () =>
    Effect.gen(function*() {
      const [acmeId, otherId] = yield* failed(["acme", "other"])
      const newer = yield* Sync.enqueue(acme)
      const conflict = yield* Effect.flip(runAgain(acmeId!))
      assert.deepInclude(conflict, { _tag: "UniqueConflict", kind: "sync", jobId: newer.id })
      assert.deepStrictEqual(yield* JobAdmin.retryMany([acmeId!, otherId!]), [
        { _tag: "KeyTaken", id: acmeId!, kind: "sync", holder: newer.id },
        { _tag: "Changed", id: otherId!, from: "failed" }
      ])
      assert.strictEqual((yield* jobOf(acmeId!)).state, "failed")
      assert.strictEqual((yield* jobOf(otherId!)).state, "available")
      yield* JobAdmin.cancel(newer.id)
      yield* runAgain(acmeId!)
      assert.strictEqual(yield* holder, acmeId!)
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("stays where it is while somebody may be taking the key", () =>
    Effect.gen(function*() {
      const [acmeId, otherId] = yield* failed(["acme", "other"])
      yield* Dlq.move(otherId!, "looked at")
      const taken = yield* Deferred.make<void>()
      const end = yield* Deferred.make<void>()
      const taker = yield* Effect.fork(Database.transaction(Effect.gen(function*() {
        yield* Sync.enqueueMany([{ tenant: "acme" }, { tenant: "other" }])
        yield* Deferred.succeed(taken, undefined)
        yield* Deferred.await(end)
        return yield* Effect.fail("rolled back")
      })))
      yield* Deferred.await(taken)
      assert.strictEqual((yield* Effect.flip(runAgain(acmeId!)))._tag, "JobBusy")
      assert.strictEqual((yield* Effect.flip(revive(otherId!)))._tag, "JobBusy")
      assert.strictEqual(yield* Dlq.bulkRetry({ kind: "sync" }), 0)
      assert.strictEqual((yield* jobOf(acmeId!)).state, "failed")
      assert.isTrue(Option.isSome(yield* Dlq.get(otherId!)))
      yield* Deferred.succeed(end, undefined)
      yield* Fiber.await(taker)
      yield* runAgain(acmeId!)
      assert.isTrue(Option.isSome(yield* revive(otherId!)))
      assert.strictEqual(yield* holder, acmeId!)
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("stays a dead letter", () =>
    Effect.gen(function*() {
      const [acmeId, otherId] = yield* failed(["acme", "other"])
      assert.strictEqual(yield* Dlq.bulkMove({ kind: "sync" }, "looked at"), 2)
      const refusal = yield* Effect.flip(runAgain(acmeId!))
      assert.include(refusal.message, "it is a dead letter: use Dlq.retry")
      assert.deepStrictEqual(yield* JobAdmin.removeMany([acmeId!]), [
        { _tag: "NotInState", id: acmeId!, state: "failed", isDeadLetter: true }
      ])
      const newer = yield* Sync.enqueue(acme)
      yield* Database.transaction(Effect.gen(function*() {
        const conflict = yield* Effect.flip(revive(acmeId!))
        assert.deepInclude(conflict, { _tag: "UniqueConflict", kind: "sync", jobId: newer.id })
        yield* Sync.enqueue({ tenant: "third" })
      }))
      assert.strictEqual(yield* Dlq.bulkRetry({ kind: "sync" }), 1)
      assert.strictEqual((yield* jobOf(otherId!)).state, "available")
      assert.isTrue(Option.isSome(yield* Dlq.get(acmeId!)))
      assert.deepStrictEqual(
        yield* JobAdmin.cancelByUniqueKey(Sync.request(acme), { reason: "enough" }),
        Option.some(newer.id)
      )
      assert.deepStrictEqual(yield* JobAdmin.cancelByUniqueKey(Sync.request(acme)), Option.none())
      assert.strictEqual(Option.getOrThrow(yield* revive(acmeId!)).state, "available")
    }).pipe(Effect.provide(MigratedLive())))
})
