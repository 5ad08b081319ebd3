/**
 * What a test wants to see of the stored jobs.
 *
 * @since 0.1.0
 */
import * as Database from "@awa/model/Database"
import type { DatabaseFailure } from "@awa/model/Errors"
import { JobId, JobRow } from "@awa/model/JobRow"
import { JobState } from "@awa/model/JobState"
import { type Schemas, StorageSchemas } from "@awa/model/StorageSchemas"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as assert from "node:assert/strict"

/**
 * A job as the view `jobs` of the control schema shows it.
 *
 * @since 0.1.0
 * @category models
 */
export class StoredJob extends JobRow.extend<StoredJob>("@awa/testing/Jobs/StoredJob")({
  /** The last sign of life of the running attempt, if it gave one. */
  heartbeatAt: Schema.optional(Schema.Date),
  /** When the running attempt is taken back, whatever it does. */
  deadlineAt: Schema.optional(Schema.Date)
}) {}

/**
 * Which jobs to look at: those that match everything given.
 *
 * @since 0.1.0
 * @category models
 */
export interface Filter {
  readonly queue?: string | undefined
  readonly kind?: string | undefined
  readonly state?: JobState | undefined
  readonly ids?: ReadonlyArray<JobId> | undefined
}

interface ViewRow {
  readonly id: string
  readonly kind: string
  readonly queue: string
  readonly args: string
  readonly state: JobState
  readonly priority: number
  readonly attempt: number
  readonly max_attempts: number
  readonly run_lease: string
  readonly run_at: string
  readonly attempted_at: string | null
  readonly heartbeat_at: string | null
  readonly deadline_at: string | null
  readonly finalized_at: string | null
  readonly created_at: string
  readonly errors: string
  readonly metadata: string
  readonly tags: ReadonlyArray<string>
  readonly progress: string | null
  readonly ordering_key: string | null
}

const instant = (millis: string | null): Date | undefined => millis === null ? undefined : new Date(Number(millis))

const fromView = (row: ViewRow): StoredJob =>
  new StoredJob({
    id: JobId.make(BigInt(row.id)),
    kind: row.kind,
    queue: row.queue,
    args: JSON.parse(row.args),
    state: row.state,
    priority: row.priority,
    attempt: row.attempt,
    maxAttempts: row.max_attempts,
    runLease: BigInt(row.run_lease),
    runAt: instant(row.run_at)!,
    attemptedAt: instant(row.attempted_at),
    heartbeatAt: instant(row.heartbeat_at),
    deadlineAt: instant(row.deadline_at),
    finalizedAt: instant(row.finalized_at),
    createdAt: instant(row.created_at)!,
    errors: (JSON.parse(row.errors) as ReadonlyArray<Failure>).map((entry) => ({ ...entry, at: new Date(entry.at) })),
    metadata: JSON.parse(row.metadata),
    tags: row.tags,
    progress: row.progress === null ? undefined : JSON.parse(row.progress),
    orderingKey: row.ordering_key ?? undefined
  })

interface Failure {
  readonly error: string
  readonly attempt: number
  readonly at: string
  readonly terminal?: boolean
}

const query = <Row extends object>(
  text: (schemas: Schemas) => string,
  params: ReadonlyArray<unknown> = []
): Effect.Effect<ReadonlyArray<Row>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const sql = (yield* SqlClient.SqlClient).withoutTransforms()
    // The parameters are strings and arrays of strings; the client's type is narrower than the driver's.
    return yield* sql.unsafe<Row>(text(yield* StorageSchemas), params as Array<never>)
  }).pipe(Effect.catchTag("SqlError", Database.fromSqlError("look at jobs")))

/** Selects from the view. A condition that is not there leaves the planner more room than one that is always true. */
const select = <Row extends object>(columns: string, { ids, kind, queue, state }: Filter, ending: string) => {
  const conditions = ([
    ["queue =", queue, "text"],
    ["kind =", kind, "text"],
    ["state::text =", state, "text"],
    ["id = any", ids?.map(String), "bigint[]"]
  ] as const).filter(([, value]) => value !== undefined)
  const where = conditions.map(([condition, , type], i) => `${condition} ($${i + 1}::${type})`)
  return query<Row>(
    ({ control }) => `select ${columns} from "${control}".jobs where ${["true", ...where].join(" and ")} ${ending}`,
    conditions.map(([, value]) => value)
  )
}

