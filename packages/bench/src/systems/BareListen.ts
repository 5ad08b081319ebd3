/**
 * The least that a wake-up by `LISTEN`/`NOTIFY` costs: two baselines for latency on plain node-postgres clients.
 * `bare-listen` notifies and selects one row by its key; `bare-listen-insert` also stores the job before it notifies, in
 * the same statement, and selects that row.
 */
import { Effect } from "effect"
import pg from "pg"
import type { Payload, System } from "../System.js"

const connect = (url: string) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      return client
    }),
    (client) => Effect.promise(() => client.end())
  )

const makePool = (url: string, max: number) =>
  Effect.acquireRelease(
    Effect.sync(() => new pg.Pool({ connectionString: url, max })),
    (pool) => Effect.promise(() => pool.end())
  )

const make = (options: {
  readonly name: string
  readonly remark: string
  readonly notify: string
  /** From a notification's text to the parameters of the select. */
  readonly select: string
  readonly parse: (notification: string, row: { readonly payload: Payload }) => Payload
  readonly key: (notification: string) => string
}): System => ({
  name: options.name,
  remarks: [options.remark],
  install: ({ url }) =>
    connect(url).pipe(
      Effect.flatMap((client) =>
        Effect.promise(() =>
          client.query(`
            create table bare_jobs (id bigint generated always as identity primary key, payload jsonb not null);
            insert into bare_jobs (payload) values ('{}')`)
        )
      ),
      Effect.scoped
    ),
  producer: ({ connections, url }) =>
    Effect.gen(function*() {
      const pool = yield* makePool(url, connections)
      const one = (payload: Payload) =>
        Effect.promise(() => pool.query({ name: "notify", text: options.notify, values: [JSON.stringify(payload)] }))
      return { one, many: (payloads) => Effect.forEach(payloads, one, { discard: true }) }
    }),
  worker: {
    throughput: {},
    latency: {},
    start: ({ handle, url }) =>
      Effect.gen(function*() {
        const listener = yield* connect(url)
        const readers = yield* makePool(url, 4)
        listener.on("notification", ({ payload: notification = "" }) => {
          void readers.query({ name: "select", text: options.select, values: [options.key(notification)] })
            .then(({ rows }) => handle(options.parse(notification, rows[0])))
        })
        yield* Effect.promise(() => listener.query("listen bare_jobs"))
      }),
    settled: "select true as settled",
    finished: null
  }
})

export const bareListen = make({
  name: "bare-listen",
  remark: "Baseline: pg_notify with the payload in it, then select of one row by key. Nothing is stored.",
  notify: "select pg_notify('bare_jobs', $1)",
  select: "select payload from bare_jobs where id = $1::bigint",
  key: () => "1",
  parse: (notification) => JSON.parse(notification) as Payload
})

export const bareListenInsert = make({
  name: "bare-listen-insert",
  remark: "Baseline: insert of the job and pg_notify in one statement, then select of that row by key.",
  notify: `with inserted as (insert into bare_jobs (payload) values ($1::jsonb) returning id)
    select pg_notify('bare_jobs', id::text) from inserted`,
  select: "select payload from bare_jobs where id = $1::bigint",
  key: (notification) => notification,
  parse: (_, row) => row.payload
})
