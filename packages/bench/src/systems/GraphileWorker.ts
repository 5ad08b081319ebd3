/**
 * graphile-worker in two configurations: `graphile-worker` is the batched one (`sweep` compares its settings), and
 * `graphile-worker-default` is what a user gets who sets nothing but the concurrency.
 */
import { Effect } from "effect"
import * as GraphileWorker from "graphile-worker"
import type { Payload, Settings, System } from "../System.js"

const task = "bench"
const logger = new GraphileWorker.Logger(() => () => {})

const install: System["install"] = ({ url }) =>
  Effect.promise(() => GraphileWorker.runMigrations({ connectionString: url, logger }))

const producer: System["producer"] = ({ connections, url }) =>
  Effect.acquireRelease(
    Effect.promise(() => GraphileWorker.makeWorkerUtils({ connectionString: url, maxPoolSize: connections, logger })),
    (utils) => Effect.promise(async () => utils.release())
  ).pipe(Effect.map((utils) => ({
    many: (payloads) => Effect.promise(() => utils.addJobs(payloads.map((payload) => ({ identifier: task, payload })))),
    one: (payload) => Effect.promise(() => utils.addJob(task, payload))
  })))

/** -1 is graphile-worker's own default for what is not batched. */
const unbatched = { localQueueSize: -1, completeJobBatchDelay: -1, failJobBatchDelay: -1, preparedStatements: true }

const make = (name: string, remark: string, throughput: Settings, latency: Settings): System => ({
  name,
  remarks: [remark, "It deletes finished jobs by design: no history is kept."],
  install,
  producer,
  worker: {
    throughput,
    latency,
    alone: { ...unbatched, concurrentJobs: 1, maxPoolSize: 2 },
    claims: /get_job|for update\s+skip locked/i,
    start: ({ handle, settings, url }) =>
      Effect.acquireRelease(
        Effect.promise(() =>
          GraphileWorker.run({
            preset: {
              worker: {
                connectionString: url,
                concurrentJobs: Number(settings["concurrentJobs"]),
                maxPoolSize: Number(settings["maxPoolSize"]),
                preparedStatements: settings["preparedStatements"] === true,
                localQueue: { size: Number(settings["localQueueSize"]) },
                completeJobBatchDelay: Number(settings["completeJobBatchDelay"]),
                failJobBatchDelay: Number(settings["failJobBatchDelay"]),
                logger
              }
            },
            noHandleSignals: true,
            parsedCronItems: [],
            taskList: { [task]: (payload) => handle(payload as Payload) }
          })
        ),
        (runner) => Effect.promise(() => runner.stop())
      ),
    settled: "select not exists (select 1 from graphile_worker._private_jobs) as settled",
    finished: null
  }
})

export const defaults = make(
  "graphile-worker-default",
  "Not batched; concurrency 50, a connection for each.",
  { ...unbatched, concurrentJobs: 50, maxPoolSize: 52 },
  { ...unbatched, concurrentJobs: 10, maxPoolSize: 12 }
)

export const batched = make(
  "graphile-worker",
  "Local queue and batched completion. The benchmark `sweep` shows how other settings do.",
  {
    concurrentJobs: 100,
    maxPoolSize: 10,
    preparedStatements: true,
    localQueueSize: 1000,
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0
  },
  {
    concurrentJobs: 10,
    maxPoolSize: 12,
    preparedStatements: true,
    localQueueSize: 11,
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0
  }
)
