/**
 * From requests to stored jobs: validation, encoding, and the one SQL function every job goes through.
 */
import * as SqlClient from "@effect/sql/SqlClient"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import { identity } from "effect/Function"
import * as ParseResult from "effect/ParseResult"
import * as Database from "../Database.js"
import { type DatabaseFailure, InvalidJob, UniqueConflict } from "../Errors.js"
import type { InsertOptions } from "../InsertOptions.js"
import type { Variance } from "../Job.js"
import type { JobId, JobRow } from "../JobRow.js"
import { StorageSchemas } from "../StorageSchemas.js"
import { TimeSource } from "../TimeSource.js"
import type { Answer } from "../Unique.js"
import * as insertOptions from "./insertOptions.js"
import * as jobRow from "./jobRow.js"
import * as payload from "./payload.js"
import * as pool from "./pool.js"
import { registerStatement } from "./statements.js"
import { laneOf } from "./storage/lane.js"
import { withProducerSpan } from "./trace.js"
import { payloadRefusal, type Unique, uniqueOf } from "./unique/options.js"

/**
 * What enqueueing needs to know of a job, worked out once when it is defined.
 *
 * @internal
 */
export interface Definition<out R> extends Variance<R> {
  readonly kind: string
  readonly defaults: InsertOptions<string>
  readonly checkedDefaults: insertOptions.CheckedOptions
  /** How the JSON of each of its jobs begins. */
  readonly head: string
  /** Of the stored payload, `null` where the schema does not say. */
  readonly fields: ReadonlySet<string> | null
  /** Answers with an `Either` unless the schema needs services or waits. */
  readonly encode: (payload: unknown) => Effect.Effect<unknown, ParseResult.ParseIssue, R>
}

/**
 * What `define` made is all that ever stands behind the public type.
 *
 * @internal
 */
export const reveal = <R>(definition: Variance<R>): Definition<R> => definition as Definition<R>

/**
 * One job to be enqueued.
 *
 * @internal
 */
export interface Item<out R> {
  readonly definition: Definition<R>
  readonly payload: unknown
  readonly options: InsertOptions<string> | undefined
}

/**
 * Throws an `InvalidJob` when kind or defaults are wrong: they are constants of the program.
 *
 * @internal
 */
export const define = <R>(
  kind: string,
  encode: Definition<R>["encode"],
  fields: Definition<R>["fields"],
  defaults: InsertOptions<string>
): Definition<R> => {
  const refusal = insertOptions.nameRefusal("kind", kind) ?? insertOptions.unknownOptionRefusal(defaults)
  if (refusal !== undefined) throw new InvalidJob({ kind: String(kind), ...refusal })
  return {
    _R: identity,
    kind,
    defaults,
    checkedDefaults: Either.getOrThrowWith(
      insertOptions.validate(defaults, fields),
      (refusal) => new InvalidJob({ kind, ...refusal })
    ),
    head: `{"kind":${JSON.stringify(kind)},"args":`,
    fields,
    encode
  }
}

// Encoding

const optionsOf = (
  item: Item<unknown>,
  index?: number
): Either.Either<insertOptions.CheckedOptions, InvalidJob> => {
  const { definition, options } = item
  if (options === undefined) return Either.right(definition.checkedDefaults)
  const unknown = insertOptions.unknownOptionRefusal(options)
  const checked = unknown === undefined
    ? insertOptions.validate(insertOptions.merge(definition.defaults, options), definition.fields)
    : Either.left(unknown)
  return Either.mapLeft(checked, ({ field, reason }) => refused(item, index, field, reason))
}

/**
 * The JSON text of the payload. At run time an `Either` wherever the schema's encoding is one.
 *
 * @internal
 */
export const argsOf = <R>(item: Item<R>, index?: number): Effect.Effect<string, InvalidJob, R> => {
  const encoded = item.definition.encode(item.payload)
  return isEither(encoded)
    ? toArgs(item, index, encoded)
    : Effect.flatMap(Effect.either(encoded), (encoded) => toArgs(item, index, encoded))
}

const isEither = <A, E, R>(self: Effect.Effect<A, E, R>): self is Either.Either<A, E> => Either.isEither(self)

const toArgs = (
  item: Item<unknown>,
  index: number | undefined,
  encoded: Either.Either<unknown, ParseResult.ParseIssue>
): Either.Either<string, InvalidJob> => {
  const text = Either.isRight(encoded) ? payload.stringify(encoded.right) : Either.left(problemOf(encoded.left))
  return Either.mapLeft(text, ({ path, reason }) => refused(item, index, payload.formatPath("payload", path), reason))
}

