/** What one does with nothing but SQL. */
import { Locks, Migrations } from "@awa/model"
import { TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect } from "effect"
import { readFileSync } from "node:fs"
import * as Pg from "pg"
import { MigratedLive } from "./support/database.js"

interface Row {
  readonly id: string
  readonly kind: string
  readonly queue: string
  readonly args: unknown
  readonly state: string
  readonly priority: number
  readonly max_attempts: number
  readonly metadata: unknown
  readonly tags: ReadonlyArray<string>
  readonly ordering_key: string | null
}

const sql = <A extends object>(text: string) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe<A>(text).withoutTransform)

const columns = "id::text, kind, queue, args, state::text, priority, max_attempts, metadata, tags, ordering_key"

/** The server's words for what it refuses. */
const refused = (text: string) => Effect.map(Effect.flip(sql(text)), ({ cause }) => cause as Pg.DatabaseError)

const refusal = (text: string) => Effect.map(refused(text), ({ message }) => message)

describe("insert into awa.jobs", () => {
  it.effect("enqueues, and answers what is then there", () =>
    Effect.gen(function*() {
      const answered = yield* sql<Row>(
        `insert into awa.jobs (kind, queue, args, priority, metadata, tags, ordering_key, run_at) values
          ('plain', null, null, null, null, null, null, null),
          ('full', 'q', '{"a": null}', 4, '{"m": null}', '{x,y}', 'key', now() + interval '1 hour')
        returning ${columns}`
      )
      assert.deepInclude(answered[0]!, {
        kind: "plain",
        queue: "default",
        args: {},
        state: "available",
        priority: 2,
        max_attempts: 25,
        metadata: {},
        tags: []
      })
      assert.deepInclude(answered[1]!, {
        kind: "full",
        queue: "q",
        args: { a: null },
        state: "scheduled",
        priority: 4,
        metadata: { m: null },
        tags: ["x", "y"],
        ordering_key: "key"
      })
      assert.deepStrictEqual(yield* sql<Row>(`select ${columns} from awa.jobs order by id`), answered)
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("keeps a payload of JSON null, and takes the rows of a query", () =>
    Effect.gen(function*() {
      yield* sql("insert into awa.jobs (kind, args) select 'many', to_jsonb(i) from generate_series(1, 3) i")
      yield* sql("insert into awa.jobs (kind, args) values ('null', 'null')")
      // Both take several times as much as text.
      const control = "\u0001".repeat(1_000)
      yield* sql(`insert into awa.jobs (kind, args) values ('long', '${JSON.stringify([1e308, 1e308, control])}')`)
      const rows = yield* sql<{ args: unknown }>("select args from awa.jobs order by id")
      assert.deepStrictEqual(rows.map(({ args }) => args), [1, 2, 3, null, [1e308, 1e308, control]])
    }).pipe(Effect.provide(MigratedLive())))

  it.live("wakes a worker that sleeps", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const heard = yield* Deferred.make<string>()
      // Like a dispatcher: it listens, and holds the idle lock while it sleeps.
      const sleeper = yield* Effect.acquireRelease(
        Effect.promise(async () => {
          const client = new Pg.Client({ connectionString: url })
          await client.connect()
          return client
        }),
        (client) => Effect.promise(() => client.end())
      )
      sleeper.on("notification", ({ channel }) => Deferred.unsafeDone(heard, Effect.succeed(channel)))
      const channel = Locks.wakeChannel("awa", "default")
      yield* Effect.promise(() => sleeper.query(`listen ${Pg.escapeIdentifier(channel)}`))
      yield* Effect.promise(() =>
        sleeper.query("select pg_advisory_lock_shared($1, $2)", [...Locks.idleLock("awa", "default")])
      )
      yield* sql("insert into awa.jobs (kind) values ('wakes')")
      assert.strictEqual(yield* Deferred.await(heard), channel)
    }).pipe(Effect.scoped, Effect.provide(TestDatabase.layer())))

  it.effect("refuses what is wrong with a job, by name, and stores nothing of the statement", () =>
    Effect.gen(function*() {
      const wrong = {
        "(args) values ('{}')": "kind: must have 1 to 200 characters",
        "(kind, queue) values ('k', '')": "queue: must have 1 to 200 characters",
        "(kind, priority) values ('k', 5)": "priority: must be 1 to 4",
        "(kind, max_attempts) values ('k', 0)": "max_attempts: must be 1 to 1000",
        "(kind, run_at) values ('k', 'infinity')": "run_at: must be a finite instant",
        "(kind, metadata) values ('k', '[]')": "metadata: must be an object",
        "(kind, metadata) values ('k', jsonb_build_object('m', repeat('x', 1048576)))":
          "metadata: must be at most 1 MiB of JSON",
        "(kind, tags) values ('k', array['a', null])": "tags: must have 1 to 200 characters each",
        "(kind, tags) values ('k', '{{a,b},{c,d}}')": "tags: must have 1 to 200 characters each",
        "(kind, tags) values ('k', array[repeat('x', 201)])": "tags: must have 1 to 200 characters each",
        "(kind, args) values ('k', '1e131000')":
          "args: must be at most 16 MiB of JSON, without numbers of thousands of digits",
        "(kind, args) values ('k', to_jsonb(repeat('x', 16777216)))":
          "args: must be at most 16 MiB of JSON, without numbers of thousands of digits",
        "(id, kind) values (1, 'k')": "id: is not for you to set",
        "(kind, state) values ('k', 'completed')": "state: is not for you to set",
        "(kind, attempt) values ('k', 3)": "attempt: is not for you to set",
        "(kind, errors) values ('k', '[]')": "errors: is not for you to set"
      }
      for (const [values, message] of Object.entries(wrong)) {
        assert.strictEqual(yield* refusal(`insert into awa.jobs ${values}`), message)
      }
      for (const delay of ["-1", "\"-Infinity\"", "\"NaN\"", "\"Infinity\"", "1e300", "3155760000001"]) {
        const call = `select awa.enqueue('[{"kind":"k"},{"kind":"k","delay_ms":${delay}}]')`
        assert.strictEqual(yield* refusal(call), "job 1: delay_ms: must be 0 to 100 years")
      }
      yield* refusal("insert into awa.jobs (kind, priority) values ('good', 1), ('bad', 9)")
      assert.deepStrictEqual(yield* sql("select from awa.jobs"), [])
      yield* sql("insert into awa.jobs (kind) values ('kept')")
      for (const change of ["update awa.jobs set priority = 1", "delete from awa.jobs"]) {
        assert.strictEqual(yield* refusal(change), "awa.jobs: rows cannot be updated or deleted")
      }
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("is for producers", () =>
    Effect.gen(function*() {
      const role = `plain_${process.pid}`
      yield* sql(`create role ${role}`)
      yield* sql(yield* Migrations.grants({ role, as: "producer" }))
      yield* sql(`begin; set local role ${role}; insert into awa.jobs (kind) values ('theirs'); commit`)
      assert.match(yield* refusal(`begin; set local role ${role}; select from awa.jobs`), /permission denied/)
      yield* sql("rollback")
      const rows = yield* sql<{ kind: string }>("select kind from awa.jobs")
      assert.deepStrictEqual(rows, [{ kind: "theirs" }])
      yield* sql(`drop owned by ${role}; drop role ${role}`)
    }).pipe(Effect.provide(MigratedLive({ maxConnections: 1 }))))
})

describe("awa.terminal_jobs", () => {
  it.effect("shows the jobs that have ended", () =>
    Effect.gen(function*() {
      yield* sql("insert into awa.jobs (kind) values ('waits'), ('ends')")
      yield* sql("select awa.cancel_jobs(array(select id from awa.jobs where kind = 'ends'), null, null)")
      assert.deepStrictEqual(yield* sql("select kind, state::text from awa.terminal_jobs"), [
        { kind: "ends", state: "cancelled" }
      ])
    }).pipe(Effect.provide(MigratedLive())))

  it.effect("is for reading", () =>
    Effect.gen(function*() {
      const { hint, message } = yield* refused("insert into awa.terminal_jobs (kind) values ('k')")
      assert.deepStrictEqual([message, hint], ["terminal_jobs: is for reading", "Insert into awa.jobs."])
      assert.deepStrictEqual(yield* sql("select from awa.jobs"), [])
      yield* sql("insert into awa.jobs (kind) values ('ended')")
      yield* sql("select awa.cancel_jobs(array(select id from awa.jobs), null, null)")
      for (const change of ["update awa.terminal_jobs set priority = 1", "delete from awa.terminal_jobs"]) {
        assert.strictEqual(yield* refusal(change), "terminal_jobs: is for reading")
      }
    }).pipe(Effect.provide(MigratedLive())))
})

describe("a payload", () => {
  it.effect("is shown as what it is, but for a number that SQL has no room for", () =>
    Effect.gen(function*() {
      const payloads = [`{"b": 1, "a": [1.50, "\\u001f\\ud83d\\ude00"]}`, `{"n": 1e999999}`, "null", `"1e999999"`]
      for (const payload of payloads) {
        yield* sql(`select awa.enqueue_one('k', '${payload}', 'default', 2::smallint, 5::smallint,
          awa.lane_id('default', 2, 0), awa.lock_key('default'), null)`)
      }
      const rows = yield* sql<Row>("select args from awa.jobs order by id")
      assert.deepStrictEqual(rows.map(({ args }) => args), [
        { a: [1.5, "\u001f\u{1f600}"], b: 1 },
        `{"n": 1e999999}`,
        null,
        "1e999999"
      ])
      assert.deepStrictEqual(
        yield* sql("select count(*)::int as n from awa.jobs where args ->> 'b' = '1'"),
        [{ n: 1 }]
      )
    }).pipe(Effect.provide(MigratedLive())))
})

describe("the documents", () => {
  const statements = ["docs/operating.md", "README.md"].flatMap((name) =>
    Array.from(
      readFileSync(new URL(`../../../${name}`, import.meta.url), "utf8").matchAll(/^```sql\n(.*?)^```/gms),
      ([, block]) => block!.split(/;.*\n/).filter((statement) => /\bawa\./.test(statement))
    ).flat()
  )

  it.effect("show statements that run", () =>
    Effect.gen(function*() {
      assert.isAbove(statements.length, 15)
      for (const statement of statements) yield* sql(statement)
    }).pipe(Effect.provide(MigratedLive())))
})
