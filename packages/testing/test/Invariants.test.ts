import { Database, Job, StorageEngine, TimeSource } from "@awa/model"
import { Jobs, TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { Deferred, Duration, Effect, FastCheck as fc, Fiber, Schema } from "effect"
import { randomBytes } from "node:crypto"
import { assert, it } from "vitest"
import { Model, type ModelAttempt, type ModelJob } from "./fixtures/model.js"

const queues = ["one", "two"] as const
const owners = ["00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"] as const
const staleness = Duration.seconds(90)
const maxOpenTransactions = 3

const Work = Job.make("work", { payload: Schema.Int })

// What may happen. A `pick` chooses among what there is, by its remainder.

const pick = fc.nat(1000)
const job = {
  queue: fc.constantFrom(...queues),
  priority: fc.constantFrom<1 | 2>(1, 2),
  maxAttempts: fc.integer({ min: 1, max: 3 }),
  count: fc.integer({ min: 1, max: 4 })
}
const outcome = fc.constantFrom<StorageEngine.Outcome>(
  { _tag: "completed" },
  { _tag: "retry", delay: null, error: "broken" },
  { _tag: "retry", delay: Duration.zero, error: null },
  { _tag: "retry", delay: Duration.seconds(20), error: "broken" },
  { _tag: "snooze", delay: Duration.seconds(30) },
  { _tag: "return" },
  { _tag: "cancel", reason: "unwanted" },
  { _tag: "fail", error: "broken" }
)
const progress = fc.constantFrom(undefined, undefined, "some", "more")
const act = <const Do extends string, Fields extends object>(
  name: Do,
  weight: number,
  fields: { readonly [Field in keyof Fields]: fc.Arbitrary<Fields[Field]> }
) => ({ weight, arbitrary: fc.record<Fields>(fields).map((fields) => ({ do: name, ...fields })) })

const limit = fc.integer({ min: 1, max: 5 })
const owner = fc.constantFrom(owners[0], owners[0], owners[0], owners[1])
const stranger = fc.constantFrom(false, false, false, true)
const picking = <A>(arbitrary: fc.Arbitrary<A>) => fc.array(arbitrary, { minLength: 1, maxLength: 5 })

const action = fc.oneof(
  act("enqueue", 4, { ...job, delay: fc.constantFrom(0, 0, 15_000) }),
  act("begin", 3, job),
  act("end transaction", 3, { pick, commit: fc.boolean() }),
  act("claim", 8, { queue: job.queue, limit, owner, deadline: fc.constantFrom(null, null, 40_000) }),
  act("complete", 8, { stranger, picks: picking(fc.tuple(pick, outcome, progress)) }),
  act("beat", 3, { stranger, picks: picking(fc.tuple(pick, progress)) }),
  act("wait", 5, { millis: fc.constantFrom(1, 10_000, 45_000, 100_000) }),
  act("promote", 3, { limit }),
  act("rescue stale", 2, { limit }),
  act("rescue expired", 2, { limit }),
  act("look", 2, {})
)

type Action = typeof action extends fc.Arbitrary<infer A> ? A : never

// Doing it, for real and in the model

interface Transaction {
  readonly jobs: ReadonlyArray<ModelJob>
  readonly end: (commit: boolean) => Effect.Effect<void, unknown>
}

const begin = (count: number, options: { queue: string; priority: 1 | 2; maxAttempts: number }) =>
  Effect.gen(function*() {
    const enqueued = yield* Deferred.make<ReadonlyArray<bigint>>()
    const gate = yield* Deferred.make<void, "rollback">()
    const fiber = yield* Work.enqueueMany(Array.from({ length: count }, (_, n) => n), options).pipe(
      Effect.flatMap((ids) => Deferred.succeed(enqueued, ids)),
      Effect.zipRight(Deferred.await(gate)),
      Database.transaction,
      Effect.fork
    )
    const ids = yield* Effect.raceFirst(Deferred.await(enqueued), Effect.zipRight(Fiber.join(fiber), Effect.never))
    const end = (commit: boolean) =>
      commit
        ? Effect.zipRight(Deferred.succeed(gate, undefined), Fiber.join(fiber))
        : Effect.zipRight(Deferred.fail(gate, "rollback"), Fiber.await(fiber))
    return { ids, end }
  })

/** One of the latest attempts. */
const chosen = ({ attempts }: Model, pick: number): ModelAttempt | undefined => attempts.at(-1 - pick % 10)

/** Who speaks for an attempt: mostly its owner. */
const speaker = (attempt: ModelAttempt | undefined, stranger: boolean): string =>
  stranger || attempt === undefined ? owners[1] : attempt.owner

const perform = (model: Model, open: Array<Transaction>, action: Action) =>
  Effect.gen(function*() {
    const engine = yield* StorageEngine.StorageEngine
    switch (action.do) {
      case "enqueue": {
        const { count, delay, maxAttempts, priority, queue } = action
        const ids = yield* Work.enqueueMany(Array.from({ length: count }, (_, n) => n), {
          queue,
          priority,
          maxAttempts,
          delay
        })
        model.enqueue(ids, { ...action, committed: true })
        break
      }
      case "begin": {
        const { count, maxAttempts, priority, queue } = action
        if (open.length < maxOpenTransactions) {
          const { end, ids } = yield* begin(count, { queue, priority, maxAttempts })
          open.push({ end, jobs: model.enqueue(ids, { ...action, delay: 0, committed: false }) })
        }
        break
      }
      case "end transaction": {
        const [transaction] = open.splice(action.pick % Math.max(1, open.length), 1)
        if (transaction !== undefined) {
          yield* transaction.end(action.commit)
          for (const job of transaction.jobs) job.committed = action.commit
        }
        break
      }
      case "claim": {
        const { deadline, limit, owner, queue } = action
        const claimed = yield* engine.claim({
          queue,
          limit,
          owner,
          nonce: String(randomBytes(8).readBigInt64BE()),
          deadline: deadline === null ? null : Duration.millis(deadline),
          durability: "async"
        })
        const expected = model.claimable(queue).slice(0, limit)
        assert.deepStrictEqual(
          claimed.map(({ job }) => job.id),
          expected.map(({ id }) => id as typeof claimed[0]["job"]["id"])
        )
        for (const [i, { job, token }] of claimed.entries()) {
          const known = expected[i]!
          assert.isTrue(job.runLease > known.runLease, "the lease of a job only grows")
          assert.deepStrictEqual(job.progress, known.progress)
          model.claim(known, token, owner, deadline ?? Infinity)
        }
        break
      }
      case "complete": {
        const named = action.picks.flatMap(([pick, outcome, progress]) => {
          const attempt = chosen(model, pick)
          return attempt === undefined ? [] : [{ attempt, completion: { token: attempt.token, outcome, progress } }]
        })
        const owner = speaker(named[0]?.attempt, action.stranger)
        const verdicts = yield* engine.complete(owner, named.map(({ completion }) => completion))
        const firsts = new Map<ModelAttempt, string>()
        const expected = named.map(({ attempt, completion }) => {
          const verdict = firsts.get(attempt) === "refused" ? "refused" : model.complete(owner, attempt, completion)
          if (!firsts.has(attempt)) firsts.set(attempt, verdict)
          return verdict
        })
        model.place()
        assert.strictEqual(verdicts.join(), expected.join())
        break
      }
      case "beat": {
        const named = action.picks.flatMap(([pick, progress]) => {
          const attempt = chosen(model, pick)
          return attempt === undefined ? [] : [{ attempt, progress }]
        })
        const owner = speaker(named[0]?.attempt, action.stranger)
        const held = yield* engine.heartbeat(
          owner,
          named.map(({ attempt: { token }, progress }) => ({ token, progress }))
        )
        const expected = named.map(({ attempt, progress }) => model.beat(owner, attempt, progress))
        assert.deepStrictEqual(held, expected)
        break
      }
      case "wait":
        model.now += action.millis
        break
      case "promote": {
        const promoted = yield* engine.promote(action.limit)
        assert.strictEqual(promoted, model.promote(action.limit))
        break
      }
      case "rescue stale": {
        const rescued = yield* engine.rescueStale({ staleness, limit: action.limit })
        const isStale = ({ lastSign }: ModelAttempt) => lastSign < model.now - Duration.toMillis(staleness)
        sameJobs(rescued, model.rescue(action.limit, isStale))
        break
      }
      case "rescue expired": {
        const rescued = yield* engine.rescueExpired({ limit: action.limit })
        sameJobs(rescued, model.rescue(action.limit, ({ deadline }) => deadline < model.now))
        break
      }
      case "look": {
        const waiting = yield* engine.probe(queues)
        assert.sameMembers([...waiting], queues.filter((queue) => model.claimable(queue).length > 0))
        for (const owner of owners) {
          const held = yield* engine.openAttempts(owner, Duration.seconds(10))
          const expected = model.open.filter((attempt) =>
            attempt.owner === owner && attempt.claimedAt <= model.now - 10_000
          )
          assert.sameMembers(held.map(({ fence }) => fence), expected.map(({ token }) => token.fence))
        }
      }
    }
  })

const sameJobs = (rescued: ReadonlyArray<StorageEngine.Rescued>, attempts: ReadonlyArray<ModelAttempt>) =>
  assert.sameDeepMembers(
    rescued.map(({ jobId, state }) => [jobId, state]),
    attempts.map(({ job }) => [job.id, job.state])
  )

// What must hold after each action

/** The jitter of the backoff is the database's. */
const learnRetries = (model: Model) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const rows = yield* sql<{ id: string; run_at: string }>`
      select job_id::text as id, (extract(epoch from run_at) * 1000000)::bigint::text as run_at
      from awa.deferred_jobs where state = 'retryable'`
    for (const { id, run_at } of rows) {
      const job = model.jobs.find((job) => String(job.id) === id)
      if (job !== undefined) job.runAt = Number(run_at)
    }
  })

