/**
 * What the queue says of itself: reads the view `awa.jobs`.
 */
import { SqlClient } from "@effect/sql"
import type { JobState } from "awa"
import { Effect } from "effect"
import type { Running, Stored } from "./Audit.js"
import { RenderVideo } from "./Jobs.js"

export type Counts = { readonly [State in JobState.JobState]?: number }

export const counts = Effect.flatMap(SqlClient.SqlClient, (sql) =>
  Effect.map(
    sql<{ readonly state: JobState.JobState; readonly count: number }>`
      select state, count(*)::integer as count from awa.jobs group by state`,
    (rows): Counts => Object.fromEntries(rows.map(({ count, state }) => [state, count]))
  ))

/** The videos among these jobs that are being rendered, with frames that outlive their attempt. */
export const videos = (ids: ReadonlyArray<string>) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    sql<{ readonly title: string }>`
      select args ->> 'title' as title
      from awa.jobs
      where ${sql.in("id", ids)} and kind = ${RenderVideo.kind} and state = 'running' and progress is not null
      order by id`)

export const running = Effect.flatMap(
  SqlClient.SqlClient,
  (sql) => sql<Running>`select id as "jobId", attempt from awa.jobs where state = 'running'`
)

/** How many sessions of the server bear one of these names. */
export const sessions = (applicationNames: ReadonlyArray<string>) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    Effect.map(
      sql<{ readonly count: number }>`
        select count(*)::integer as count from pg_stat_activity where ${sql.in("application_name", applicationNames)}`,
      ([row]) => row!.count
    ))

export const jobs = Effect.flatMap(SqlClient.SqlClient, (sql) =>
  sql<Stored>`
    select
      id, kind, state, attempt,
      (extract(epoch from created_at) * 1000)::float8 as "createdAtMillis",
      array(
        select (e ->> 'attempt')::integer from jsonb_array_elements(errors) e where e ->> 'error' like 'heartbeat stale%'
      ) as rescued
    from awa.jobs
    order by id`)
