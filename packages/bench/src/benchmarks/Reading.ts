/**
 * Milliseconds that looking at a queue takes which keeps a long history: one job by its id, the first page of each state,
 * and the depth. Nearly all jobs have completed; some are in each of the other states.
 */
import type { SqlClient } from "@effect/sql"
import { Database, type Errors, JobAdmin, JobRow, JobState, Queues } from "awa"
import { Console, Effect } from "effect"
import type { Benchmark } from "../Benchmark.js"
import * as Report from "../Report.js"
import { freshDatabase, script, type Server } from "../Server.js"
import { makeRandom, median, monotonicMillis, percentile } from "../Statistics.js"
import { payload, type System } from "../System.js"
import { inRounds } from "./inRounds.js"

const queue = "bench"

/** Jobs in each state but `completed` and `running`, and dead letters. */
const others = 2000

const running = 200

const claimSize = 500

/** Slots of the log that the history fills, and the jobs in each of them, whole statements. */
const slotsOf = (jobs: number) => {
  const perSlot = Math.max(1, Math.ceil(jobs / 12 / 10_000)) * 10_000
  return { slots: Math.ceil(jobs / perSlot), perSlot }
}

/**
 * Enqueues, claims and ends jobs with the functions that producers and workers call. `p_act`: how they end; null leaves
 * them running.
 */
const filling = `create procedure pg_temp.work(p_jobs integer, p_act text, p_dlq jsonb)
language plpgsql as $$
declare
  v_owner constant uuid := '00000000-0000-4000-8000-000000000001';
  v_left integer := p_jobs;
  v_attempts jsonb;
begin
  while v_left > 0 loop
    perform awa.enqueue_alike(
      'bench', (select string_agg(p.payload::text, chr(30)) from (select p.payload from payloads p limit v_left) p),
      '${queue}', 2::smallint, 25::smallint, awa.lane_id('${queue}', 2, 0), awa.lock_key('${queue}'), null
    );
    commit;
    v_left := v_left - 10000;
    loop
      exit when not exists (select from awa.claim('${queue}', ${claimSize}, v_owner, 1, null, true, null));
      commit;
      continue when p_act is null;
      select case p_act
        when 'complete' then jsonb_build_array(
          jsonb_build_object('slot', b.slot, 'batch', b.batch_id, 'nonce', b.nonce, 'members', jsonb_agg(m.member))
        )
        else jsonb_agg(jsonb_build_object(
          'slot', b.slot, 'batch', b.batch_id, 'nonce', b.nonce, 'member', m.member, 'act', p_act,
          'error', 'does not work', 'delay_ms', 86400000
        ))
      end
      into v_attempts
      from (select * from awa.claim_batches order by batch_id desc limit 1) b
      cross join lateral generate_series(1, b.n) m(member)
      group by b.slot, b.batch_id, b.nonce;
      if p_act = 'complete' then
        perform awa.complete(v_owner, v_attempts, '[]', null);
      else
        perform awa.complete(v_owner, '[]', v_attempts, null, p_dlq);
      end if;
      commit;
    end loop;
    commit;
  end loop;
end
$$`

/** What the leader does when a slot is full. */
const turn = `do $$
declare
  v_slot smallint;
begin
  perform awa.rotate(0, null);
  commit;
  perform awa.publish_slot();
  commit;
  for v_slot in select s.slot from awa.sealed_slots() s loop
    perform awa.count_slot(v_slot);
    commit;
    perform awa.drain_slot(v_slot, 86400000, 100, null);
    commit;
    perform awa.free_slot(v_slot, 86400000, 0, null);
    commit;
  end loop;
end
$$`

const work = (jobs: number, act: string | null, dlq = false) =>
  `call pg_temp.work(${jobs}, ${act === null ? "null" : `'${act}'`}, '{"enabled": ${dlq}}')`

