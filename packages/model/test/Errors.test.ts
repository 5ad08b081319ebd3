import { EmbeddedPostgres } from "@awa/embedded"
import {
  Database,
  Dlq,
  Errors,
  Job,
  JobAdmin,
  JobRow,
  Migrations,
  Producer,
  Queues,
  QueueStorage,
  Unique
} from "@awa/model"
import { SqlClient, SqlError } from "@effect/sql"
import { type PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Either, Exit, Layer, Option, Redacted, Schema } from "effect"
import * as Net from "node:net"
import { inspect } from "node:util"
import { EmptyLive } from "./support/database.js"

const secret = "s3cr%2Fet"
const spellings = ["s3cr%2Fet", "s3cr/et"]

/** Every way an error may end up in a log. */
const faces = (error: unknown): ReadonlyArray<string> => [
  String(error),
  JSON.stringify(error) ?? "",
  inspect(error, { depth: Infinity, showHidden: true }),
  error instanceof Error ? `${error.stack}` : "",
  Cause.pretty(Cause.fail(error), { renderErrorCause: true }),
  JSON.stringify(Exit.fail(error)),
  JSON.stringify(
    Schema.encodeUnknownEither(Schema.Union(
      Errors.ConnectionFailed,
      Errors.InvalidSetting,
      Errors.DatabaseError
    ))(error)
  )
]

const leaks = (error: unknown): boolean =>
  faces(error).some((face) => spellings.some((spelling) => face.includes(spelling)))

const connect = (options: Database.Options) => Effect.flip(Effect.scoped(Layer.build(Database.layer(options))))

/** A server of TCP that never answers. */
const silentPort = Effect.acquireRelease(
  Effect.async<Net.Server>((resume) => {
    const server = Net.createServer().listen(0, "127.0.0.1", () => resume(Effect.succeed(server)))
  }),
  (server) => Effect.sync(() => server.close())
).pipe(Effect.map((server) => (server.address() as Net.AddressInfo).port))

const closedPort = Effect.scoped(silentPort)

describe("a database that cannot be reached", () => {
  it.scopedLive("is a typed failure of the layer that names the server and keeps the password", () =>
    Effect.gen(function*() {
      const closed = yield* closedPort
      const silent = yield* silentPort
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      const url = (host: string, database = "postgres") => `postgres://postgres:${secret}@${host}/${database}`
      const missing = new URL(server.urlOf("nowhere"))
      const cases: ReadonlyArray<readonly [Database.Options, Errors.ConnectionFailed["reason"], string]> = [
        [{ url: url(`127.0.0.1:${closed}`) }, "refused", `127.0.0.1:${closed}/postgres`],
        [{ url: Redacted.make(url(`localhost:${closed}`)) }, "refused", `localhost:${closed}/postgres`],
        [{ url: url("no-such-host.invalid:1") }, "other", "no-such-host.invalid:1/postgres"],
        [{ url: url(`127.0.0.1:${silent}`), connectTimeout: "100 millis" }, "timeout", `127.0.0.1:${silent}/postgres`],
        [{ url: url(`127.0.0.1:${server.port}`) }, "authentication", `127.0.0.1:${server.port}/postgres`],
        [
          { host: "127.0.0.1", port: server.port, username: "postgres", database: "postgres" },
          "authentication",
          `127.0.0.1:${server.port}/postgres`
        ],
        [{ url: missing.href }, "database-missing", `127.0.0.1:${server.port}/nowhere`],
        [{ host: "/no/such/folder", port: 5, database: "d", password: secret }, "refused", "/no/such/folder:5/d"],
        [{ url: url(`127.0.0.1:${server.port}`), ssl: true }, "other", `127.0.0.1:${server.port}/postgres`]
      ]
      for (const [options, reason, target] of cases) {
        const error = yield* connect(options)
        assert.deepInclude(error, { _tag: "ConnectionFailed", reason, target })
        assert.include(error.message, `Cannot connect to PostgreSQL at ${target}: `)
        assert.isFalse(leaks(error), inspect(error))
        assert.notInclude(faces(error).join(), missing.password)
      }
    }))

  it.scopedLive("is a typed failure of an enqueue, too", () =>
    Effect.gen(function*() {
      const Note = Job.make("note", { payload: { a: Schema.Number } })
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      const context = yield* Layer.build(Database.layer({ url: server.url }))
      yield* Effect.provide(Migrations.run(), context)
      yield* server.stop("immediate")
      const error = yield* Effect.provide(Effect.flip(Note.enqueue({ a: 1 })), context)
      assert.include(["ConnectionFailed", "DatabaseError"], error._tag)
      assert.isTrue(Database.isTransient(error))
      const again = yield* Effect.provide(Effect.flip(Producer.enqueueMany([Note.request({ a: 1 })])), context)
      assert.deepInclude(again, {
        _tag: "ConnectionFailed",
        reason: "refused",
        target: `127.0.0.1:${server.port}/postgres`
      })
      yield* server.start
      yield* Effect.provide(Note.enqueue({ a: 1 }), context)
    }))
})

