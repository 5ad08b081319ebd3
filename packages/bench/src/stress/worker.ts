/**
 * A worker process of a stress program. It tells its parent of each attempt before it does anything, so that the parent
 * knows of it whenever this process is killed.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Awa, AwaLive, Database, type JobContext, JobError, JobResult, Signals } from "awa"
import { Effect, Layer, Logger, LogLevel } from "effect"
import { slots } from "./Recorder.js"
import { type Act, type Message, queues, Work } from "./Work.js"

const tell = (message: Message): void => {
  if (process.connected) process.send?.(message)
}

const outcome = (act: Act, { attempt, job }: JobContext.Service) => {
  switch (act) {
    case "complete":
      return Effect.void
    case "slow":
      return Effect.sleep("1 second")
    case "retry":
      return attempt === 1 ? Effect.succeed(JobResult.retryAfter("20 millis")) : Effect.void
    case "snooze":
      return job.runLease === 1n ? Effect.succeed(JobResult.snooze("20 millis")) : Effect.void
    case "cancel":
      return Effect.succeed(JobResult.cancel("not wanted any more"))
    case "fail":
      return Effect.fail(JobError.terminal("cannot be done"))
  }
}

/** Everything happens as soon and as often as it may. */
const worker = Awa.builder.pipe(
  Awa.queue(queues[0], { maxWorkers: 100, claimBatchSize: 50 }),
  Awa.queue(queues[1], { maxWorkers: 20, claimBatchSize: 10 }),
  Awa.heartbeat({ interval: "300 millis", staleness: "1500 millis", rescueInterval: "300 millis" }),
  Awa.maintenance({
    leaderElectionInterval: "100 millis",
    promoteInterval: "50 millis",
    reclaimInterval: "100 millis",
    expireInterval: "200 millis",
    keySweepInterval: "1 day"
  }),
  Awa.retention({ completed: "100 millis", failed: "1 day", cancelled: "1 day" }),
  Awa.queueStorage({ queueSlotCount: slots, queueRotateInterval: "200 millis", leaseRotateInterval: "200 millis" }),
  Awa.dlq({ enabled: true }),
  Awa.handle(Work, ({ act }, context) =>
    Effect.suspend(() => {
      tell({ _tag: "ran", fence: context.fence, claimedAt: context.job.attemptedAt!.getTime() })
      return outcome(act, context)
    }))
)

const onSignal = (signal: Signals.Signal): void => {
  if (signal._tag !== "flushed") return
  tell({
    _tag: "stored",
    results: signal.results.flatMap(({ fence, outcome, verdict }) =>
      outcome === "completed" && verdict !== "refused" ? [{ fence, verdict }] : []
    )
  })
}

const Announced = Layer.effectDiscard(Effect.map(Awa.Awa, () => tell({ _tag: "ready" })))

const Live = Announced.pipe(
  Layer.provide(AwaLive(worker)),
  Layer.provide(Layer.succeed(Signals.Signals, onSignal)),
  Layer.provide(Database.layer({ url: process.argv[2]!, maxConnections: 2 }))
)

process.once("disconnect", () => process.exit(1))

NodeRuntime.runMain(Layer.launch(Live).pipe(Logger.withMinimumLogLevel(LogLevel.None)), { disableErrorReporting: true })
