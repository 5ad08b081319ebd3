/**
 * The whole library while everything around it fails: producers, worker processes that are killed, a server that crashes,
 * and slots that rotate and are freed as fast as may be. `rotate` has jobs that succeed; `mixed` has every kind of end,
 * and everything else that can be done to a job.
 */
import { Database, Dlq, Errors, JobAdmin, type JobRow, Queues, Unique } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { Cause, Console, Data, Effect, Fiber, Layer, Schedule, type Scope } from "effect"
import type { Server } from "../Server.js"
import { makeRandom } from "../Statistics.js"
import * as Ends from "./Ends.js"
import * as Recorder from "./Recorder.js"
import { type Act, type Message, queues, Work } from "./Work.js"
import * as Workers from "./Workers.js"

export interface Options {
  readonly program: "rotate" | "mixed"
  readonly server: Server
  readonly url: string
  readonly seconds: number
  readonly producers: number
  readonly workers: number
  readonly seed: number
}

export interface Result extends Ends.Verdict {
  readonly program: string
  readonly rolledBack: number
  /** Calls that failed while the server was away. What they may have stored all the same must end, too. */
  readonly failedCalls: number
  /** Calls that failed for another reason, which is on standard error. */
  readonly unexpected: number
  readonly kills: number
  readonly crashes: number
  readonly rotations: number
  readonly freed: number
  /** Jobs in the database that have not ended at the end. */
  readonly unfinished: number
  /** Unique keys that are held when all jobs have ended. */
  readonly keysLeft: number
  readonly seed: number
}

/** Jobs that wait before producers pause. */
const backlog = 500

/** Milliseconds that a slot stays open. */
const interval = 200

/** Milliseconds before a slot is freed that nobody looks at any more: no snapshot here is older. */
const settle = 1000

/** Milliseconds that a success is kept. */
const retention = 100

const acts: Readonly<Record<Options["program"], readonly [Act, ...ReadonlyArray<Act>]>> = {
  rotate: ["complete"],
  mixed: ["complete", "complete", "complete", "retry", "snooze", "cancel", "fail"]
}

class RolledBack extends Data.TaggedError("RolledBack")<{ readonly ids: ReadonlyArray<bigint> }> {}