describe("settings", () => {
  it.effect("that cannot be are refused before any connection, without the secret", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [Database.Options, string]> = [
        [{ url: `mysql://u:${secret}@h/d` }, "url"],
        [{ url: `postgres://u:${secret}@h:port/d` }, "url"],
        [{ url: `postgres://u:${secret}@h/d?sslmode=verify-ca&sslrootcert=/no/such/file` }, "url"],
        [{ url: `postgres://u:${secret}@h/d?sslnegotiation=nonsense` }, "url"],
        [{ url: "" }, "url"],
        [{ port: 0 }, "port"],
        [{ port: 65_536 }, "port"],
        [{ maxConnections: 0 }, "maxConnections"],
        [{ maxConnections: 1.5 }, "maxConnections"],
        [{ minConnections: -1 }, "minConnections"],
        [{ connectTimeout: 0 }, "connectTimeout"],
        [{ connectTimeout: "nonsense" as never }, "connectTimeout"],
        [{ idleTimeout: "1000 days" }, "idleTimeout"],
        [{ connectionTTL: Infinity }, "connectionTTL"]
      ]
      for (const [options, setting] of cases) {
        const error = yield* connect({ password: secret, ...options })
        assert.deepInclude(error, { _tag: "InvalidSetting", setting })
        assert.isFalse(leaks(error), inspect(error))
      }
    }))
})

describe("a schema that is not there", () => {
  const Note = Job.make("note", { payload: { a: Schema.Number } })

  it.scopedLive("is a typed failure that tells what to do", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      for (const step of ["select 1", "create schema awa"]) {
        yield* sql.unsafe(step)
        const error = yield* Effect.flip(Note.enqueue({ a: 1 }))
        assert.strictEqual(
          error.message,
          "The database has no job queue in schema \"awa\". Run the migrations (Migrations.run), or correct the schema name (StorageSchemas) or the database."
        )
        assert.strictEqual((yield* Effect.flip(Migrations.verify))._tag, "SchemaMissing")
      }
    }).pipe(Effect.provide(EmptyLive())))
})

