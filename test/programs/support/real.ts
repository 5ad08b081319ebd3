import { Database, Errors, Job, type StorageEngine, TimeSource } from "@awa/model"
import { TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { type PgClient } from "@effect/sql-pg"
import { Data, Effect, Exit, Layer, ManagedRuntime, Schema } from "effect"
import * as Pg from "pg"
import type { Model, ModelTransaction } from "./model.js"

export const queues = ["one", "two"] as const
export const owners = ["00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"] as const

/** The jobs of all programs; the payload says nothing but which unique key a job has, if it has one. */
export const Work = Job.make("work", { payload: Schema.Int })

/** The queue that a program runs on, and the producers' transactions that are open there. */
export interface Real {
  readonly sessions: Sessions
  readonly run: <A, E>(effect: Effect.Effect<A, E, Services>) => Promise<A>
}

interface Sessions {
  readonly open: (transaction: number) => Promise<Pg.Client>
  readonly of: (transaction: number) => Pg.Client
  readonly close: (transaction: number) => void
}

export type Services = TestDatabase.TestDatabase | SqlClient.SqlClient | PgClient.PgClient | StorageEngine.StorageEngine

/** PostgreSQL gave up a transaction that cannot be told apart from one before the others. */
export class NotSerializable extends Data.TaggedError("NotSerializable") {}

const isConflict = (error: unknown): boolean =>
  error instanceof Errors.DatabaseError
    ? error.sqlState === "40001"
    : error instanceof Pg.DatabaseError && error.code === "40001"

/** Where programs run, one after the other. */
export interface Host {
  readonly use: (program: (real: Real) => Promise<void>) => Promise<void>
  readonly close: () => Promise<void>
}

/** A queue with `changes` made to its SQL, emptied before each program: to make a new one takes longer than a program. */
export const makeHost = (changes = ""): Host => {
  const runtime = ManagedRuntime.make(Layer.fresh(TestDatabase.layerQueueStorage({ maxConnections: 4 })))
  const prepared = runtime.runPromise(Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    if (changes !== "") yield* sql.unsafe(changes)
    return yield* TestDatabase.TestDatabase
  }))
  const all: Array<Pg.Client> = []
  const use = async (program: (real: Real) => Promise<void>): Promise<void> => {
    const { url } = await prepared
    try {
      await runtime.runPromise(empty)
      await program({
        sessions: sessionsOf(url, all),
        run: async (effect) => unwrap(await runtime.runPromiseExit(effect))
      })
    } finally {
      await Promise.all(all.map((session) => session.query("rollback")))
    }
  }
  const close = async (): Promise<void> => {
    await Promise.all(all.map((session) => session.end()))
    await runtime.dispose()
  }
  return { use, close }
}

/** Producers' connections, which are used again: what they have planned stays planned. */
const sessionsOf = (url: string, all: Array<Pg.Client>): Sessions => {
  const idle = [...all]
  const used = new Map<number, Pg.Client>()
  const connect = async (): Promise<Pg.Client> => {
    const session = new Pg.Client({ connectionString: url })
    all.push(session)
    await session.connect()
    return session
  }
  const of = (transaction: number): Pg.Client => {
    const session = used.get(transaction)
    if (session === undefined) throw new Error(`transaction ${transaction} has ended`)
    return session
  }
  return {
    open: async (transaction) => {
      const session = idle.pop() ?? await connect()
      used.set(transaction, session)
      return session
    },
    of,
    close: (transaction) => {
      idle.push(of(transaction))
      used.delete(transaction)
    }
  }
}

/** What stays: sessions remember lanes, and numbers that came back would be a restored database. */
const kept = ["epochs", "lanes", "schema_migrations", "storage_config"]

const empty = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  const [used] = yield* sql<{ tables: string }>`
    select string_agg(c.oid::regclass::text, ',') as tables from pg_class c
    where c.relnamespace = 'awa'::regnamespace and c.relkind = 'r' and c.relname <> all (${kept})
      and pg_relation_size(c.oid) > 0`
  yield* sql.unsafe(`truncate ${used?.tables ?? "awa.slots"}`)
  yield* sql`insert into awa.slots (ring, generation, slot) values ('ready', 1, 0), ('lease', 1, 0)`
  yield* sql`select setval('awa.ready_slot', 0)`
})

const unwrap = <A, E>(exit: Exit.Exit<A, E>): A => {
  if (Exit.isSuccess(exit)) return exit.value
  throw exit.cause
}

/** Begins a transaction. */
export const begin = ({ sessions }: Real, { number }: ModelTransaction, isolation: string) =>
  Effect.promise(async () => {
    const session = await sessions.open(number)
    await session.query(`begin isolation level ${isolation}`)
  })

/** A statement in an open transaction. */
export const send = ({ sessions }: Real, { number }: ModelTransaction, text: string) =>
  Effect.tryPromise({ try: () => sessions.of(number).query(text), catch: (cause) => cause }).pipe(
    Effect.catchAll(giveUp)
  )

/** What a producer does in an open transaction. */
export const within = <A, E>(
  { sessions }: Real,
  { number }: ModelTransaction,
  enqueue: Effect.Effect<A, E, SqlClient.SqlClient>
) => Effect.catchAll(Effect.suspend(() => Database.joinPgTransaction(sessions.of(number))(enqueue)), giveUp)

const giveUp = (error: unknown): Effect.Effect<never, NotSerializable> =>
  isConflict(error) ? Effect.fail(new NotSerializable()) : Effect.die(error)

class RolledBack<A> extends Data.Error<{ readonly answer: A }> {}

/** Does something in a transaction that is rolled back, and answers what it answered. */
export const inVain = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.flatMap(
    SqlClient.SqlClient,
    (sql) =>
      Effect.flatMap(self, (answer) => Effect.fail(new RolledBack({ answer }))).pipe(
        sql.withTransaction,
        Effect.catchIf((error) => error instanceof RolledBack, ({ answer }) => Effect.succeed(answer))
      )
  )

/** Ends a transaction; answers whether it was committed. */
export const end = (real: Real, transaction: ModelTransaction, commit: boolean): Effect.Effect<boolean> =>
  send(real, transaction, commit ? "commit" : "rollback").pipe(
    Effect.as(commit),
    // A COMMIT that was refused has ended the transaction; a statement that was has not.
    Effect.catchTag("NotSerializable", () => Effect.succeed(false)),
    Effect.zipLeft(Effect.sync(() => real.sessions.close(transaction.number)))
  )

/** The time of the program is the queue's time. */
export const inTimeOf = (model: Model) =>
  Effect.provideService(TimeSource.TimeSource, Effect.sync(() => new Date(model.now)))
