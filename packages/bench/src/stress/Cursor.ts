/**
 * A randomised check of the claim cursor: producers with transactions of every shape against concurrent claimers on
 * several lanes. Every committed job must be claimed exactly once, and a job enqueued after another one of its lane was
 * committed must not be claimed before it.
 */
import { Database, Job, type JobRow, Migrations, QueueStorage, StorageEngine } from "@awa/model"
import { Effect, Layer, Schema, type Scope } from "effect"
import { randomUUID } from "node:crypto"
import pg from "pg"
import { query } from "../Server.js"
import { makeRandom, monotonicMillis } from "../Statistics.js"
import * as Ledger from "./Ledger.js"

export interface Options {
  readonly url: string
  readonly seconds: number
  readonly producers: number
  readonly claimers: number
  readonly seed: number
}

export interface Result extends Ledger.Verdict {
  readonly transactions: number
  readonly rolledBack: number
  readonly prepared: number
  /** Transactions that PostgreSQL refused as not serializable. */
  readonly conflicts: number
  readonly claims: number
  readonly claimsRolledBack: number
  /** Completions that the engine did not accept. */
  readonly refused: number
  /** Jobs in the database that are not completed at the end. */
  readonly unfinished: number
  readonly seed: number
}

const queues = ["stress-a", "stress-b"] as const
const priorities = [1, 2, 3, 4] as const
const isolations = ["read committed", "repeatable read", "serializable"] as const

const StressJob = Job.make("stress", { payload: { producer: Schema.Int } })

const connect = (url: string): Effect.Effect<pg.Client, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      return client
    }),
    (client) => Effect.promise(() => client.end())
  )

const serializationFailures = new Set(["40001", "40P01"])