describe("roles with least privileges", () => {
  const Note = Job.make("note", { payload: { a: Schema.Number } })

  it.scopedLive("can do what they were granted and nothing else", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      const owner = yield* Layer.build(Database.layer({ url: server.url }))
      const as = (role: string) => Database.layer({ url: server.url, username: role, password: role })
      const sql = (text: string) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(text))

      yield* Effect.gen(function*() {
        yield* sql("revoke all on schema public from public; revoke temp, connect on database postgres from public")
        for (const role of ["producer", "worker", "operator", "reader", "stranger", "odd \"role\""]) {
          const name = `"${role.replaceAll("\"", "\"\"")}"`
          yield* sql(`create role ${name} login password '${role}'; grant connect on database postgres to ${name}`)
        }
        yield* Migrations.run()
        for (const role of ["producer", "worker", "operator", "reader"] as const) {
          yield* sql(yield* Migrations.grants({ role, as: role }))
        }
        yield* sql(yield* Migrations.grants({ role: "odd \"role\"", as: "producer" }))
      }).pipe(Effect.provide(owner))

      const state = <A>(effect: Effect.Effect<A, unknown, SqlClient.SqlClient | PgClient.PgClient>, role: string) =>
        Effect.map(
          Effect.either(Effect.provide(effect, as(role))),
          Either.match({
            onLeft: (error) => Option.getOrElse(Database.sqlState(error), () => (error as Errors.AwaError)._tag),
            onRight: () => "ok"
          })
        )
      const enqueue = Effect.all([
        Note.enqueue({ a: 1 }, { queue: "new" }),
        Note.enqueueMany([{ a: 1 }, { a: 2 }], { delay: "1 hour" }),
        Note.enqueueEach([{ a: 3 }], { unique: true }),
        Unique.holder(Note.request({ a: 3 }, { unique: true }))
      ])
      const powers = Effect.map(
        Effect.flatMap(SqlClient.SqlClient, (sql) =>
          sql.unsafe<{ name: string }>(
            "select proname::text as name from pg_proc where pronamespace = 'awa'::regnamespace and prosecdef " +
              "and has_function_privilege(oid, 'execute') order by 1"
          )),
        (rows) => rows.map(({ name }) => name)
      )
      const read = sql("select * from awa.jobs")
      const write = sql("insert into awa.lanes values (1, 'x', 1, 1)")

      for (const role of ["producer", "odd \"role\""]) {
        assert.deepStrictEqual(
          yield* Effect.forEach([enqueue, read, write, Migrations.verify, Migrations.run()], (effect) =>
            state<unknown>(effect, role)),
          ["ok", "42501", "42501", "PermissionDenied", "PermissionDenied"]
        )
        assert.deepStrictEqual(yield* Effect.provide(powers, as(role)), [
          "enqueue",
          "enqueue_alike",
          "enqueue_one",
          "enqueue_unique",
          "unique_holder"
        ])
      }
      assert.deepStrictEqual(
        yield* Effect.forEach([enqueue, read, write, Migrations.verify], (effect) =>
          state<unknown>(effect, "worker")),
        ["ok", "42501", "42501", "ok"]
      )
      for (const role of ["producer", "worker", "reader"]) {
        assert.strictEqual(yield* state<unknown>(QueueStorage.adopt, role), "PermissionDenied", `${role} adopts`)
      }
      assert.deepInclude(yield* Effect.provide(QueueStorage.adopt, owner), { epoch: 2, requeued: 0 })
      assert.includeMembers(yield* Effect.provide(powers, as("worker")), ["claim", "complete", "enqueue"])
      assert.deepStrictEqual(
        yield* Effect.forEach([enqueue, read, write, Migrations.verify], (effect) => state<unknown>(effect, "reader")),
        ["PermissionDenied", "ok", "42501", "ok"]
      )
      const looking = [
        "dlq_depth",
        "dlq_depth_of",
        "dlq_get",
        "dlq_list",
        "job",
        "list_jobs",
        "queue_depths",
        "queue_settings",
        "unique_holder"
      ]
      assert.deepStrictEqual(yield* Effect.provide(powers, as("reader")), looking)

      // Who may do what to queues and dead letters.
      const id = JobRow.JobId.make(1n)
      const operations: Record<string, Effect.Effect<unknown, unknown, SqlClient.SqlClient>> = {
        pause: Queues.pause("new"),
        resume: Queues.resume("new"),
        drain: Queues.drain("new"),
        setOverrides: Queues.setOverrides("new", {}),
        setRetention: Queues.setRetention("new", {}),
        setDlq: Queues.setDlq("new", {}),
        move: Dlq.move(id, "r"),
        bulkMove: Dlq.bulkMove({ all: true }, "r"),
        revive: Dlq["retry"](id),
        bulkRetry: Dlq.bulkRetry({ all: true }),
        purge: Dlq.purge({ all: true }),
        purgeOne: Dlq.purgeOne(id),
        cleanup: Dlq.cleanup("1 day"),
        settings: Queues.settings("new"),
        list: Queues.list,
        depth: Queues.depth(),
        deadLetters: Dlq.list(),
        deadLetter: Dlq.get(id),
        dlqDepth: Dlq.depth("new")
      }
      const allowed = (role: string) =>
        Effect.map(
          Effect.forEach(Object.entries(operations), ([name, operation]) =>
            Effect.map(state(operation, role), (result) => {
              assert.include(["ok", "PermissionDenied"], result, `${role} ${name}`)
              return result === "ok" ? [name] : []
            })),
          (names) => names.flat()
        )
      const seeing = ["settings", "list", "depth", "deadLetters", "deadLetter", "dlqDepth"]
      assert.deepStrictEqual(yield* allowed("operator"), Object.keys(operations))
      assert.deepStrictEqual(yield* allowed("worker"), ["cleanup", ...seeing])
      assert.deepStrictEqual(yield* allowed("reader"), seeing)
      assert.deepStrictEqual(yield* allowed("producer"), [])
      assert.deepStrictEqual(yield* allowed("stranger"), [])
      const [job] = yield* Effect.provide(Note.enqueueMany([{ a: 1 }]), owner)
      const administer = Effect.all([
        JobAdmin.get(job!),
        JobAdmin.list({ state: "available" }),
        JobAdmin.requestCancel(job!),
        JobAdmin.setPriority(job!, 1),
        JobAdmin.cancel(job!),
        JobAdmin.retryMany([job!])
      ])
      assert.deepStrictEqual(
        yield* Effect.forEach([enqueue, administer, read, write], (effect) => state<unknown>(effect, "operator")),
        ["PermissionDenied", "ok", "ok", "42501"]
      )
      for (const role of ["producer", "reader", "stranger"]) {
        assert.strictEqual(yield* state(JobAdmin.cancel(job!), role), "PermissionDenied")
        assert.strictEqual(yield* state(JobAdmin.get(job!), role), role === "reader" ? "ok" : "PermissionDenied")
      }
      assert.deepStrictEqual(
        yield* Effect.forEach([enqueue, Migrations.verify, Migrations.run()], (effect) =>
          state<unknown>(effect, "stranger")),
        ["PermissionDenied", "PermissionDenied", "PermissionDenied"]
      )
      const denied = yield* Effect.flip(Effect.provide(Note.enqueue({ a: 1 }), as("stranger")))
      assert.match(
        denied.message,
        /"enqueue" is not permitted to this role: permission denied for schema awa\. .*Migrations\.grants/
      )
    }))

  it.scopedLive("a role that owns its schemas can migrate without CREATE on the database", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.make({ fsync: false })
      const sql = (text: string) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(text))
      const as = (role: string) => Database.layer({ url: server.url, username: role, password: role })
      yield* Effect.provide(
        sql("create role migrator login password 'migrator'; grant pg_read_all_stats to migrator"),
        Database.layer({ url: server.url })
      )
      const denied = yield* Effect.flip(Effect.provide(Migrations.run(), as("migrator")))
      assert.match(
        denied.message,
        /"migrate" is not permitted to this role: permission denied for database postgres\. Migrate as a role/
      )
      yield* Effect.provide(sql("create schema awa authorization migrator"), Database.layer({ url: server.url }))
      yield* Effect.zipRight(Migrations.run(), Note.enqueue({ a: 1 })).pipe(Effect.provide(as("migrator")))
    }))

  it.effect("grants refuses what cannot be a role", () =>
    Effect.gen(function*() {
      for (const role of ["", "a\0", "é".repeat(32)]) {
        assert.deepInclude(yield* Effect.flip(Migrations.grants({ role, as: "producer" })), {
          _tag: "InvalidSetting",
          setting: "role"
        })
      }
    }))
})

