/**
 * pg-boss with batches: one handler call, one fetch and one completion for each batch.
 */
import { Effect } from "effect"
import type { Payload, System } from "../System.js"

const queue = "bench"

/** The part of pg-boss used here; its own declarations need `skipLibCheck`. */
interface PgBoss {
  readonly on: (event: "error", listener: (error: Error) => void) => void
  readonly start: () => Promise<PgBoss>
  readonly stop: () => Promise<void>
  readonly createQueue: (
    name: string,
    options: { readonly partition: boolean; readonly notify: boolean }
  ) => Promise<void>
  readonly insert: (name: string, jobs: ReadonlyArray<{ readonly data: Payload }>) => Promise<void>
  readonly send: (name: string, data: Payload) => Promise<void>
  readonly work: (
    name: string,
    options: {
      readonly localConcurrency: number
      readonly batchSize: number
      readonly burstWhenBatchFull: boolean
      readonly pollingIntervalSeconds: number
    },
    handler: (jobs: ReadonlyArray<{ readonly data: Payload }>) => Promise<void>
  ) => Promise<void>
}

interface ConstructorOptions {
  readonly connectionString: string
  readonly max: number
  readonly useListenNotify: boolean
  readonly connectionTimeoutMillis: number
}

const { PgBoss } = await import(import.meta.resolve("pg-boss")) as {
  readonly PgBoss: new(options: ConstructorOptions) => PgBoss
}

const open = (url: string, max: number, useListenNotify = false) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const boss = new PgBoss({
        connectionString: url,
        max,
        useListenNotify,
        connectionTimeoutMillis: 300_000 // as with ours, a producer that cannot keep up waits for a connection
      })
      boss.on("error", (error) => {
        throw error
      })
      return boss.start()
    }),
    (boss) => Effect.promise(() => boss.stop())
  )

export const pgBoss: System = {
  name: "pg-boss",
  remarks: ["Batches: one handler call for all jobs of a fetch. Finished jobs are kept (seven days by default)."],
  install: ({ settings, url }) =>
    open(url, 2).pipe(
      Effect.flatMap((boss) =>
        Effect.promise(() =>
          boss.createQueue(queue, { partition: settings["partition"] === true, notify: settings["notify"] === true })
        )
      ),
      Effect.scoped
    ),
  producer: ({ connections, url }) =>
    Effect.map(open(url, connections), (boss) => ({
      many: (payloads) => Effect.promise(() => boss.insert(queue, payloads.map((data) => ({ data })))),
      one: (payload) => Effect.promise(() => boss.send(queue, payload))
    })),
  worker: {
    throughput: { workers: 2, batchSize: 2000, partition: false, notify: false },
    latency: { workers: 1, batchSize: 100, partition: false, notify: true },
    alone: { workers: 1, batchSize: 1, partition: false, notify: false },
    claims: /for update of j\s+skip locked/i,
    start: ({ handle, settings, url }) =>
      Effect.gen(function*() {
        const workers = Number(settings["workers"])
        const boss = yield* open(url, workers + 4, settings["notify"] === true)
        const options = {
          localConcurrency: workers,
          batchSize: Number(settings["batchSize"]),
          burstWhenBatchFull: true,
          pollingIntervalSeconds: 0.5
        }
        yield* Effect.promise(() =>
          boss.work(queue, options, async (jobs) => {
            for (const job of jobs) handle(job.data)
          })
        )
      }),
    settled: "select not exists (select 1 from pgboss.job where name = 'bench' and state < 'completed') as settled",
    finished: "select count(*)::int as finished from pgboss.job where name = 'bench' and state = 'completed'"
  }
}