/** Runs the check in an empty database. */
export const run = ({ claimers, producers, seconds, seed, url }: Options): Effect.Effect<Result, never, Scope.Scope> =>
  Effect.gen(function*() {
    yield* Migrations.run().pipe(Effect.provide(Database.layer({ url })), Effect.orDie)
    yield* query(url, "create table unrelated (producer int not null)")
    const [settings] = yield* query<{ prepared: boolean }>(
      url,
      "select current_setting('max_prepared_transactions')::int > 0 as prepared"
    )
    const canPrepare = settings?.prepared === true

    const random = makeRandom(seed)
    const chance = (probability: number) => random() < probability
    const upTo = (n: number) => 1 + Math.floor(random() * n)
    const pick = <A>(values: readonly [A, ...ReadonlyArray<A>]): A => values[Math.floor(random() * values.length)]!
    const pause = (millis: number) => Effect.suspend(() => Effect.sleep(random() * millis))

    const ledger = Ledger.make()
    const counts = {
      transactions: 0,
      rolledBack: 0,
      prepared: 0,
      conflicts: 0,
      claims: 0,
      claimsRolledBack: 0,
      refused: 0
    }
    let producing = true
    let draining = false

    const producer = (number: number) =>
      Effect.gen(function*() {
        const client = yield* connect(url)
        const send = (text: string) => Effect.tryPromise(() => client.query(text))

        const enqueue = Effect.gen(function*() {
          const queue = pick(queues)
          const priority = pick(priorities)
          const calledAt = monotonicMillis()
          const ids = yield* StressJob.enqueueMany(
            Array.from({ length: chance(0.02) ? 300 : upTo(20) }, () => ({ producer: number })),
            { queue, priority }
          ).pipe(Database.joinPgTransaction(client))
          return ids.map((id): Ledger.Enqueued => ({ id, lane: `${queue} ${priority}`, calledAt }))
        })

        /** A few calls, in savepoints at times; answers the jobs that survive them. */
        const work = Effect.gen(function*() {
          const jobs: Array<Ledger.Enqueued> = []
          for (let calls = upTo(3); calls > 0; calls--) {
            if (chance(0.3)) {
              yield* send("savepoint s")
              const inner = yield* enqueue
              const undone = chance(0.4)
              yield* send(undone ? "rollback to savepoint s" : "release savepoint s")
              if (!undone) jobs.push(...inner)
            } else {
              jobs.push(...(yield* enqueue))
            }
            yield* pause(chance(0.05) ? 800 : 8)
          }
          return jobs
        })

        const transaction = Effect.gen(function*() {
          const twoPhase = canPrepare && chance(0.12)
          const commits = chance(0.8)
          yield* send(`begin isolation level ${pick(isolations)}`)
          if (chance(0.5)) yield* send(`insert into unrelated values (${number})`)
          if (chance(0.1)) yield* pause(50)
          if (twoPhase) yield* send("set local awa.wakeup = 'off'")
          const jobs = yield* work
          if (twoPhase) {
            const name = `stress_${number}_${counts.transactions}`
            yield* send(`prepare transaction '${name}'`)
            counts.prepared++
            yield* pause(300)
            yield* send(`${commits ? "commit" : "rollback"} prepared '${name}'`)
          } else {
            yield* send(commits ? "commit" : "rollback")
          }
          if (commits) ledger.committed(jobs, monotonicMillis())
          else counts.rolledBack++
        }).pipe(
          Effect.catchAll((error) =>
            isConflict(error)
              ? Effect.sync(() => void counts.conflicts++).pipe(Effect.zipRight(Effect.orDie(send("rollback"))))
              : Effect.die(error)
          )
        )

        while (producing) {
          counts.transactions++
          yield* transaction
        }
      }).pipe(Effect.scoped)

    const claimer = Effect.gen(function*() {
      const engine = yield* StorageEngine.StorageEngine
      const client = yield* connect(url)
      const owner = randomUUID()
      const nonce = () => String(Math.floor(random() * Number.MAX_SAFE_INTEGER))
      const unfinished: Array<StorageEngine.ClaimedJob> = []

      const complete = Effect.suspend(() => {
        const jobs = unfinished.splice(0)
        return engine.complete(owner, jobs.map(({ token }) => ({ token, outcome: { _tag: "completed" } }))).pipe(
          Effect.map((verdicts) => {
            counts.refused += verdicts.filter((verdict) => verdict !== "accepted").length
          })
        )
      })

      /** A claim whose transaction never commits: its jobs must come again. */
      const claimInVain = (queue: string, limit: number) =>
        Effect.promise(async () => {
          await client.query("begin")
          await client.query("select from awa.claim($1, $2, $3, $4, null, true, null)", [queue, limit, owner, nonce()])
          await client.query("rollback")
        })

      for (let idle = 0; !draining || idle < 60;) {
        const queue = pick(queues)
        const limit = chance(0.05) ? 500 : upTo(30)
        if (chance(0.1)) {
          counts.claimsRolledBack++
          yield* claimInVain(queue, limit)
        }
        const jobs = yield* engine.claim({
          queue,
          limit,
          owner,
          nonce: nonce(),
          deadline: null,
          durability: chance(0.5) ? "async" : "sync"
        })
        if (jobs.length > 0) {
          counts.claims++
          ledger.claimed(
            jobs.map(({ job, token }): Ledger.Claimed => ({
              id: job.id,
              lane: laneOf(job),
              batch: BigInt(token.batchId)
            }))
          )
          unfinished.push(...jobs)
        }
        if (unfinished.length > 0 && chance(0.7)) yield* complete
        idle = jobs.length > 0 ? 0 : idle + 1
        if (jobs.length === 0) yield* Effect.sleep("2 millis")
      }
      if (unfinished.length > 0) yield* complete
    }).pipe(
      Effect.scoped,
      Effect.provide(Layer.provide(QueueStorage.layer, Database.layer({ url, maxConnections: 1 }))),
      Effect.orDie
    )

    const stop = Effect.sleep(seconds * 1000).pipe(Effect.zipRight(Effect.sync(() => {
      producing = false
    })))
    const produce = Effect.all(Array.from({ length: producers }, (_, number) => producer(number)), {
      concurrency: "unbounded",
      discard: true
    }).pipe(Effect.zipRight(Effect.sync(() => {
      draining = true
    })))
    yield* Effect.all([stop, produce, ...Array.from({ length: claimers }, () => claimer)], {
      concurrency: "unbounded",
      discard: true
    })

    const [left] = yield* query<{ unfinished: number }>(
      url,
      "select count(*)::int as unfinished from awa.jobs where state <> 'completed'"
    )
    return { ...ledger.verdict(), ...counts, unfinished: left?.unfinished ?? 0, seed }
  })

const laneOf = (job: JobRow.JobRow): string => `${job.queue} ${job.priority}`

const isConflict = (error: unknown): boolean => {
  for (let cause = error; typeof cause === "object" && cause !== null; cause = (cause as { cause?: unknown }).cause) {
    const { code, error: inner } = cause as { readonly code?: unknown; readonly error?: unknown }
    if (typeof code === "string" && serializationFailures.has(code)) return true
    if (inner !== undefined && isConflict(inner)) return true
  }
  return false
}
