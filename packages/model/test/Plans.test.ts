/**
 * What a quiet queue costs beside a busy one: every call reads a few blocks however much the log holds, whenever its plan
 * was made, and whether or not somebody has run ANALYZE. The log has no statistics of its own.
 */
import { TestDatabase } from "@awa/testing"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Pg from "pg"

const owner = "00000000-0000-4000-8000-000000000001"

interface Batch {
  readonly slot: number
  readonly batch: string
  readonly nonce: string
}

const connect = (url: string) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new Pg.Client({ connectionString: url })
      await client.connect()
      return client
    }),
    (client) => Effect.promise(() => client.end())
  )

const enqueue = (client: Pg.Client, queue: string, priority: number, jobs: number) =>
  client.query(
    `select awa.enqueue(jsonb_agg(jsonb_build_object('kind', 'do', 'args', i, 'queue', $1::text, 'priority', $2::int)))
      from generate_series(1, $3::int) i`,
    [queue, priority, jobs]
  )

let nonce = 0

const claim = async (client: Pg.Client, queue: string): Promise<Batch> => {
  nonce += 1
  const { rows } = await client.query<{ jobs: string }>(
    "select jobs from awa.claim($1, 1, $2, $3, null, true, null, 60000)",
    [queue, owner, nonce]
  )
  const [[slot, batch]] = JSON.parse(rows[0]!.jobs) as [[number, string]]
  return { slot, batch, nonce: String(nonce) }
}

/** Many batches and as many jobs of the busy queue, all of them closed. Their cursors wait for a transaction, or for none. */
const busy = (pending: string | null) => `
  create table rows as
  select nextval('awa.pos_seq') as pos, nextval('awa.batch_seq') as batch from generate_series(1, 100000);
  insert into awa.ready_entries (
    slot, lane_id, pos, xid, job_id, attempt, run_lease, max_attempts, run_at, created_at, kind, args
  )
  select 0, awa.lane_id('busy', 2::smallint, 0::smallint), pos, '3', pos, 0, 0, 25, now(), now(), 'do', '1' from rows;
  insert into awa.claim_batches (
    slot, batch_id, nonce, lane_id, owner, claimed_at, n, lo, hi, offsets, cursor_pos, pending_xids, pending_after
  )
  select
    0, batch, 0, awa.lane_id('busy', 2::smallint, 0::smallint), '00000000-0000-4000-8000-000000000002',
    now() - interval '1 hour', 1, pos, pos, '{0}', pos,
    ${pending === null ? "null, null" : `'{${pending}}', '{0}'`}
  from rows;
  insert into awa.closures (slot, batch_id, act, n, members, finished_at)
  select 0, batch, 'complete', 1, '{1}', now() from rows;
  drop table rows`

