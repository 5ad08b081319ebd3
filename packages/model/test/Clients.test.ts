import { Database, Job, Migrations, Producer, Queues, StorageSchemas } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted, Schema } from "effect"
import * as Pg from "pg"
import { EmptyLive, MigratedLive, stored } from "./support/database.js"

const Note = Job.make("note", {
  payload: { snake_case: Schema.String, list: Schema.Array(Schema.Number) },
  queue: "notes"
})
const payload = { snake_case: "a_b", list: [1, 2] }

const enqueueBoth = Effect.gen(function*() {
  const job = yield* Note.enqueue(payload, { metadata: { meta_key: { inner_key: 1 } }, delay: "1 hour" })
  const ids = yield* Note.enqueueMany([payload, payload])
  return [job, ...(yield* stored([job.id, ...ids]))] as const
})

describe("whatever the application's client does to names and types", () => {
  const upper = (name: string) => name.toUpperCase()
  const exotic: Database.Options = {
    transformQueryNames: upper,
    transformResultNames: upper,
    transformJson: true,
    // Every type but the text ones arrives as an object.
    types: {
      getTypeParser: ((oid: number) => oid === 25 ? String : (text: unknown) => ({ oid, text })) as never
    }
  }

  it.scopedLive("jobs are stored and answered alike", () =>
    Effect.gen(function*() {
      const [job] = yield* enqueueBoth
      assert.deepInclude(job, { kind: "note", args: payload, state: "scheduled" })
      assert.strictEqual(job.runAt.getTime() - job.createdAt.getTime(), 3_600_000)
      const plain = yield* Database.clone(yield* PgClient.PgClient, { maxConnections: 1 })
      const [row] = yield* stored([job.id]).pipe(Effect.provideService(SqlClient.SqlClient, plain))
      assert.deepInclude(row, { args: payload, metadata: { meta_key: { inner_key: 1 } }, created_at: job.createdAt })
    }).pipe(Effect.provide(MigratedLive(exotic))))

  it.scopedLive("one connection is enough", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* Database.transaction(enqueueBoth)).length, 4)
      assert.strictEqual((yield* Note.enqueueMany(Array.from({ length: 10_001 }, () => payload))).length, 10_001)
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))

  for (const prepareStatements of [true, false]) {
    it.scopedLive(`hot statements are ${prepareStatements ? "" : "not "}prepared`, () =>
      Effect.gen(function*() {
        yield* Note.enqueue(payload)
        yield* Note.enqueue(payload)
        const sql = yield* SqlClient.SqlClient
        yield* sql.unsafe("select 1 where $1::int = 1", [1])
        yield* sql.unsafe("select 1 where $1::int = 1", [1]).values
        const names = yield* sql<{ name: string }>`select name from pg_prepared_statements`
        assert.lengthOf(names, prepareStatements ? 1 : 0)
        for (const { name } of names) assert.match(name, /^awa_[0-9a-f]{16}$/)
      }).pipe(Effect.provide(MigratedLive({ maxConnections: 1, prepareStatements }))))
  }

  it.scopedLive("a client of @effect/sql-pg will do", () =>
    Effect.gen(function*() {
      const { config } = yield* PgClient.PgClient
      yield* enqueueBoth.pipe(Effect.provide(PgClient.layer({ ...config, password: config.password! })))
    }).pipe(Effect.provide(MigratedLive())))
})