const problemOf = (issue: ParseResult.ParseIssue): payload.Problem => {
  const [first] = ParseResult.ArrayFormatter.formatIssueSync(issue)
  return { path: first?.path ?? [], reason: (first?.message ?? "is not of the job's schema").slice(0, 1000) }
}

const jobJson = <R>(item: Item<R>, args: string, options: string): string => `${item.definition.head}${args}${options}}`

// Keys

/** The clock of periods: the database's is not known here. */
const keyClock: Effect.Effect<number> = Effect.flatMap(
  Effect.flatten(TimeSource),
  (now) => now === null ? Clock.currentTimeMillis : Effect.succeed(now.getTime())
)

/** What makes a job the same as another, or `undefined` if nothing does. */
const toUnique = (
  item: Item<unknown>,
  index: number | undefined,
  { queue, unique }: insertOptions.CheckedOptions,
  args: string,
  millis: number
): Either.Either<Unique | undefined, InvalidJob> => {
  if (unique === undefined) return Either.right(undefined)
  const { kind } = item.definition
  const value: unknown = JSON.parse(args)
  const refusal = payloadRefusal(unique, value)
  return refusal === undefined
    ? Either.right(uniqueOf(unique, { kind, queue, args: value }, millis))
    : Either.left(refused(item, index, refusal.field, refusal.reason))
}

const uniqueMember = (unique: Unique | undefined): string => unique === undefined ? "" : `,"unique":${unique.json}`

/**
 * The key a job has that is enqueued now, in hexadecimal digits; `undefined` for a job that is not unique.
 *
 * @internal
 */
export const keyOf = <R>(item: Item<R>): Effect.Effect<string | undefined, InvalidJob, R> =>
  Effect.gen(function*() {
    const options = yield* optionsOf(item)
    const args = yield* argsOf(item)
    return (yield* toUnique(item, undefined, options, args, yield* keyClock))?.key
  })

// Sending

/** The limits of one statement: jobs, and characters of JSON. */
const maxJobs = 10_000
const maxLength = 8 * 1024 * 1024

/** `<now in milliseconds> <ids>`, text because the application may have type parsers of its own. */
interface AnswerRow {
  readonly answer: string
  /** Of `enqueue_unique`, JSON. */
  readonly duplicates?: string | null
}

const documentStatement = (engine: string): string =>
  `select "${engine}".enqueue_answer(e.now, e.ids) as answer from "${engine}".enqueue($1::jsonb, $2::timestamptz) as e`

const uniqueStatement = (engine: string): string =>
  `select "${engine}".enqueue_answer(e.now, e.ids) as answer, e.duplicates::text as duplicates from "${engine}".enqueue_unique($1::jsonb, $2::boolean, $3::timestamptz) as e`

const plainStatement = (engine: string, name: string): string =>
  registerStatement(
    `select "${engine}".${name}($1, $2, $3, $4, $5, $6, $7, $8) as answer`
  )

/** Of one engine schema. */
interface Statements {
  readonly enqueue: string
  readonly enqueueOne: string
  readonly enqueueAlike: string
  readonly enqueueUnique: string
}

const statements = new Map<string, Statements>()

const statementsOf = (engine: string): Statements => {
  let known = statements.get(engine)
  if (known === undefined) {
    known = {
      enqueue: registerStatement(documentStatement(engine)),
      enqueueOne: plainStatement(engine, "enqueue_one"),
      enqueueAlike: plainStatement(engine, "enqueue_alike"),
      enqueueUnique: registerStatement(uniqueStatement(engine))
    }
    statements.set(engine, known)
  }
  return known
}

const query = (
  choose: (statements: Statements) => string,
  values: ReadonlyArray<unknown>
): Effect.Effect<ReadonlyArray<AnswerRow>, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.contextWithEffect((context: Context.Context<SqlClient.SqlClient>) =>
    Effect.flatMap(
      Context.get(context, TimeSource),
      (now) =>
        pool.execute<AnswerRow>(
          Context.get(context, SqlClient.SqlClient),
          choose(statementsOf(Context.get(context, StorageSchemas).engine)),
          [...values, now === null ? null : now.toISOString()]
        )
    )
  ).pipe(Effect.catchTag("SqlError", failure))

const parse = ({ answer }: AnswerRow): { readonly ids: ReadonlyArray<string>; readonly now: Date } => {
  const space = answer.indexOf(" ")
  return { ids: answer.slice(space + 1).split(","), now: new Date(Number(answer.slice(0, space))) }
}