/** Statements that leave about `jobs` jobs behind. */
const history = (jobs: number): ReadonlyArray<string> => {
  const { perSlot, slots } = slotsOf(jobs)
  const full = [work(perSlot, "complete"), turn]
  return [
    `create temp table payloads as
      select jsonb_set('${
      JSON.stringify(payload(0, 0))
    }', '{id}', to_jsonb(i)) as payload from generate_series(1, 10000) i`,
    filling,
    ...Array.from({ length: slots - 1 }, () => full).flat(),
    work(others, "fail"),
    work(others, "fail", true),
    work(others, "cancel"),
    work(others, "retry"),
    work(jobs - (slots - 1) * perSlot, "complete"),
    // All of it is settled, as the rescue of stale attempts has found out.
    "select awa.rescue('stale_heartbeat', 60000, (select last_value from awa.batch_seq), 100, null)",
    work(running, null),
    `select awa.enqueue(jsonb_agg(jsonb_build_object(
      'kind', 'bench', 'queue', '${queue}', 'args', p.payload, 'delay_ms', d.ms)))
    from (select payload from payloads limit ${others}) p cross join (values (0), (86400000)) d(ms)`
  ]
}

type Read = Effect.Effect<unknown, Errors.DatabaseFailure | Queues.QueueError, SqlClient.SqlClient>

/** Everything an operator looks at; `random` picks the jobs that are looked up. */
const reads = (jobs: number, random: () => number): Readonly<Record<string, Read>> => ({
  "job by id": Effect.suspend(() => JobAdmin.get(JobRow.JobId.make(BigInt(1 + Math.floor(random() * jobs))))),
  "first page": JobAdmin.list({ queue }),
  ...Object.fromEntries(
    JobState.JobState.literals.filter((state) => state !== "waiting_external").map((state) => [
      `first page of ${state}`,
      JobAdmin.list({ queue, state })
    ])
  ),
  depth: Queues.depth(queue)
})

const times = 200

const millisOf = (read: Read) =>
  Effect.gen(function*() {
    const millis: Array<number> = []
    // The first ones fill the session's caches.
    for (let i = -10; i < times; i++) {
      const started = monotonicMillis()
      yield* read
      if (i >= 0) millis.push(monotonicMillis() - started)
    }
    return { median: median(millis), p99: percentile(millis, 0.99) }
  })

interface Sample {
  readonly median: number
  readonly p99: number
}

const measure = (server: Server, system: System, jobs: number) =>
  Effect.gen(function*() {
    const url = yield* freshDatabase(server)
    yield* system.install({ url, settings: {} })
    const started = monotonicMillis()
    yield* script(url, history(jobs))
    yield* Console.error(`filled in ${Math.round((monotonicMillis() - started) / 1000)} s`)
    return yield* Effect.forEach(
      Object.entries(reads(jobs, makeRandom(1))),
      ([name, read]) => Effect.map(millisOf(read), (sample): readonly [string, Sample] => [name, sample])
    ).pipe(Effect.provide(Database.layer({ url, maxConnections: 1 })), Effect.orDie)
  }).pipe(Effect.scoped)

const figuresOf = (rounds: ReadonlyArray<ReadonlyArray<readonly [string, Sample]>>): Report.Figures =>
  Object.fromEntries(rounds[0]!.map(([name], i) => {
    const figure = (read: (sample: Sample) => number) => Report.figure(rounds.map((round) => read(round[i]![1])), "ms")
    return [name, { median: figure(({ median }) => median), p99: figure(({ p99 }) => p99) }]
  }))

export const reading: Benchmark = {
  summary: "one job, pages and depth of a queue that keeps 2,000,000 jobs",
  systems: () => ["awa"],
  run: ({ options, server, systems }) => {
    const jobs = options.jobs ?? 2_000_000
    return inRounds({
      benchmark:
        `reading: ${times} times each, of ${jobs} completed jobs, ${running} running, ${others} in each other state`,
      contenders: systems.map((system) => ({ system })),
      rounds: options.rounds ?? 1,
      server,
      configuration: (system) => Report.configurationOf(system, { claimSize, ...slotsOf(jobs) }),
      measure: ({ system }) => measure(server, system, jobs),
      show: (samples) => samples.map(([name, { median }]) => `${name} ${Report.round(median)} ms`).join(", "),
      figures: figuresOf
    })
  }
}