/** As milliseconds: their text depends on DateStyle. */
const instants = ["run_at", "attempted_at", "heartbeat_at", "deadline_at", "finalized_at", "created_at"]
  .map((name) => `floor(date_part('epoch', ${name}) * 1000)::bigint::text as ${name}`)

const columns = `id::text, kind, queue, args::text, state::text, priority, attempt, max_attempts, run_lease::text, ${
  instants.join(", ")
}, errors::text, metadata::text, tags, progress::text, ordering_key`

/**
 * Jobs, by ascending id.
 *
 * @since 0.1.0
 * @category reading
 */
export const list = (
  filter: Filter = {}
): Effect.Effect<ReadonlyArray<StoredJob>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.map(select<ViewRow>(columns, filter, "order by jobs.id"), (rows) => rows.map(fromView))

/**
 * One job. That it is not there, or there twice, is a defect: no job is ever in two states, and none vanishes before its
 * retention is over.
 *
 * @since 0.1.0
 * @category reading
 */
export const get = (id: JobId): Effect.Effect<StoredJob, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.map(list({ ids: [id] }), (found) => {
    assert.equal(found.length, 1, `job ${id} was found in ${found.length} states: ${found.map((job) => job.state)}`)
    return found[0]!
  })

/**
 * @since 0.1.0
 * @category models
 */
export type Counts = { readonly [State in JobState]: number }

interface Count {
  readonly state: JobState
  readonly n: number
}

/**
 * How many jobs are in each state.
 *
 * @since 0.1.0
 * @category reading
 */
export const countByState = (
  filter: Omit<Filter, "state"> = {}
): Effect.Effect<Counts, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.map(select<Count>("state::text, count(*)::int as n", filter, "group by state"), (rows) =>
    Object.fromEntries(
      JobState.literals.map((state) => [state, rows.find((row) => row.state === state)?.n ?? 0])
    ) as Counts) // every state is a key

/**
 * How often rows of a table were written since it was made, rolled back ones included.
 *
 * @since 0.1.0
 * @category models
 */
export interface TableWrites {
  /** A partition counts as a table. */
  readonly table: string
  readonly inserts: number
  readonly updates: number
  readonly deletes: number
}

const oneAtATime = Effect.unsafeMakeSemaphore(1).withPermits(1)

/**
 * A connection keeps its counts to itself for up to ten seconds after a statement. So that each can be asked for them,
 * all are taken at once.
 */
const flushCounts = Effect.gen(function*() {
  const { config, reserve } = yield* PgClient.PgClient
  const connections = yield* Effect.replicateEffect(reserve, config.maxConnections ?? 10)
  yield* Effect.forEach(
    connections,
    (connection) => connection.execute("select pg_stat_force_next_flush()", [], undefined)
  )
}).pipe(
  Effect.scoped,
  Effect.uninterruptible,
  oneAtATime,
  Database.outsideTransaction,
  Effect.catchTag("SqlError", Database.fromSqlError("flush the write counts"))
)

const writes = query<TableWrites>(({ engine }) =>
  `select relname as table, n_tup_ins::int as inserts, n_tup_upd::int as updates, n_tup_del::int as deletes
  from pg_stat_user_tables where schemaname = '${engine}' order by relname`
)

/**
 * What was written to the tables of the storage engine, over the connections of the `PgClient` in context and over all
 * that are closed. Other connections that are still open may owe up to ten seconds of their counts. Needs every connection
 * of the pool for a moment: call it when no transaction is open.
 *
 * @since 0.1.0
 * @category writes
 */
export const tableWrites: Effect.Effect<
  ReadonlyArray<TableWrites>,
  DatabaseFailure,
  SqlClient.SqlClient | PgClient.PgClient
> = Effect.zipRight(flushCounts, writes)

const logTable = /^(ready_entries|claim_batches|closures)_/

/**
 * Dies unless the log of queue storage was written to, and nothing in it was ever updated or deleted: what makes it free
 * of dead rows. See `tableWrites` for which connections are seen.
 *
 * @since 0.1.0
 * @category writes
 */
export const assertNoDeadRows: Effect.Effect<void, DatabaseFailure, SqlClient.SqlClient | PgClient.PgClient> = Effect
  .map(tableWrites, (tables) => {
    const log = tables.filter(({ table }) => logTable.test(table))
    assert.deepEqual(log.filter(({ deletes, updates }) => deletes + updates > 0), [], "rows of the log were changed")
    assert.ok(log.some(({ inserts }) => inserts > 0), "nothing was written to the log")
  })