/** Runs the check in an empty database. */
export const run = (
  { producers, program, seconds, seed, server, url, workers }: Options
): Effect.Effect<Result, never, Scope.Scope> =>
  Effect.gen(function*() {
    yield* Recorder.install(url)
    const random = makeRandom(seed)
    const chance = (probability: number) => random() < probability
    const upTo = (n: number) => 1 + Math.floor(random() * n)
    const pick = <A>(values: readonly [A, ...ReadonlyArray<A>]): A => values[Math.floor(random() * values.length)]!

    const ends = Ends.make()
    const counts = { rolledBack: 0, failedCalls: 0, unexpected: 0, kills: 0, crashes: 0, rotations: 0, freed: 0 }
    /** The latest jobs, of which some are changed. */
    const latest: Array<JobRow.JobId> = []
    let waiting = 0

    const hear = (message: Message): void => {
      if (message._tag === "ran") ends.ran(message)
      if (message._tag !== "stored") return
      for (const { fence, verdict } of message.results) ends.acknowledged(fence, verdict)
    }

    const committed = (ids: ReadonlyArray<JobRow.JobId>): void => {
      ends.committed(ids)
      latest.push(...ids)
      latest.splice(0, latest.length - 500)
    }

    const payload = () => ({ act: chance(0.01) ? "slow" : pick(acts[program]), key: upTo(200) })
    const payloads = () => Array.from({ length: upTo(30) }, payload)

    const produce = Effect.gen(function*() {
      const options = { queue: pick(queues), priority: pick([1, 2, 3, 4] as const) }
      const isRegretted = chance(0.15)
      const ids = yield* Work.enqueueMany(payloads(), options).pipe(
        Effect.tap((ids) => isRegretted ? new RolledBack({ ids }) : Effect.void),
        Database.transaction
      )
      committed(ids)
    }).pipe(Effect.catchTag("RolledBack", ({ ids }) =>
      Effect.sync(() => {
        counts.rolledBack++
        ends.rolledBack(ids)
      })))

    const produceUnique = Effect.gen(function*() {
      const unique = { byPayload: ["key"] as const, states: Unique.liveStates }
      const answers = yield* Work.enqueueEach(payloads(), { queue: pick(queues), unique })
      committed(answers.flatMap((answer) => answer._tag === "Inserted" ? [answer.id] : []))
    })

    const some = () => Array.from({ length: upTo(5) }, () => latest[Math.floor(random() * latest.length)]!)
    const changes: ReadonlyArray<() => Effect.Effect<unknown, unknown, SqlClient.SqlClient>> = [
      () =>
        Effect.map(JobAdmin.cancelMany(some(), { reason: "unwanted" }), (answers) => {
          for (const answer of answers) if (answer._tag === "Changed") ends.cancelled(answer.id)
        }),
      () => JobAdmin.requestCancel(some()),
      () => JobAdmin.moveQueueMany(some(), pick(queues)),
      () => JobAdmin.setPriorityMany(some(), pick([1, 2, 3, 4])),
      () => JobAdmin.retryMany(some()),
      () => chance(0.1) ? Dlq.bulkRetry({ queue: pick(queues) }, { chunkSize: upTo(20) }) : Effect.void
    ]
    const operate = Effect.suspend(() => latest.length === 0 ? Effect.void : pick([changes[0]!, ...changes])())

    const context = yield* Effect.orDie(
      Layer.build(Database.layer({ url, maxConnections: producers + 6, connectTimeout: "5 seconds" }))
    )
    const failed = (cause: Cause.Cause<unknown>) => {
      const error = Cause.squash(cause)
      const isAway = Database.isTransient(error) || error instanceof Errors.DatabaseError && error.isInDoubt
      counts[isAway ? "failedCalls" : "unexpected"]++
      return isAway ? Effect.void : Console.error(Cause.pretty(cause))
    }
    /** Again and again, also after the server was away. */
    const keepOn = <E>(work: Effect.Effect<unknown, E, SqlClient.SqlClient>, pause: number) =>
      work.pipe(
        Effect.catchAllCause((cause) => Effect.zipRight(failed(cause), Effect.sleep("100 millis"))),
        Effect.uninterruptible,
        Effect.zipRight(Effect.suspend(() => Effect.sleep(random() * pause))),
        Effect.forever,
        Effect.provide(context)
      )

    const workerProcesses = yield* Workers.start(url, workers, hear)
    const watch = Effect.map(Queues.depth(), (depths) => {
      waiting = depths.reduce((sum, { counts }) => sum + counts.available + counts.scheduled + counts.retryable, 0)
    })
    const producer = Effect.suspend(() =>
      waiting > backlog
        ? Effect.sleep("20 millis")
        : program === "mixed" && chance(0.3)
        ? produceUnique
        : produce
    )
    const recycler = yield* Effect.fork(keepOn(recycle(counts), 50))
    const producing = yield* Effect.fork(Effect.all([
      keepOn(watch, 200),
      ...Array.from({ length: producers }, () => keepOn(producer, 10)),
      ...(program === "mixed" ? [keepOn(operate, 20), keepOn(operate, 20)] : [])
    ], { concurrency: "unbounded", discard: true }))

    const killing = yield* Effect.fork(
      Effect.suspend(() => Effect.sleep(1000 + random() * 6000)).pipe(
        Effect.zipRight(Effect.suspend(() => workerProcesses.kill(upTo(workers)))),
        Effect.zipRight(Effect.sync(() => void counts.kills++)),
        Effect.forever
      )
    )
    yield* Effect.sleep(seconds * 400)
    for (const part of [400, 200]) {
      if (server.crash !== undefined) {
        yield* server.crash
        counts.crashes++
      }
      yield* Effect.sleep(seconds * part)
    }
    yield* Fiber.interruptAll([producing, killing])

    yield* Recorder.left(url).pipe(
      Effect.repeat({ until: ({ unfinished }) => unfinished === 0, schedule: Schedule.spaced("500 millis") }),
      Effect.timeoutOption("2 minutes")
    )
    yield* workerProcesses.stop
    yield* Fiber.interrupt(recycler)
    const verdict = ends.verdict(yield* Recorder.lines(url))
    return { program, ...verdict, ...counts, ...(yield* Recorder.left(url)), seed }
  })

/** One pass over the slots, beside that of the workers, which wait a minute before they free one. */
const recycle = (counts: { rotations: number; freed: number }) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const [turn] = yield* sql<{ rotated: boolean }>`select awa.rotate(${interval}, null) as rotated`
    counts.rotations += Number(turn?.rotated === true)
    yield* sql`select awa.publish_slot()`
    for (const { slot } of yield* sql<{ slot: number }>`select slot from awa.sealed_slots()`) {
      yield* sql`select awa.count_slot(${slot}::smallint)`
      yield* sql`select awa.evict(${slot}::smallint, ${2 * interval}, 500, null)`
      yield* sql`select awa.drain_slot(${slot}::smallint, ${Recorder.slots * interval}, 100, null)`
      const [answer] = yield* sql<
        { is: string }
      >`select awa.free_slot(${slot}::smallint, ${retention}, ${settle}, null) as is`
      counts.freed += Number(answer?.is === "freed")
    }
  })
