/**
 * `npm run demo`: a job queue's life in half a minute, and the proof that nothing went wrong in it.
 *
 * Starts PostgreSQL and three workers, enqueues a few thousand jobs, kills a worker in the middle of its work, waits
 * until all is done, and compares everything the queue says with what this program and its handlers recorded. Exits with
 * 1 if anything differs.
 *
 * `--short` does the same with few jobs and two workers. With `DATABASE_URL` it uses that server, in a database it makes
 * and drops.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Database, Migrations } from "awa"
import { Cause, Data, type Duration, Effect, Exit, Option, Redacted } from "effect"
import { parseArgs } from "node:util"
import * as Audit from "./Audit.js"
import * as Ledger from "./Ledger.js"
import * as Queue from "./Queue.js"
import * as Report from "./Report.js"
import * as Server from "./Server.js"
import * as Shop from "./Shop.js"
import { hideStatus, number, say, showStatus, style } from "./Terminal.js"
import * as WorkerProcess from "./WorkerProcess.js"

class TookTooLong extends Data.TaggedError("TookTooLong")<{ readonly message: string }> {}

/** Asks again and again until the answer is the one that is waited for. */
const until = <A, E, R>(options: {
  readonly what: string
  readonly ask: Effect.Effect<A, E, R>
  readonly isIt: (answer: A) => boolean
  readonly every: Duration.DurationInput
}) => {
  const asking: Effect.Effect<A, E, R> = Effect.flatMap(
    options.ask,
    (answer) => options.isIt(answer) ? Effect.succeed(answer) : Effect.zipRight(Effect.sleep(options.every), asking)
  )
  return Effect.timeoutFail(asking, {
    duration: "3 minutes",
    onTimeout: () => new TookTooLong({ message: `Waited three minutes in vain until ${options.what}` })
  })
}

const startWorkers = (count: number, database: Server.OwnDatabase) =>
  Effect.forEach(
    Array.from({ length: count }, (_, index) => `worker ${index + 1}`),
    (name) => WorkerProcess.start({ name, database, onLine: (line) => say(style("dim", `    ${name}: ${line}`)) }),
    { concurrency: "unbounded" }
  )

/** The videos a worker is in the middle of: its handlers say so, and so does the queue. */
const videosOf = (worker: string) =>
  Effect.flatMap(Ledger.inTheMiddleOf(worker), (ids) => ids.length === 0 ? Effect.succeed([]) : Queue.videos(ids))

/**
 * Kills a worker in the middle of its videos, and answers what all workers ran at that moment. Once its sessions are
 * gone the dead worker cannot change the database any more, and nobody has taken its jobs yet.
 */
const killInTheMiddle = (worker: WorkerProcess.WorkerProcess) =>
  Effect.gen(function*() {
    const videos = yield* until({
      what: `${worker.name} was in the middle of a video`,
      ask: videosOf(worker.name),
      isIt: (videos) => videos.length > 0,
      every: "100 millis"
    })
    yield* worker.kill
    say(`${style("red", `Killed ${worker.name}`)} while it rendered ${videos.map(({ title }) => title).join(" and ")}`)
    yield* until({
      what: `the sessions of ${worker.name} had ended`,
      ask: Queue.sessions(worker.applicationNames),
      isIt: (count) => count === 0,
      every: "20 millis"
    })
    const running = yield* Queue.running
    return { worker: worker.name, running }
  })

const watchUntilDone = (jobs: number) =>
  until({
    what: "all jobs were done",
    ask: Effect.tap(Queue.counts, (counts) => showStatus(Report.status(counts, jobs))),
    isIt: ({ cancelled = 0, completed = 0, failed = 0 }: Queue.Counts) => completed + cancelled + failed >= jobs,
    every: "500 millis"
  }).pipe(
    Effect.catchTag("TookTooLong", ({ message }) => Effect.sync(() => say(message))), // the audit tells the rest
    Effect.ensuring(Effect.sync(hideStatus))
  )

const story = (plan: Shop.Plan, database: Server.OwnDatabase) =>
  Effect.gen(function*() {
    const migrations = yield* Migrations.run()
    yield* Ledger.create
    say(`Migrated: ${migrations.length} migrations`)

    const workers = yield* startWorkers(plan.workers, database)
    const [victim, ...survivors] = workers as [WorkerProcess.WorkerProcess, ...typeof workers]
    say(`Started ${workers.map(({ name, pid }) => `${name} (pid ${pid})`).join(", ")}`)

    const play = Effect.gen(function*() {
      const regretted = yield* Shop.enqueueAndRegret(plan)
      say(`Rolled back a transaction that had enqueued ${number(regretted.length)} jobs`)
      const expected = yield* Shop.enqueue(plan)
      say(`Enqueued ${number(expected.length)} jobs`)
      const [killed] = yield* Effect.all([killInTheMiddle(victim), watchUntilDone(expected.length)], {
        concurrency: "unbounded"
      })
      yield* Effect.forEach(survivors, ({ stop }) => stop, { concurrency: "unbounded" })
      say("Stopped the others")
      return Audit.make({
        expected,
        regretted,
        killed,
        attempts: yield* Ledger.attempts,
        stored: yield* Queue.jobs,
        orders: { recorded: plan.orders, stored: yield* Ledger.countOrders }
      })
    })
    return yield* Effect.raceFirst(play, Effect.raceAll(workers.map(({ guard }) => guard)))
  })

class Differs extends Data.TaggedError("Differs")<{ readonly message: string }> {}

const demo = (plan: Shop.Plan) =>
  Effect.gen(function*() {
    const database = yield* Server.ownDatabase
    say(`PostgreSQL ${database.version}${database.isEmbedded ? ", embedded" : ""}, database ${database.name}`)
    const audit = yield* Effect.provide(
      story(plan, database),
      Database.layer({ url: Redacted.make(database.url), database: database.name, applicationName: "awa demo" })
    )
    for (const line of Report.audit(audit)) say(line)
    if (audit.differences.length > 0) return yield* new Differs({ message: "The queue and the record differ." })
  }).pipe(Effect.scoped)

class WrongArguments extends Data.TaggedError("WrongArguments")<{ readonly message: string }> {}

const chosenPlan = Effect.try({
  try: () =>
    parseArgs({ options: { short: { type: "boolean" } } }).values.short === true ? Shop.shortPlan : Shop.fullPlan,
  catch: () => new WrongArguments({ message: "Usage: npm run demo [-- --short]" })
})

NodeRuntime.runMain(
  Effect.flatMap(chosenPlan, demo).pipe(
    Effect.onError((cause) =>
      Effect.sync(() => {
        hideStatus()
        const failure = Cause.failureOption(cause)
        if (Cause.isInterruptedOnly(cause)) return say("Interrupted")
        // The program's entry file: what it ends with goes to the terminal, whatever logger there is.
        console.error(style("red", Option.isSome(failure) ? failure.value.message : Cause.pretty(cause)))
      })
    )
  ),
  {
    disableErrorReporting: true,
    teardown: (exit, onExit) => onExit(Exit.isSuccess(exit) ? 0 : Cause.isInterruptedOnly(exit.cause) ? 130 : 1)
  }
)