/** The calls that run all the time, and those an operator waits for. */
const measure = async (client: Pg.Client, running: ReadonlyArray<Batch>) => {
  const blocks = async (text: string): Promise<number> => {
    await client.query("begin")
    const { rows } = await client.query<{ "QUERY PLAN": [{ Plan: Record<string, number> }] }>(
      `explain (analyze, buffers, format json) ${text}`
    )
    await client.query("rollback")
    const { Plan } = rows[0]!["QUERY PLAN"][0]
    return Plan["Shared Hit Blocks"]! + Plan["Shared Read Blocks"]!
  }
  const token = ({ batch, nonce, slot }: Batch) => `"slot": ${slot}, "batch": "${batch}", "nonce": "${nonce}"`
  const [one, two] = running as [Batch, Batch]
  const calls: Record<string, string> = {
    "claim": `awa.claim('quiet', 100, '${owner}', 1, null, true, null, 60000)`,
    "claim of two lanes": `awa.claim('two', 100, '${owner}', 1, null, true, null, 60000)`,
    "claim of nothing": `awa.claim('empty', 100, '${owner}', 1, null, true, null, 60000)`,
    "claim of the busy queue": `awa.claim('busy', 50, '${owner}', 1, null, true, null, 60000)`,
    "probe": "awa.probe('{quiet, two, empty}')",
    "probe of the busy queue": "awa.probe('{busy}')",
    "success": `awa.complete('${owner}', '[{${token(one)}, "members": [1]}]', '[]', null)`,
    "successes": `awa.complete('${owner}', '[{${token(one)}, "members": [1]}, {${
      token(two)
    }, "members": [1]}]', '[]', null)`,
    "retry": `awa.complete('${owner}', '[]', '[{${token(one)}, "member": 1, "act": "retry"}]', null)`,
    "heartbeat": `awa.heartbeat('${owner}', '[{${token(two)}, "member": 1}]', null)`,
    "promotion": "awa.promote(100, null)",
    "requested cancels": "awa.apply_cancel_requests(100, null)",
    depth: "awa.queue_depths('quiet', null)",
    "page of waiting jobs": "awa.list_jobs('available', null, 'quiet', null, null, 50)",
    "page of waiting jobs of the busy queue": "awa.list_jobs('available', null, 'busy', null, null, 50)",
    "drain": "awa.drain_ready('quiet', 0, null, 100, null)",
    "look for waiting rows in a slot": "awa.undrained_lanes(0::smallint)",
    "page of running jobs": "awa.list_jobs('running', null, 'quiet', null, null, 50)",
    "page of completed jobs": "awa.list_jobs('completed', null, 'busy', null, null, 50)",
    "first page": "awa.list_jobs(null, null, null, null, null, 50)",
    "job": "awa.job(3)"
  }
  const read: Record<string, number> = {}
  for (const [name, call] of Object.entries(calls)) {
    // The least of three: to plan reads thousands of blocks of the catalogue, the first time, and again whenever autovacuum
    // has just been to one of the tables.
    const passes: Array<number> = []
    while (passes.length < 3) passes.push(await blocks(`select * from ${call}`))
    read[name] = Math.min(...passes)
  }
  return read
}

/** Blocks more than alone. */
const allowed: Readonly<Record<string, number>> = {
  depth: 10_000, // counts what has ended in the open slot
  "page of running jobs": 3000, // looks at all batches from the rescue's frontier on, which has not moved here
  // Of fifty jobs, where alone there were a few.
  "claim of the busy queue": 300,
  "page of waiting jobs": 700,
  "page of waiting jobs of the busy queue": 700,
  "page of completed jobs": 700,
  "first page": 700
}

/** The log with a quiet queue and a busy one, read by several sessions. */
const compare = (others: "none" | "under way" | "ended") =>
  Effect.gen(function*() {
    const { url } = yield* TestDatabase.make()
    const early = yield* connect(url)
    const other = yield* connect(url)
    const pending = others === "none" ? null : yield* Effect.promise(async () => {
      await other.query("begin")
      return (await other.query<{ xid: string }>("select pg_current_xact_id()::text as xid")).rows[0]!.xid
    })
    const running = yield* Effect.promise(async () => {
      await enqueue(early, "busy", 2, 1)
      await claim(early, "busy")
      await enqueue(early, "quiet", 2, 8)
      await enqueue(early, "two", 1, 4)
      await enqueue(early, "two", 2, 4)
      await enqueue(early, "empty", 2, 1)
      await claim(early, "empty")
      return [await claim(early, "quiet"), await claim(early, "two")]
    })
    if (others === "ended") yield* Effect.promise(() => other.query("commit"))
    const alone = yield* Effect.promise(() => measure(early, running))
    yield* Effect.promise(async () => {
      await early.query(busy(pending))
      await enqueue(early, "busy", 2, 5000)
    })
    const states = {
      "planned before": yield* Effect.promise(() => measure(early, running)),
      "planned after": yield* Effect.flatMap(connect(url), (late) => Effect.promise(() => measure(late, running))),
      "analysed": yield* Effect.flatMap(
        connect(url),
        (late) => Effect.promise(() => late.query("analyze").then(() => measure(late, running)))
      )
    }
    for (const [state, read] of Object.entries(states)) {
      for (const [name, blocks] of Object.entries(read)) {
        assert.isBelow(blocks, 2 * alone[name]! + (allowed[name] ?? 30), `${name}, ${state}`)
      }
    }
  })

describe("a quiet queue beside a busy one", () => {
  it.scopedLive("costs what it costs alone", () => compare("none"))

  it.scopedLive("does so while cursors wait for a transaction that is under way", () => compare("under way"))

  it.scopedLive("does so when that has ended and was not looked for yet", () => compare("ended"))
})