describe("without Effect", () => {
  const withClient = <A>(use: (client: Pg.Client) => Promise<A>) =>
    Effect.gen(function*() {
      const client = new Pg.Client(Redacted.value(yield* Database.connectionConfig(yield* PgClient.PgClient)))
      return yield* Effect.acquireUseRelease(
        Effect.promise(() => client.connect()),
        () => Effect.promise(() => use(client)),
        () => Effect.promise(() => client.end())
      )
    })

  it.scopedLive("insertStatement gives text and string values for node-postgres", () =>
    Effect.gen(function*() {
      const one = Producer.insertStatement(Note.request(payload, { tags: ["t"] }))
      const three = Producer.insertStatement([
        Note.request(payload, { delay: "1 hour" }),
        Note.request(payload),
        Note.request(payload)
      ])
      assert.deepStrictEqual([...one.values, ...three.values].map((value) => typeof value), ["string", "string"])
      const ids = yield* withClient(async (client) => {
        await client.query("begin")
        const answers = [
          await client.query(one.text, [...one.values]),
          await client.query(three.text, [...three.values])
        ]
        await client.query("commit")
        await client.query("begin")
        await client.query(one.text, [...one.values])
        await client.query("rollback")
        return answers.map(({ rows }) => rows[0].ids as string)
      })
      assert.deepStrictEqual(ids.map((text) => text.split(",").length), [1, 3])
      const rows = yield* stored(ids.flatMap((text) => text.split(",").map(BigInt)))
      assert.deepStrictEqual(rows.map(({ args }) => args), [payload, payload, payload, payload])
      assert.deepStrictEqual(rows.map(({ state }) => state), ["available", "scheduled", "available", "available"])
      assert.deepStrictEqual(rows[0]!.tags, ["t"])
      const sql = yield* SqlClient.SqlClient
      assert.deepStrictEqual(yield* sql`select count(*)::int as n from awa.jobs`, [{ n: 4 }])
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("insertStatement answers who has the key of a unique job, and the transaction goes on", () =>
    Effect.gen(function*() {
      const Import = Job.make("import", { payload: { tenant: Schema.String }, unique: true })
      const { text, values } = Producer.insertStatement(Import.request({ tenant: "acme" }))
      const [first, second] = yield* withClient(async (client) => {
        const insert = async () => (await client.query(text, [...values])).rows[0]
        await client.query("begin")
        const answers = [await insert(), await insert()]
        await client.query("commit")
        return answers
      })
      assert.match(first.ids, /^\d+$/)
      assert.isNull(first.duplicates)
      assert.deepInclude(second, { ids: "", duplicates: [[0, first.ids, null]] })
      const sql = yield* SqlClient.SqlClient
      assert.deepStrictEqual(yield* sql`select id::text from awa.jobs`, [{ id: first.ids }])
    }).pipe(Effect.provide(MigratedLive())))

  it("insertStatement throws what enqueue fails with", () => {
    const Late = Job.make("late", {
      payload: Schema.transformOrFail(Schema.String, Schema.String, {
        strict: true,
        decode: Effect.succeed,
        encode: (text) => Effect.as(Effect.yieldNow(), text)
      })
    })
    assert.throws(
      () => Producer.insertStatement(Note.request({ ...payload, list: ["x" as never] })),
      /payload\.list\[0\]/
    )
    assert.throws(
      () => Producer.insertStatement([Note.request(payload), Note.request(payload, { queue: "" })]),
      /index 1.*queue/
    )
    assert.throws(
      () => Producer.insertStatement(Late.request("x")),
      /payload: its schema encodes asynchronously: use Producer\.enqueue/
    )
    const many = Array.from({ length: 10_001 }, () => Note.request(payload))
    assert.throws(() => Producer.insertStatement(many), /index 10000.*requests: must be at most 10000/)
    assert.include(Producer.insertStatement(many.slice(1), { engineSchema: "jobs" }).text, "\"jobs\".enqueue(")
  })

  it.scopedLive("joinPgTransaction enqueues in a transaction of node-postgres", () =>
    Effect.gen(function*() {
      const enqueue = (client: Pg.Client) =>
        Effect.runPromise(
          Effect.zip(Note.enqueue(payload), Database.transaction(Note.enqueueMany([payload]))).pipe(
            Database.joinPgTransaction(client)
          )
        )
      yield* withClient(async (client) => {
        await client.query("begin")
        await enqueue(client)
        await client.query("rollback")
        await client.query("begin")
        await enqueue(client)
        await client.query("commit")
      })
      const sql = yield* SqlClient.SqlClient
      assert.deepStrictEqual(yield* sql`select count(*)::int as n from awa.jobs`, [{ n: 2 }])
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("joinPgTransaction never ends that transaction, whatever is called in it", () =>
    Effect.gen(function*() {
      const outside: Record<string, Effect.Effect<unknown, unknown, SqlClient.SqlClient>> = {
        pause: Queues.pause("notes"),
        drain: Queues.drain("notes"),
        statement: Database.outsideTransaction(Note.enqueue(payload)),
        transaction: Database.outsideTransaction(Database.transaction(Note.enqueue(payload))),
        pinned: Database.pinned(Database.transaction(Note.enqueue(payload)))
      }
      for (const [name, call] of Object.entries(outside)) {
        yield* withClient(async (client) => {
          await client.query("begin")
          await Effect.runPromise(Database.joinPgTransaction(client)(Note.enqueue(payload)))
          const joined = Database.joinPgTransaction(client)(call)
          assert.match(String(await Effect.runPromise(Effect.flip(joined))), /provide a SqlClient beside it/, name)
          await client.query("rollback")
        })
      }
      const sql = yield* SqlClient.SqlClient
      assert.deepStrictEqual(yield* sql`select from awa.jobs`, [])
    }).pipe(Effect.provide(MigratedLive())))

  it.scopedLive("joinPgTransaction says when there is none", () =>
    withClient(async (client) => {
      const many = Database.joinPgTransaction(client)(Database.transaction(Note.enqueue(payload)))
      assert.match(String(await Effect.runPromise(Effect.flip(many))), /in no transaction; send BEGIN on it before/)
    }).pipe(Effect.provide(MigratedLive())))
})

describe("schemas", () => {
  it.scopedLive("several installations share a database without touching each other", () =>
    Effect.gen(function*() {
      const installations = [{ control: "awa", engine: "awa" }, { control: "ctl", engine: "jobs" }, {
        control: "one",
        engine: "one"
      }]
      for (const schemas of installations) {
        const job = yield* Effect.gen(function*() {
          yield* Migrations.run()
          yield* Migrations.verify
          return yield* Note.enqueue(payload)
        }).pipe(Effect.provide(StorageSchemas.layer(schemas)))
        assert.deepInclude((yield* stored([job.id], schemas.control))[0], { args: payload })
      }
      const sql = yield* SqlClient.SqlClient
      for (const engine of ["awa", "jobs", "one"]) {
        assert.lengthOf(yield* sql`select from ${sql(engine)}.ready_entries`, 1)
      }
    }).pipe(Effect.provide(EmptyLive())))
})