const agree = (model: Model) =>
  Effect.map(Jobs.list(), (stored) => {
    const fields = stored.map((job) => [job.id, job.state, job.attempt, job.runLease, job.errors.length, job.progress])
    const progressOf = (job: ModelJob) => model.open.find((attempt) => attempt.job === job)?.progress ?? job.progress
    const expected = [...model.visible].sort((a, b) => a.id < b.id ? -1 : 1)
      .map((job) => [job.id, job.state, job.attempt, job.runLease, job.errors, progressOf(job)])
    assert.deepStrictEqual<ReadonlyArray<unknown>>(fields, expected)
  })

/** No member of a batch is closed twice, and none that it does not have. */
const closuresFitBatches = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  const wrong = yield* sql`
    select b.batch_id, b.n, array_agg(m.member) as members
    from awa.claim_batches b
    join awa.closures k on k.slot = b.slot and k.batch_id = b.batch_id
    cross join unnest(k.members) m(member)
    group by b.slot, b.batch_id, b.n
    having count(*) <> count(distinct m.member) or min(m.member) < 1 or max(m.member) > b.n`
  const miscounted = yield* sql`select * from awa.closures where n <> cardinality(members)`
  assert.deepStrictEqual([...wrong, ...miscounted], [])
})

const execute = (actions: ReadonlyArray<Action>) => {
  const model = new Model()
  const open: Array<Transaction> = []
  return Effect.gen(function*() {
    for (const action of actions) {
      yield* perform(model, open, action)
      yield* learnRetries(model)
      yield* agree(model)
    }
    for (const transaction of open) yield* transaction.end(false)
    yield* closuresFitBatches
    if (model.jobs.length > 0) yield* Jobs.assertNoDeadRows
  }).pipe(
    Effect.provideService(TimeSource.TimeSource, Effect.sync(() => new Date(model.now))),
    Effect.exit, // a failing program is shrunk: its databases need not be kept
    Effect.provide(storage),
    Effect.flatten
  )
}

const storage = TestDatabase.layerQueueStorage({ maxConnections: 6 })

it("random programs leave the real queue in the state of a simple one", () =>
  fc.assert(
    fc.asyncProperty(fc.array(action, { minLength: 30, maxLength: 70 }), (actions) =>
      Effect.runPromise(execute(actions))),
    { seed: 7, numRuns: 12, interruptAfterTimeLimit: 100_000 }
  ), 120_000)
