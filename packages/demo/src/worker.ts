/**
 * A worker process: runs the shop's jobs until it is told to stop, or its parent is gone.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Awa, AwaLive, Database, type Job, JobContext, JobError, JobResult } from "awa"
import { Config, Data, Effect, Layer, Logger, Option, Schema } from "effect"
import * as Jobs from "./Jobs.js"
import * as Ledger from "./Ledger.js"

const workerName = process.env["DEMO_WORKER"] ?? "worker"

/** `Awa.handle`, with every attempt written down in the shop's own ledger. */
const handle = <J extends Job.Any, E, R>(
  job: J,
  handler: (payload: Job.Payload<J>, context: JobContext.Service) => Effect.Effect<JobResult.JobResult | void, E, R>
) => Awa.handle(job, (payload, context) => Ledger.witness(workerName, context, handler(payload, context)))

/** Stands for the mail server and the bank, which take their time. */
const send = (_to: string) => Effect.sleep("50 millis")

class CardDeclined extends Data.TaggedError("CardDeclined") {}

const charge = (declines: number, attempt: number) =>
  Effect.zipRight(Effect.sleep("20 millis"), attempt <= declines ? new CardDeclined() : Effect.void)

class NoAnswer extends Data.TaggedError("NoAnswer")<{ readonly url: string }> {}

const call = (url: string) => Effect.zipRight(Effect.sleep("30 millis"), new NoAnswer({ url }))

/** What an earlier attempt left with `updateMetadata`. */
const Checkpoint = Schema.Struct({ metadata: Schema.Struct({ framesDone: Schema.Int }) })

/** Goes on where a worker that died left off. */
const render = (video: Job.Payload<typeof Jobs.RenderVideo>) =>
  Effect.gen(function*() {
    const { job, setProgress, updateMetadata } = yield* JobContext.JobContext
    const framesDone = Option.match(Schema.decodeUnknownOption(Checkpoint)(job.progress), {
      onNone: () => 0,
      onSome: ({ metadata }) => metadata.framesDone
    })
    if (framesDone > 0) yield* Effect.log(`${video.title} goes on after frame ${framesDone} of ${video.frames}`)
    for (let frame = framesDone + 1; frame <= video.frames; frame++) {
      yield* Effect.sleep("100 millis")
      yield* setProgress(100 * frame / video.frames)
      yield* updateMetadata({ framesDone: frame })
    }
  })

const worker = Awa.builder.pipe(
  Awa.queue("mail", { maxWorkers: 15 }),
  Awa.queue("shop", { maxWorkers: 10 }),
  Awa.queue("video", { maxWorkers: 2, deadline: "1 minute" }),
  // Much shorter than the defaults, so that one can watch how the jobs of a dead worker are rescued.
  Awa.heartbeat({ interval: "1 second", staleness: "5 seconds", rescueInterval: "1 second" }),
  Awa.maintenance({ leaderElectionInterval: "1 second" }),
  Awa.shutdown({ timeout: "10 seconds" }),
  handle(Jobs.SendNewsletter, ({ to }) => send(to)),
  handle(Jobs.ConfirmOrder, ({ to }) => send(to)),
  handle(Jobs.SendReminder, ({ to }) => send(to)),
  handle(Jobs.ChargeCard, ({ declines }, { attempt }) =>
    charge(declines, attempt).pipe(
      Effect.catchTag("CardDeclined", () => JobResult.retryAfter("500 millis"))
    )),
  handle(Jobs.ReserveItem, ({ item, soldOut }) => soldOut ? JobResult.cancel(`${item} is sold out`) : Effect.void),
  handle(Jobs.ImportInvoice, ({ damaged, file }) => damaged ? JobError.terminal(`cannot read ${file}`) : Effect.void),
  handle(Jobs.CallWebhook, ({ url }) => call(url)), // a failure like any other: retried with backoff
  handle(Jobs.RenderVideo, render)
)

/** Tells the parent process that this worker is at work. */
const announce = Layer.effectDiscard(
  Effect.map(Awa.Awa, ({ instanceId }) => process.send?.({ instanceId }))
)

const DatabaseLive = Database.layerConfig({
  url: Config.redacted("DATABASE_URL"),
  database: Config.string("DEMO_DATABASE"),
  maxConnections: Config.succeed(5),
  applicationName: Config.succeed(`awa demo ${workerName}`)
})

const WorkerLive = announce.pipe(Layer.provide(AwaLive(worker)), Layer.provide(DatabaseLive))

/** The parent prints what this process logs. Jobs fail here because they are meant to: the table at the end counts them. */
const LoggerLive = Logger.replace(
  Logger.defaultLogger,
  Logger.make(({ message }) => {
    const [line = ""] = String(message).split("\n", 1)
    // Of a program's entry file: its standard output is the channel to the parent.
    if (!line.startsWith("Job failed:")) console.log(line)
  })
)

process.once("disconnect", () => process.exit(1))
if (process.connected === false) process.exit(1)

NodeRuntime.runMain(Effect.provide(Layer.launch(WorkerLive), LoggerLive), { disablePrettyLogger: true })