const run = (choose: (statements: Statements) => string, values: ReadonlyArray<unknown>) =>
  Effect.map(query(choose, values), ([row]) => {
    const { ids, now } = parse(row!)
    return { ids: ids.map(toJobId), now }
  })

const toArray = (texts: ReadonlyArray<string>): string => `[${texts.join(",")}]`

/** No JSON has the separator of records in it: as a control character of a string it is escaped. */
const toRecords = (texts: ReadonlyArray<string>): string => texts.join("\u001e")

const insert = (jobs: ReadonlyArray<string>) => run(({ enqueue }) => enqueue, [toArray(jobs)])

/** A job that has a key which another job holds. */
type Duplicate = readonly [index: number, holder: string | null, sameAs: number | null]

/** Jobs any of which may have a key. `each`: those that are free go in, else all or none. The id of a duplicate is empty. */
const insertUnique = (jobs: ReadonlyArray<string>, each: boolean) =>
  Effect.map(query(({ enqueueUnique }) => enqueueUnique, [toArray(jobs), each]), ([row]) => ({
    ...parse(row!),
    duplicates: JSON.parse(row!.duplicates ?? "[]") as ReadonlyArray<Duplicate>
  }))

/** Any duplicate is a conflict. */
const insertFree = (items: ReadonlyArray<Item<unknown>>, jobs: ReadonlyArray<string>, start?: number) =>
  Effect.flatMap(insertUnique(jobs, false), ({ duplicates: [duplicate], ids, now }) => {
    if (duplicate === undefined) return Effect.succeed({ ids: ids.map(toJobId), now })
    const [index, holder, sameAs] = duplicate
    return new UniqueConflict({
      kind: items[(start ?? 0) + index]!.definition.kind,
      jobId: holder === null ? undefined : toJobId(holder),
      index: start === undefined ? undefined : start + index,
      sameAs: start === undefined || sameAs === null ? undefined : start + sameAs
    })
  })

/** What jobs share that carry nothing but their payload and are to run at once: they have a cheaper way. */
interface Plain {
  readonly kind: string
  readonly options: insertOptions.CheckedOptions
}

const plainOf = (
  { definition: { kind } }: Item<unknown>,
  options: insertOptions.CheckedOptions,
  traceparent: string | null
): Plain | null => traceparent === null && insertOptions.isPlain(options) ? { kind, options } : null

const insertPlain = (
  choose: (statements: Statements) => string,
  { kind, options: { maxAttempts, priority, queue } }: Plain,
  args: string
) => {
  const { id, queueKey } = laneOf(queue, priority)
  return run(choose, [kind, args, queue, priority, maxAttempts, id, queueKey])
}

const insertOne = (
  item: Item<unknown>,
  options: insertOptions.CheckedOptions,
  args: string,
  traceparent: string | null
) => {
  const plain = plainOf(item, options, traceparent)
  if (plain !== null) return insertPlain(({ enqueueOne }) => enqueueOne, plain, args)
  const text = insertOptions.toJson(options, traceparent)
  return options.unique === undefined
    ? insert([jobJson(item, args, text)])
    : Effect.flatMap(
      keyClock,
      (millis) =>
        Effect.flatMap(
          toUnique(item, undefined, options, args, millis),
          (unique) => insertFree([item], [jobJson(item, args, text + uniqueMember(unique))])
        )
    )
}

const failure = Database.fromSqlError("enqueue")

// The database made it.
const toJobId = (id: string): JobId => BigInt(id) as JobId

/** @internal */
export const enqueue = <R>(
  item: Item<R>
): Effect.Effect<JobRow, InvalidJob | UniqueConflict | DatabaseFailure, SqlClient.SqlClient | R> =>
  Effect.suspend(() =>
    Effect.flatMap(optionsOf(item), (options) => Effect.flatMap(argsOf(item), (args) => send(item, options, args)))
  )

const send = (item: Item<unknown>, options: insertOptions.CheckedOptions, args: string) =>
  withProducerSpan(`send ${options.queue}`, {
    "messaging.system": "awa",
    "messaging.operation.type": "send",
    "messaging.destination.name": options.queue,
    "job.kind": item.definition.kind,
    "job.queue": options.queue,
    "job.count": 1
  }, (traceparent) =>
    Effect.map(
      insertOne(item, options, args, traceparent),
      ({ ids: [id], now }) => toRow(item.definition.kind, id!, now, options, args, traceparent)
    ))

