/**
 * From requests to stored jobs: validation, encoding, and the one SQL function every job goes through.
 */
import * as SqlClient from "@effect/sql/SqlClient"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import { identity } from "effect/Function"
import * as ParseResult from "effect/ParseResult"
import * as Database from "../Database.js"
import { type DatabaseFailure, InvalidJob } from "../Errors.js"
import type { InsertOptions } from "../InsertOptions.js"
import type { Variance } from "../Job.js"
import type { JobId, JobRow } from "../JobRow.js"
import { StorageSchemas } from "../StorageSchemas.js"
import { TimeSource } from "../TimeSource.js"
import * as insertOptions from "./insertOptions.js"
import * as jobRow from "./jobRow.js"
import * as payload from "./payload.js"
import { registerStatement } from "./statements.js"
import { laneId } from "./storage/lane.js"
import { withProducerSpan } from "./trace.js"

/**
 * What enqueueing needs to know of a job, worked out once when it is defined.
 *
 * @internal
 */
export interface Definition<out R> extends Variance<R> {
  readonly kind: string
  readonly defaults: InsertOptions
  readonly checkedDefaults: insertOptions.CheckedOptions
  /** How the JSON of each of its jobs begins. */
  readonly head: string
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
  readonly options: InsertOptions | undefined
}

/**
 * Throws an `InvalidJob` when kind or defaults are wrong: they are constants of the program.
 *
 * @internal
 */
export const define = <R>(
  kind: string,
  encode: Definition<R>["encode"],
  defaults: InsertOptions
): Definition<R> => {
  const refusal = insertOptions.nameRefusal("kind", kind) ?? insertOptions.unknownOptionRefusal(defaults)
  if (refusal !== undefined) throw new InvalidJob({ kind: String(kind), ...refusal })
  return {
    _R: identity,
    kind,
    defaults,
    checkedDefaults: Either.getOrThrowWith(
      insertOptions.validate(defaults),
      (refusal) => new InvalidJob({ kind, ...refusal })
    ),
    head: `{"kind":${JSON.stringify(kind)},"args":`,
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
    ? insertOptions.validate(insertOptions.merge(definition.defaults, options))
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

// Sending

/** The limits of one statement: jobs, and characters of JSON. */
const maxJobs = 10_000
const maxLength = 8 * 1024 * 1024

/** `<now in milliseconds> <ids>`, text because the application may have type parsers of its own. */
interface Answer {
  readonly answer: string
}

const documentStatement = (engine: string): string =>
  `select "${engine}".enqueue_answer(e.now, e.ids) as answer from "${engine}".enqueue($1::jsonb, $2::timestamptz) as e`

const plainStatement = (engine: string, name: string): string =>
  registerStatement(
    `select "${engine}".${name}($1, $2, $3, $4, $5, $6, $7) as answer`
  )

/** Of one engine schema. */
interface Statements {
  readonly enqueue: string
  readonly enqueueOne: string
  readonly enqueueAlike: string
}

const statements = new Map<string, Statements>()

const statementsOf = (engine: string): Statements => {
  let known = statements.get(engine)
  if (known === undefined) {
    known = {
      enqueue: registerStatement(documentStatement(engine)),
      enqueueOne: plainStatement(engine, "enqueue_one"),
      enqueueAlike: plainStatement(engine, "enqueue_alike")
    }
    statements.set(engine, known)
  }
  return known
}

const run = (
  choose: (statements: Statements) => string,
  values: ReadonlyArray<unknown>
): Effect.Effect<{ readonly ids: ReadonlyArray<JobId>; readonly now: Date }, DatabaseFailure, SqlClient.SqlClient> =>
  Effect.contextWithEffect((context: Context.Context<SqlClient.SqlClient>) =>
    Effect.flatMap(Context.get(context, TimeSource), (now) =>
      Context.get(context, SqlClient.SqlClient).unsafe<Answer>(
        choose(statementsOf(Context.get(context, StorageSchemas).engine)),
        [...values, now === null ? null : now.toISOString()] as Array<never>
      ).withoutTransform)
  ).pipe(
    Effect.map(([row]) => {
      const { answer } = row!
      const space = answer.indexOf(" ")
      return {
        ids: answer.slice(space + 1).split(",").map(toJobId),
        now: new Date(Number(answer.slice(0, space)))
      }
    }),
    Effect.catchTag("SqlError", failure)
  )

const toArray = (texts: ReadonlyArray<string>): string => `[${texts.join(",")}]`

const insert = (jobs: ReadonlyArray<string>) => run(({ enqueue }) => enqueue, [toArray(jobs)])

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
) => run(choose, [kind, args, queue, priority, maxAttempts, laneId(queue, priority)])

const insertOne = (
  item: Item<unknown>,
  options: insertOptions.CheckedOptions,
  args: string,
  traceparent: string | null
) => {
  const plain = plainOf(item, options, traceparent)
  return plain === null
    ? insert([jobJson(item, args, insertOptions.toJson(options, traceparent))])
    : insertPlain(({ enqueueOne }) => enqueueOne, plain, args)
}

const failure = Database.fromSqlError("enqueue")

// The database made it.
const toJobId = (id: string): JobId => BigInt(id) as JobId

/** @internal */
export const enqueue = <R>(
  item: Item<R>
): Effect.Effect<JobRow, InvalidJob | DatabaseFailure, SqlClient.SqlClient | R> =>
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
): Effect.Effect<ReadonlyArray<JobId>, InvalidJob | DatabaseFailure, SqlClient.SqlClient | R> =>
  items.length === 0 ? Effect.succeed([]) : withProducerSpan("send", {
    "messaging.system": "awa",
    "messaging.operation.type": "send",
    "messaging.batch.message_count": items.length,
    "job.count": items.length
  }, (traceparent) =>
    areAlike(items)
      ? Effect.flatMap(optionsOf(items[0]!, 0), (options) => {
        const plain = plainOf(items[0]!, options, traceparent)
        return plain === null
          ? enqueueEach(items, traceparent)
          : Effect.flatMap(
            encodeArgs(items),
            insertAll((chunk) => insertPlain(({ enqueueAlike }) => enqueueAlike, plain, toArray(chunk)))
          )
      })
      : enqueueEach(items, traceparent))

