/**
 * This library through its public API, payloads encoded and decoded by their schema.
 */
import { SqlClient } from "@effect/sql"
import { Awa, AwaLive, Database, Job, type JobContext, JobError, JobResult, Migrations } from "awa"
import { Effect, Layer, Schema } from "effect"
import type { Payload, System, Worker } from "../System.js"

const queue = "bench"

const BenchJob = Job.make("bench", {
  payload: {
    id: Schema.Int,
    to: Schema.String,
    subject: Schema.String,
    body: Schema.String,
    sentAt: Schema.Number
  },
  queue
})

/** `shards`: over how many lanes the queue is spread. */
const install: System["install"] = ({ settings: { shards = 1 }, url }) =>
  Effect.gen(function*() {
    yield* Migrations.run()
    const sql = yield* SqlClient.SqlClient
    if (shards !== 1) yield* sql`insert into awa.queues (name, shards) values (${queue}, ${Number(shards)})`
  }).pipe(Effect.provide(Database.layer({ url })), Effect.orDie)

const producer: System["producer"] = ({ connections, url }) =>
  Effect.map(
    // A producer that cannot keep up waits for a connection.
    Effect.orDie(Layer.build(Database.layer({ url, maxConnections: connections, connectTimeout: "5 minutes" }))),
    (context) => ({
      many: (payloads) => BenchJob.enqueueMany(payloads).pipe(Effect.provide(context), Effect.orDie, Effect.asVoid),
      one: (payload) => BenchJob.enqueue(payload).pipe(Effect.provide(context), Effect.orDie, Effect.asVoid)
    })
  )

const run = <E, R extends never, Kinds extends string>(url: string, worker: Awa.Builder<E, R, Kinds>) =>
  Layer.build(Layer.provide(AwaLive(worker), Database.layer({ url }))).pipe(Effect.orDie, Effect.asVoid)

export const awa: System = {
  name: "awa",
  remarks: [
    "Public API with schema decoding. Finished jobs are kept.",
    "Defaults: claims are asynchronous (one lost in a crash of the server is delivered again), completions synchronous."
  ],
  install,
  producer,
  worker: {
    throughput: { maxWorkers: 6000, batchSize: 2000 },
    latency: { maxWorkers: 50, batchSize: 512 },
    alone: { maxWorkers: 1, batchSize: 1 },
    claims: /\.claim\(/,
    start: ({ handle, settings, url }) =>
      run(
        url,
        Awa.builder.pipe(
          Awa.queue(queue, {
            maxWorkers: Number(settings["maxWorkers"]),
            claimBatchSize: Number(settings["batchSize"])
          }),
          Awa.completion({ batchSize: Number(settings["batchSize"]) }),
          Awa.handle(BenchJob, (payload) => Effect.sync(() => handle(payload)))
        )
      ),
    // Every position was closed, and no transaction of a producer is left.
    settled: "select (select last_value from awa.pos_seq) = (select sum(n) from awa.closures) as settled",
    finished: "select count(*)::int as finished from awa.jobs where state = 'completed'"
  }
}

/** For the benchmark `claimers`: the same queue, spread over four lanes of each priority. */
export const sharded: System = {
  ...awa,
  name: "awa-4-shards",
  remarks: [...awa.remarks, "The queue has four shards: order is kept within each."],
  worker: awa.worker === null ? null : { ...awa.worker, alone: { ...awa.worker.alone, shards: 4 } }
}

/** How many of the first jobs never end in a worker that hangs. */
const hanging = 100

/** One job in ten each is retried, snoozed, cancelled, failed; all others complete. */
const outcome = (payload: Payload, context: JobContext.Service, snoozed: Set<number>, handle: () => void) => {
  const firstTime = !snoozed.has(payload.id)
  switch (payload.id % 10) {
    case 1:
      return context.attempt === 1 ? Effect.succeed(JobResult.retryAfter("20 millis")) : Effect.sync(handle)
    case 2:
      snoozed.add(payload.id)
      return firstTime ? Effect.succeed(JobResult.snooze("20 millis")) : Effect.sync(handle)
    case 3:
      return Effect.as(Effect.sync(handle), JobResult.cancel("not wanted any more"))
    case 4:
      return Effect.zipRight(Effect.sync(handle), JobError.terminal("cannot be done"))
    default:
      return Effect.sync(handle)
  }
}

const startMixed: Worker["start"] = ({ handle, settings, url }) => {
  const snoozed = new Set<number>()
  const hangs = settings["hangs"] === true
  return run(
    url,
    Awa.builder.pipe(
      Awa.queue(queue, { maxWorkers: Number(settings["maxWorkers"]) }),
      Awa.heartbeat({ interval: "300 millis", staleness: "1500 millis", rescueInterval: "300 millis" }),
      Awa.maintenance({ leaderElectionInterval: "300 millis" }),
      Awa.handle(
        BenchJob,
        (payload, context): Effect.Effect<JobResult.JobResult | void, JobError.JobError> =>
          hangs && payload.id < hanging ? Effect.never : outcome(payload, context, snoozed, () => handle(payload))
      )
    )
  )
}

/** For the benchmark `tables`: a worker with every kind of outcome, which may hang so that it can be killed. */
export const mixed: System = {
  name: "awa-mixed",
  remarks: [
    "Jobs that complete, are retried, snoozed, cancelled and failed, a tenth of the jobs each.",
    `The first worker hangs in ${hanging} jobs and is killed; the second rescues them.`
  ],
  install,
  producer,
  worker: {
    throughput: { maxWorkers: 1000, hangs: false },
    latency: { maxWorkers: 1000, hangs: false },
    start: startMixed,
    settled: `select not exists (select from awa.deferred_jobs)
      and (select count(*) from awa.ready_entries) = (select sum(n) from awa.closures) as settled`,
    finished: "select count(*)::int as finished from awa.jobs where state in ('completed', 'cancelled', 'failed')"
  }
}