/** The row as it was stored: nobody can have touched it yet. */
const toRow = (
  kind: string,
  id: JobId,
  now: Date,
  { delayMillis, maxAttempts, metadata, orderingKey, priority, queue, runAt, tags }: insertOptions.CheckedOptions,
  args: string,
  traceparent: string | null
): JobRow => {
  const due = runAt ?? (delayMillis === undefined ? now : new Date(now.getTime() + delayMillis))
  return jobRow.make({
    id,
    kind,
    queue,
    args: JSON.parse(args),
    state: due > now ? "scheduled" : "available",
    priority,
    attempt: 0,
    maxAttempts,
    runLease: 0n,
    runAt: due,
    createdAt: now,
    metadata: JSON.parse(insertOptions.withTraceparent(metadata, traceparent) ?? "{}"),
    tags,
    errors: [],
    orderingKey
  })
}

/** @internal */
export const enqueueMany = <R>(
  items: ReadonlyArray<Item<R>>
): Effect.Effect<ReadonlyArray<JobId>, InvalidJob | UniqueConflict | DatabaseFailure, SqlClient.SqlClient | R> =>
  items.length === 0 ? Effect.succeed([]) : withBulkSpan(items.length, (traceparent) =>
    areAlike(items)
      ? Effect.flatMap(optionsOf(items[0]!, 0), (options) => {
        const plain = plainOf(items[0]!, options, traceparent)
        return plain === null
          ? sendEach(items, traceparent)
          : Effect.flatMap(
            encodeArgs(items),
            insertAll((chunk) => idsOf(insertPlain(({ enqueueAlike }) => enqueueAlike, plain, toRecords(chunk))))
          )
      })
      : sendEach(items, traceparent))

const withBulkSpan = <A, E, R>(count: number, send: (traceparent: string | null) => Effect.Effect<A, E, R>) =>
  withProducerSpan("send", {
    "messaging.system": "awa",
    "messaging.operation.type": "send",
    "messaging.batch.message_count": count,
    "job.count": count
  }, send)

const idsOf = <E, R>(answer: Effect.Effect<{ readonly ids: ReadonlyArray<JobId> }, E, R>) =>
  Effect.map(answer, ({ ids }) => ids)

const areAlike = (items: ReadonlyArray<Item<unknown>>): boolean => {
  const first = items[0]
  return items.every(({ definition, options }) => definition === first?.definition && options === first.options)
}

const sendEach = <R>(items: ReadonlyArray<Item<R>>, traceparent: string | null) =>
  Effect.flatMap(encodeAll(items, traceparent), ({ jobs, keys }) =>
    keys === null
      ? insertAll((chunk) => idsOf(insert(chunk)))(jobs)
      : Effect.zipRight(
        refuseTwins(items, keys),
        insertAll((chunk, start) => idsOf(insertFree(items, chunk, start)))(jobs)
      ))

/** Of one call: some of it may have been sent already when its twin is. */
const refuseTwins = (items: ReadonlyArray<Item<unknown>>, keys: Keys): Effect.Effect<void, UniqueConflict> => {
  const first = new Map<string, number>()
  for (const [index, key] of keys) {
    const sameAs = first.get(key)
    if (sameAs !== undefined) {
      return new UniqueConflict({ kind: items[index]!.definition.kind, index, sameAs })
    }
    first.set(key, index)
  }
  return Effect.void
}

/** @internal */
export const enqueueEach = <R>(
  items: ReadonlyArray<Item<R>>
): Effect.Effect<ReadonlyArray<Answer>, InvalidJob | DatabaseFailure, SqlClient.SqlClient | R> =>
  items.length === 0 ? Effect.succeed([]) : withBulkSpan(items.length, (traceparent) =>
    Effect.flatMap(
      encodeAll(items, traceparent),
      ({ jobs, keys }) => insertAll(keys === null ? insertAny : insertEach)(jobs)
    ))

const insertAny = (jobs: ReadonlyArray<string>) =>
  Effect.map(insert(jobs), ({ ids }) => ids.map((id): Answer => ({ _tag: "Inserted", id })))

const insertEach = (jobs: ReadonlyArray<string>) =>
  Effect.map(insertUnique(jobs, true), ({ duplicates, ids }) => {
    const holders = new Map(duplicates.map(([index, holder]) => [index, holder!]))
    return ids.map((id, index): Answer => {
      const holder = holders.get(index)
      return holder === undefined
        ? { _tag: "Inserted", id: toJobId(id) }
        : { _tag: "Duplicate", holder: toJobId(holder) }
    })
  })

const encodeArgs = <R>(items: ReadonlyArray<Item<R>>): Effect.Effect<ReadonlyArray<string>, InvalidJob, R> =>
  Effect.gen(function*() {
    const texts: Array<string> = []
    for (let index = 0; index < items.length; index++) {
      const args = argsOf(items[index]!, index)
      texts.push(isEither(args) && Either.isRight(args) ? args.right : yield* args)
    }
    return texts
  })

