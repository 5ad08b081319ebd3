/** The SQL functions behind `JobAdmin`: migrations/0019 and 0023. */
import * as SqlClient from "@effect/sql/SqlClient"
import * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Schema from "effect/Schema"
import * as Database from "../Database.js"
import { type DatabaseError, type DatabaseFailure, InvalidSetting } from "../Errors.js"
import type { InsertOptions } from "../InsertOptions.js"
import type { Variance } from "../Job.js"
import type { Answer, CancelOptions, Filter } from "../JobAdmin.js"
import { JobId, type JobRow } from "../JobRow.js"
import { JobState } from "../JobState.js"
import { type Schemas, StorageSchemas } from "../StorageSchemas.js"
import { TimeSource } from "../TimeSource.js"
import * as enqueue from "./enqueue.js"
import * as insertOptions from "./insertOptions.js"
import * as jobRow from "./jobRow.js"
import * as operator from "./operator.js"
import { storable } from "./storage/storable.js"

/** Values are text: the application may have type parsers of its own. */
const run = (
  operation: string,
  text: (schemas: Schemas) => string,
  values: ReadonlyArray<unknown>
): Effect.Effect<ReadonlyArray<{ readonly answer: string }>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    return yield* sql.unsafe<{ answer: string }>(text(yield* StorageSchemas), values as Array<never>).withoutTransform
  }).pipe(Effect.catchTag("SqlError", Database.fromSqlError(operation)))

// Reading

const rows = (operation: string, call: (schemas: Schemas) => string, values: ReadonlyArray<unknown>) =>
  run(
    operation,
    (schemas) =>
      `select (to_jsonb(j) || jsonb_build_object('id', j.id::text, 'run_lease', j.run_lease::text))::text as answer
  from "${schemas.engine}".${call(schemas)} as j`,
    values
  ).pipe(Effect.map((found) => found.map(({ answer }) => fromJson(JSON.parse(answer)))))

interface Json {
  readonly id: string
  readonly kind: string
  readonly queue: string
  readonly args: unknown
  readonly state: JobState
  readonly priority: number
  readonly attempt: number
  readonly max_attempts: number
  readonly run_lease: string
  readonly run_at: string
  readonly attempted_at: string | null
  readonly finalized_at: string | null
  readonly created_at: string
  readonly errors: ReadonlyArray<{
    readonly error: string
    readonly attempt: number
    readonly at: string
    readonly terminal?: boolean
  }>
  readonly metadata: Record<string, unknown>
  readonly tags: ReadonlyArray<string>
  readonly progress: unknown
  readonly ordering_key: string | null
}

const toDate = (text: string | null): Date | undefined => text === null ? undefined : new Date(text)

const fromJson = (json: Json): JobRow =>
  jobRow.make({
    id: JobId.make(BigInt(json.id)),
    kind: json.kind,
    queue: json.queue,
    args: json.args,
    state: json.state,
    priority: json.priority,
    attempt: json.attempt,
    maxAttempts: json.max_attempts,
    runLease: BigInt(json.run_lease),
    runAt: new Date(json.run_at),
    createdAt: new Date(json.created_at),
    attemptedAt: toDate(json.attempted_at),
    finalizedAt: toDate(json.finalized_at),
    metadata: json.metadata,
    tags: json.tags,
    errors: json.errors.map((entry) => ({ ...entry, at: new Date(entry.at) })),
    progress: json.progress ?? undefined,
    orderingKey: json.ordering_key ?? undefined
  })

/** @internal */
export const get = (id: JobId) =>
  Effect.zipRight(
    operator.checkId("id", id),
    Effect.map(rows("look for a job", () => "job($1::bigint)", [String(id)]), Arr.head)
  )

