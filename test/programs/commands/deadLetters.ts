import { Dlq, JobRow } from "@awa/model"
import { Effect, FastCheck as fc, Option } from "effect"
import * as assert from "node:assert/strict"
import { command, hasJobs, limit, pick, queue, undone } from "../support/command.js"
import type { Model, ModelJob } from "../support/model.js"
import { inVain } from "../support/real.js"

const { retry: runAgain } = Dlq

type Scope = { readonly all: true } | { readonly queue: string }

const scope: fc.Arbitrary<Scope> = fc.oneof(fc.constant({ all: true } as const), fc.record({ queue }))

const inScope = (scope: Scope) => ({ queue }: ModelJob): boolean => !("queue" in scope) || scope.queue === queue

const hasDeadLetters = ({ deadLetters }: Model): boolean => deadLetters.length > 0

/** Those that failed and may become dead letters. */
const failed = (model: Model): ReadonlyArray<ModelJob> =>
  model.visible.filter(({ deadAt, state }) => state === "failed" && deadAt === undefined)

/** Mostly one of these; or else one of the latest jobs, whatever it is. */
const chosen = (model: Model, jobs: ReadonlyArray<ModelJob>, pick: number): ModelJob =>
  pick % 5 === 0 ? model.job(pick) : jobs[pick % jobs.length] ?? model.job(pick)

const idOf = ({ id }: ModelJob) => JobRow.JobId.make(id)

/** Whether a job's key is being taken: then its retry would wait. */
const isDoubtful = (model: Model) => ({ unique }: ModelJob): boolean =>
  unique !== undefined && model.isTaking(unique.of)

export const bury = command("bury", {
  weight: 4,
  fields: { pick, undone },
  check: hasJobs,
  run: ({ pick, undone }, model) =>
    Effect.gen(function*() {
      const job = chosen(model, failed(model), pick)
      const move = Dlq.move(idOf(job), "by hand")
      const entry = yield* undone ? inVain(move) : move
      const hasFailed = failed(model).includes(job)
      assert.equal(Option.isSome(entry), hasFailed, "became a dead letter")
      if (hasFailed && !undone) job.deadAt = model.now
    })
})

export const buryAll = command("bury all", {
  weight: 2,
  fields: { scope, chunkSize: limit, undone },
  run: ({ chunkSize, scope, undone }, model) =>
    Effect.gen(function*() {
      const move = Dlq.bulkMove(scope, "by hand", { chunkSize })
      const moved = yield* undone ? inVain(move) : move
      const jobs = failed(model).filter(inScope(scope))
      assert.equal(moved, jobs.length, "jobs that became dead letters")
      if (!undone) { for (const job of jobs) job.deadAt = model.now }
    })
})

export const revive = command("revive", {
  weight: 8,
  fields: {
    pick,
    undone,
    queue: fc.option(queue, { nil: undefined }),
    delay: fc.constantFrom(undefined, -1_000, 20_000)
  },
  check: (model, { pick }) => hasDeadLetters(model) && !isDoubtful(model)(chosen(model, model.deadLetters, pick)),
  run: ({ delay, pick, queue, undone }, model) =>
    Effect.gen(function*() {
      const job = chosen(model, model.deadLetters, pick)
      const runAt = delay === undefined ? undefined : new Date(model.now + delay)
      const retry = runAgain(idOf(job), { queue, runAt }).pipe(
        Effect.map(Option.match({ onNone: () => "no dead letter", onSome: () => "runs again" })),
        Effect.catchTag("UniqueConflict", ({ jobId }) => Effect.succeed(`job ${jobId} has its key`))
      )
      const answer = yield* undone ? inVain(retry) : retry
      const holder = job.unique === undefined ? undefined : model.holder(job.unique.of)
      const expected = !model.deadLetters.some(({ id }) => id === job.id)
        ? "no dead letter"
        : holder !== undefined && holder !== job
        ? `job ${holder.id} has its key`
        : "runs again"
      assert.equal(answer, expected, "retry of a dead letter")
      if (answer === "runs again" && !undone) model.revive(job, { queue, at: runAt?.getTime() })
      model.place()
    })
})

export const reviveAll = command("revive all", {
  weight: 4,
  fields: { scope, chunkSize: limit, undone },
  check: (model) => hasDeadLetters(model) && !model.deadLetters.some(isDoubtful(model)),
  run: ({ chunkSize, scope, undone }, model) =>
    Effect.gen(function*() {
      const retry = Dlq.bulkRetry(scope, { chunkSize })
      const revived = yield* undone ? inVain(retry) : retry
      const dead = undone ? [] : model.deadLetters.filter(inScope(scope))
      let expected = undone ? revived : 0
      while (dead.length > 0) {
        // Keys are taken in their order: of two jobs of one key the older has it.
        const piece = dead.splice(0, chunkSize).sort((a, b) => a.id < b.id ? -1 : 1)
        expected += piece.filter((job) => model.revive(job)).length
        model.place()
      }
      assert.equal(revived, expected, "dead letters that run again")
    })
})

export const purge = command("purge", {
  weight: 3,
  fields: { pick, undone },
  check: hasDeadLetters,
  run: ({ pick, undone }, model) =>
    Effect.gen(function*() {
      const job = chosen(model, model.deadLetters, pick)
      const purged = yield* undone ? inVain(Dlq.purgeOne(idOf(job))) : Dlq.purgeOne(idOf(job))
      const wasDead = model.deadLetters.some(({ id }) => id === job.id)
      assert.equal(purged, wasDead, "was thrown away")
      if (wasDead && !undone) model.throwAway(job)
    })
})

export const purgeAll = command("purge all", {
  weight: 1,
  fields: { scope, chunkSize: limit, undone },
  check: hasDeadLetters,
  run: ({ chunkSize, scope, undone }, model) =>
    Effect.gen(function*() {
      const jobs = model.deadLetters.filter(inScope(scope))
      const purge = Dlq.purge(scope, { chunkSize })
      assert.equal(yield* undone ? inVain(purge) : purge, jobs.length, "dead letters that were thrown away")
      if (!undone) { for (const job of jobs) model.throwAway(job) }
    })
})

/** Throws away what was kept for too long. */
export const cleanUp = command("clean up dead letters", {
  weight: 1,
  fields: { seconds: fc.constantFrom(20, 120) },
  check: hasDeadLetters,
  run: ({ seconds }, model) =>
    Effect.gen(function*() {
      const old = model.deadLetters.filter(({ deadAt }) => deadAt < model.now - seconds * 1000)
      assert.equal(yield* Dlq.cleanup(`${seconds} seconds`), old.length, "dead letters that were thrown away")
      for (const job of old) model.throwAway(job)
    })
})