describe("messages", () => {
  it("tell what to do", () => {
    const messages = [
      new Errors.InvalidJob({ kind: "k", field: "payload.a", reason: "is wrong", index: 3 }),
      new Errors.SchemaOutdated({ schema: "awa", found: 1, expected: 2 }),
      new Errors.SchemaTooNew({ schema: "awa", found: 3, supported: 2 }),
      new Errors.MigrationChanged({ schema: "awa", version: 1, name: "x" }),
      new Errors.ForeignDatabase({ schema: "awa", expected: "1", found: "2" }),
      new Errors.StorageInconsistent({ schema: "awa", detail: "x" }),
      new Errors.InvalidSetting({ setting: "s", value: { a: 1 }, reason: "must be b" }),
      new Errors.QueueBusy({ queue: "q", operation: "drain", done: false }),
      new Errors.QueueBusy({ queue: "q", operation: "pause", done: true })
    ].map(({ message }) => message)
    assert.deepStrictEqual(messages, [
      "Job \"k\" (index 3 of the call) is not accepted. payload.a: is wrong",
      "Schema \"awa\" is at migration 1, this version of the library needs 2. Run the migrations (Migrations.run).",
      "Schema \"awa\" has migration 3, this version of the library knows 2 at most. Upgrade the library in this process; nothing was changed.",
      "Migration 1 (x) was applied to schema \"awa\" with other contents than this version of the library has. Use the version of the library that applied it; nothing was changed.",
      "The jobs in schema \"awa\" belong to the database cluster 1, this is 2: they were restored from a dump or replicated. Connect to the cluster they belong to, or adopt them here (QueueStorage.adopt).",
      "The stored jobs in schema \"awa\" are inconsistent: x. Stop the workers and report this with the server's log.",
      "Invalid setting s ({\n  \"a\": 1\n}): must be b",
      "Operation \"drain\" on queue \"q\" did not get what it needs within two seconds: a claim or another operation " +
      "holds it. Try again; if that does not help, look in pg_stat_activity for transactions that idle.",
      "Operation \"pause\" on queue \"q\" took effect, but a claim that began before it may still be under way. " +
      "Try again; if that does not help, look in pg_stat_activity for transactions that idle."
    ])
  })

  it("survive encoding", () => {
    const error = new Errors.DatabaseError({
      operation: "claim",
      sqlState: "40001",
      cause: new SqlError.SqlError({ cause: new Error("no") })
    })
    const decoded = Schema.decodeUnknownSync(Errors.DatabaseError)(
      JSON.parse(JSON.stringify(Schema.encodeSync(Errors.DatabaseError)(error)))
    )
    assert.deepInclude(decoded, { operation: "claim", sqlState: "40001" })
    assert.isTrue(decoded.isTransient)
  })
})