const areAlike = (items: ReadonlyArray<Item<unknown>>): boolean => {
  const first = items[0]
  return items.every(({ definition, options }) => definition === first?.definition && options === first.options)
}

const enqueueEach = <R>(items: ReadonlyArray<Item<R>>, traceparent: string | null) =>
  Effect.flatMap(encodeAll(items, traceparent), insertAll(insert))

const encodeArgs = <R>(items: ReadonlyArray<Item<R>>): Effect.Effect<ReadonlyArray<string>, InvalidJob, R> =>
  Effect.gen(function*() {
    const texts: Array<string> = []
    for (let index = 0; index < items.length; index++) {
      const args = argsOf(items[index]!, index)
      texts.push(isEither(args) && Either.isRight(args) ? args.right : yield* args)
    }
    return texts
  })

/** Everything is encoded before anything is sent. */
const encodeAll = <R>(
  items: ReadonlyArray<Item<R>>,
  traceparent: string | null
): Effect.Effect<ReadonlyArray<string>, InvalidJob, R> =>
  Effect.gen(function*() {
    const jobs: Array<string> = []
    let previous: Item<R> | undefined
    let options = ""
    for (let index = 0; index < items.length; index++) {
      const item = items[index]!
      if (item.definition !== previous?.definition || item.options !== previous.options) {
        options = insertOptions.toJson(yield* optionsOf(item, index), traceparent)
        previous = item
      }
      const args = argsOf(item, index)
      jobs.push(jobJson(item, isEither(args) && Either.isRight(args) ? args.right : yield* args, options))
    }
    return jobs
  })

/** More than one statement is one transaction, so that nothing is half-written. */
const insertAll =
  (send: (chunk: ReadonlyArray<string>) => ReturnType<typeof insert>) => (texts: ReadonlyArray<string>) => {
    const chunks = chunked(texts)
    return chunks.length === 1
      ? Effect.map(send(texts), ({ ids }) => ids)
      : Effect.forEach(chunks, send).pipe(
        Effect.map((answers) => answers.flatMap(({ ids }) => ids)),
        Database.transaction
      )
  }

const chunked = (jobs: ReadonlyArray<string>): ReadonlyArray<ReadonlyArray<string>> => {
  const chunks: Array<ReadonlyArray<string>> = []
  let start = 0
  let length = 0
  for (let i = 0; i < jobs.length; i++) {
    if (i - start === maxJobs || (i > start && length + jobs[i]!.length > maxLength)) {
      chunks.push(jobs.slice(start, i))
      start = i
      length = 0
    }
    length += jobs[i]!.length
  }
  return [...chunks, jobs.slice(start)]
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
  const jobs = items.map((item, index) => {
    if (index === maxJobs) throw refused(item, index, "requests", `must be at most ${maxJobs} for one statement`)
    const options = Either.getOrThrowWith(optionsOf(item, index), identity)
    const args = argsOf(item, index)
    if (!isEither(args)) {
      throw refused(item, index, "payload", "its schema encodes asynchronously: use Producer.enqueue")
    }
    return jobJson(item, Either.getOrThrowWith(args, identity), insertOptions.toJson(options, null))
  })
  return {
    text: `select e.ids, e.now from "${engine}".enqueue($1::jsonb) as e`,
    values: [toArray(jobs)]
  }
}

const refused = ({ definition: { kind } }: Item<unknown>, index: number | undefined, field: string, reason: string) =>
  new InvalidJob({ kind, index, field, reason })