const checkFilter = (filter: Filter): Effect.Effect<void, InvalidSetting> =>
  Effect.gen(function*() {
    const { before, kind, limit = 100, queue, state, tag } = filter
    yield* operator.checkOptions("filter", filter, ["state", "kind", "queue", "tag", "before", "limit"])
    if (state !== undefined && !Schema.is(JobState)(state)) {
      yield* operator.invalid("state", state, `it must be one of ${JobState.literals.join(", ")}`)
    }
    for (const [name, value] of Object.entries({ kind, queue, tag })) {
      if (value !== undefined) yield* operator.checkName(name, value)
    }
    if (before !== undefined) yield* operator.checkId("before", before)
    if (typeof limit !== "number" || Number.isNaN(limit)) {
      yield* operator.invalid("limit", limit, "it must be a number")
    }
  })

/** @internal */
export const list = (filter: Filter) => {
  const { before, kind, limit = 100, queue, state, tag } = filter
  return Effect.zipRight(
    checkFilter(filter),
    rows(
      "list jobs",
      ({ control }) => `list_jobs($1::"${control}".job_state, $2::text, $3::text, $4::text, $5::bigint, $6::integer)`,
      [
        state ?? null,
        kind ?? null,
        queue ?? null,
        tag ?? null,
        before === undefined ? null : String(before),
        operator.clamp(limit, 1000)
      ]
    )
  )
}

// Changes

/**
 * The document of `change_jobs`.
 *
 * @internal
 */
export type Change = string

const toChange = (op: string, detail: object): Change => JSON.stringify({ op, ...detail })

/** @internal */
export const cancel = ({ reason }: CancelOptions): Change =>
  toChange("cancel", reason === undefined ? {} : { reason: storable(reason) })

/** @internal */
export const checkCancelOptions = (options: CancelOptions): Effect.Effect<void, InvalidSetting> =>
  Effect.zipRight(
    operator.checkOptions("options", options, ["reason"]),
    options.reason === undefined || typeof options.reason === "string"
      ? Effect.void
      : operator.invalid("options.reason", options.reason, "it must be a string")
  )

/** @internal */
export const retry: Change = toChange("retry", {})

/** @internal */
export const remove: Change = toChange("delete", {})

const checked = <A>(
  setting: keyof InsertOptions,
  value: A,
  toDetail: (options: insertOptions.CheckedOptions) => object
): Effect.Effect<Change, InvalidSetting> =>
  Either.match(insertOptions.validate({ [setting]: value }), {
    onLeft: ({ reason }) => Effect.fail(new InvalidSetting({ setting, value, reason })),
    onRight: (options) => Effect.succeed(JSON.stringify(toDetail(options)))
  })

/** @internal */
export const priority = (priority: unknown) =>
  checked("priority", priority ?? null, (options) => ({ op: "priority", priority: options.priority }))

/** @internal */
export const queue = (queue: unknown) =>
  checked("queue", queue ?? null, (options) => ({ op: "queue", queue: options.queue }))

/** @internal */
export const runAt = (runAt: unknown) =>
  checked("runAt", runAt ?? null, (options) => ({ op: "run_at", run_at: options.runAt?.toISOString() }))

/** @internal */
export const payload = <R>(definition: Variance<R>, payload: unknown) =>
  Effect.map(
    enqueue.argsOf({ definition: enqueue.reveal(definition), payload, options: undefined }),
    (args): Change => `{"op":"payload","args":${args}}`
  )

// Changing

/** Jobs of one transaction, or of one savepoint of the caller's. It holds the locks of their lanes. */
const chunkSize = 500

/** How often a job that moves while it is looked for is looked for. */
const rounds = 10

type Verdict = readonly [
  id: string,
  verdict: "changed" | "missing" | "refused" | "again" | "busy" | "taken" | "dead",
  state: JobState | null,
  kind?: string,
  holder?: string
]

const verdictOfAll = (ids: ReadonlyArray<JobId>, verdict: Verdict[1]) =>
  Effect.succeed(ids.map((id): Verdict => [String(id), verdict, null]))

/**
 * One transaction at the isolation level the decision needs, or a savepoint of the caller's: what goes wrong here leaves
 * his usable. `waits`: for what others keep locked.
 */
