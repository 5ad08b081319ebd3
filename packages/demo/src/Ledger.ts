/**
 * The shop's own tables, beside the queue in the same database: its orders, and what its handlers did, attempt by
 * attempt. The second is the demo's own record, which it compares with the queue at the end.
 */
import { SqlClient } from "@effect/sql"
import { type JobContext, JobError, JobResult } from "awa"
import { Cause, Effect, Exit, Option } from "effect"

/** What a handler made of an attempt. */
export type Outcome = "completed" | "retry" | "cancelled" | "failed"

/** An attempt as its handler recorded it; without an outcome, the handler never came to its end. */
export interface Attempt {
  readonly jobId: string
  readonly attempt: number
  readonly fence: string
  readonly worker: string
  readonly begunAtMillis: number
  readonly outcome: Outcome | null
}

export const create = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`create schema shop`
  yield* sql`create table shop.orders (id integer primary key, customer text not null)`
  yield* sql`create table shop.attempts (
    id bigint generated always as identity primary key,
    job_id bigint not null,
    attempt integer not null,
    fence text not null,
    worker text not null,
    begun_at timestamptz not null default clock_timestamp(),
    outcome text
  )`
})

export const insertOrder = (order: { readonly id: number; readonly customer: string }) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql`insert into shop.orders ${sql.insert(order)}`)

/** Runs a handler and writes down that it began and how it ended. */
export const witness = <E, R>(
  worker: string,
  { attempt, fence, job }: JobContext.Service,
  handler: Effect.Effect<JobResult.JobResult | void, E, R>
) =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const [entry] = yield* sql<{ readonly id: string }>`
      insert into shop.attempts ${sql.insert({ job_id: job.id, attempt, fence, worker })} returning id`
    const exit = yield* Effect.exit(handler)
    yield* sql`update shop.attempts set outcome = ${outcomeOf(exit)} where id = ${entry!.id}`
    return yield* exit
  })

const outcomeOf = (exit: Exit.Exit<JobResult.JobResult | void, unknown>): Outcome =>
  Exit.match(exit, {
    onFailure: (cause) => Option.exists(Cause.failureOption(cause), JobError.isTerminal) ? "failed" : "retry",
    onSuccess: (result) => {
      if (!JobResult.isJobResult(result) || result._tag === "Completed") return "completed"
      return result._tag === "Cancel" ? "cancelled" : "retry"
    }
  })

/** The jobs a worker is in the middle of, according to its handlers. */
export const inTheMiddleOf = (worker: string) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    Effect.map(
      sql<{ readonly jobId: string }>`
        select job_id as "jobId" from shop.attempts where worker = ${worker} and outcome is null`,
      (rows) => rows.map(({ jobId }) => jobId)
    ))

export const countOrders = Effect.flatMap(SqlClient.SqlClient, (sql) =>
  Effect.map(
    sql<{ readonly count: number }>`select count(*)::integer as count from shop.orders`,
    ([row]) => row!.count
  ))

export const attempts = Effect.flatMap(SqlClient.SqlClient, (sql) =>
  sql<Attempt>`
    select
      job_id as "jobId", attempt, fence, worker, outcome,
      (extract(epoch from begun_at) * 1000)::float8 as "begunAtMillis"
    from shop.attempts
    order by id`)