/** By the index of the job. */
type Keys = ReadonlyMap<number, string>

interface EncodedJobs {
  readonly jobs: ReadonlyArray<string>
  /** `null` when no job has one. */
  readonly keys: Keys | null
}

/** Everything is encoded before anything is sent. */
const encodeAll = <R>(
  items: ReadonlyArray<Item<R>>,
  traceparent: string | null
): Effect.Effect<EncodedJobs, InvalidJob, R> =>
  Effect.gen(function*() {
    const jobs: Array<string> = []
    const keys = new Map<number, string>()
    let millis: number | undefined // one instant for all
    let previous: Item<R> | undefined
    let checked: insertOptions.CheckedOptions
    let options = ""
    for (let index = 0; index < items.length; index++) {
      const item = items[index]!
      if (item.definition !== previous?.definition || item.options !== previous.options) {
        checked = yield* optionsOf(item, index)
        options = insertOptions.toJson(checked, traceparent)
        previous = item
      }
      const encoding = argsOf(item, index)
      const args = isEither(encoding) && Either.isRight(encoding) ? encoding.right : yield* encoding
      if (checked!.unique === undefined) {
        jobs.push(jobJson(item, args, options))
      } else {
        millis ??= yield* keyClock
        const unique = yield* toUnique(item, index, checked!, args, millis)
        keys.set(index, unique!.key)
        jobs.push(jobJson(item, args, options + uniqueMember(unique)))
      }
    }
    return { jobs, keys: keys.size === 0 ? null : keys }
  })

/** More than one statement is one transaction, so that nothing is half-written. */
const insertAll = <A, E>(
  send: (chunk: ReadonlyArray<string>, start: number) => Effect.Effect<ReadonlyArray<A>, E, SqlClient.SqlClient>
) =>
(texts: ReadonlyArray<string>): Effect.Effect<ReadonlyArray<A>, E | DatabaseFailure, SqlClient.SqlClient> => {
  const chunks = chunked(texts)
  return chunks.length === 1
    ? send(texts, 0)
    : Effect.forEach(chunks, ({ jobs, start }) => send(jobs, start)).pipe(
      Effect.map((answers) => answers.flat()),
      Database.transaction
    )
}

interface Chunk {
  readonly jobs: ReadonlyArray<string>
  /** The index of the first. */
  readonly start: number
}

const chunked = (jobs: ReadonlyArray<string>): ReadonlyArray<Chunk> => {
  const chunks: Array<Chunk> = []
  let start = 0
  let length = 0
  for (let i = 0; i < jobs.length; i++) {
    if (i - start === maxJobs || (i > start && length + jobs[i]!.length > maxLength)) {
      chunks.push({ jobs: jobs.slice(start, i), start })
      start = i
      length = 0
    }
    length += jobs[i]!.length
  }
  return [...chunks, { jobs: jobs.slice(start), start }]
}

/**
 * The statement that enqueues jobs, for a client of another library. Throws an `InvalidJob`.
 *
 * @internal
 */
export const toStatement = (
  items: ReadonlyArray<Item<never>>,
  engine: string
): { readonly text: string; readonly values: readonly [jobs: string] } => {
  const millis = Clock.make().unsafeCurrentTimeMillis()
  let isUnique = false
  const jobs = items.map((item, index) => {
    if (index === maxJobs) throw refused(item, index, "requests", `must be at most ${maxJobs} for one statement`)
    const options = Either.getOrThrowWith(optionsOf(item, index), identity)
    const args = argsOf(item, index)
    if (!isEither(args)) {
      throw refused(item, index, "payload", "its schema encodes asynchronously: use Producer.enqueue")
    }
    const text = Either.getOrThrowWith(args, identity)
    const unique = Either.getOrThrowWith(toUnique(item, index, options, text, millis), identity)
    isUnique ||= unique !== undefined
    return jobJson(item, text, insertOptions.toJson(options, null) + uniqueMember(unique))
  })
  return {
    text: isUnique
      ? `select e.ids, e.duplicates, e.now from "${engine}".enqueue_unique($1::jsonb, true) as e`
      : `select e.ids, e.now from "${engine}".enqueue($1::jsonb) as e`,
    values: [toArray(jobs)]
  }
}

const refused = ({ definition: { kind } }: Item<unknown>, index: number | undefined, field: string, reason: string) =>
  new InvalidJob({ kind, index, field, reason })