const attempt = (ids: ReadonlyArray<JobId>, change: Change, waits: boolean) =>
  Effect.flatMap(Effect.flatten(TimeSource), (now) =>
    run(
      "change jobs",
      ({ engine }) =>
        `select "${engine}".change_jobs($1::bigint[], $2::jsonb, $3::timestamptz, $4::boolean)::text as answer`,
      [ids.map(String), change, now === null ? null : now.toISOString(), String(waits)]
    )).pipe(
      (self) => Database.transaction(self, { isolation: "read committed" }),
      Effect.map(([row]) => JSON.parse(row?.answer ?? "[]") as ReadonlyArray<Verdict>)
    )

const round = (ids: ReadonlyArray<JobId>, change: Change) =>
  attempt(ids, change, true).pipe(
    // A lock was not to be had in time: trying again would wait again. Not so after a deadlock.
    Effect.catchIf(hasState("55P03"), () => attemptOfFree(ids, change)),
    Effect.catchIf(hasState("55P03"), () => verdictOfAll(ids, "busy")),
    Effect.catchIf(hasState("40P01"), () => verdictOfAll(ids, "again"))
  )

/** What can be changed without waiting; the rest is busy. */
const attemptOfFree = (ids: ReadonlyArray<JobId>, change: Change) =>
  Effect.map(
    attempt(ids, change, false),
    (verdicts) => verdicts.map((verdict): Verdict => verdict[1] === "again" ? [verdict[0], "busy", null] : verdict)
  )

const hasState = (state: string) => (error: DatabaseFailure): error is DatabaseError =>
  error._tag === "DatabaseError" && error.sqlState === state

const changeChunk = (ids: ReadonlyArray<JobId>, change: Change, left: number) =>
  Effect.map(round(ids, change), (verdicts) => {
    const again = verdicts.filter(([, verdict]) => verdict === "again").map(([id]) => JobId.make(BigInt(id)))
    return { verdicts, again, left: left - 1 }
  })

const decide = (
  ids: ReadonlyArray<JobId>,
  change: Change,
  left: number
): Effect.Effect<ReadonlyArray<Verdict>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.flatMap(changeChunk(ids, change, left), ({ again, left, verdicts }) =>
    again.length === 0 || left === 0
      ? Effect.succeed(verdicts)
      : Effect.map(decide(again, change, left), (later) => [
        ...verdicts.filter(([, verdict]) => verdict !== "again"),
        ...later
      ]))

const toAnswer = (id: JobId, verdict: Verdict | undefined): Answer => {
  if (verdict === undefined || verdict[1] === "missing") return { _tag: "NotFound", id }
  const [, , state, kind, holder] = verdict
  if (kind !== undefined && holder !== undefined) {
    return { _tag: "KeyTaken", id, kind, holder: JobId.make(BigInt(holder)) }
  }
  if (state === null || verdict[1] === "again" || verdict[1] === "busy") return { _tag: "Busy", id }
  return verdict[1] === "changed"
    ? { _tag: "Changed", id, from: state }
    : { _tag: "NotInState", id, state, ...(verdict[1] === "dead" ? { isDeadLetter: true } : undefined) }
}

/** @internal */
export const change = (
  ids: ReadonlyArray<JobId>,
  change: Change
): Effect.Effect<ReadonlyArray<Answer>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.forEach(Arr.chunksOf(Arr.dedupe(ids), chunkSize), (chunk) => decide(chunk, change, rounds)).pipe(
    Effect.map((verdicts) => {
      const byId = new Map(verdicts.flat().map((verdict) => [verdict[0], verdict]))
      return ids.map((id) => toAnswer(id, byId.get(String(id))))
    })
  )

/** @internal In the caller's transaction, if there is one. */
export const requestCancel = (ids: ReadonlyArray<JobId>, reason: string | undefined) =>
  Effect.flatMap(Effect.flatten(TimeSource), (now) =>
    Effect.asVoid(run(
      "request to cancel",
      ({ engine }) => `select "${engine}".request_cancel($1::bigint[], $2::text, $3::timestamptz)::text as answer`,
      [ids.map(String), reason === undefined ? null : storable(reason), now === null ? null : now.toISOString()]
    )))
