/**
 * The default storage engine: an append-mostly log in which nothing on the hot path is updated or deleted. Its SQL is in
 * `migrations/0010` and up, its argument in docs/storage.md.
 *
 * @since 0.1.0
 */
import * as SqlClient from "@effect/sql/SqlClient"
import type * as SqlError from "@effect/sql/SqlError"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberRef from "effect/FiberRef"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Database from "./Database.js"
import { ForeignDatabase, StorageInconsistent } from "./Errors.js"
import { statementsOn } from "./internal/pool.js"
import * as queueOverrides from "./internal/queueOverrides.js"
import type { Layout } from "./internal/storage/layout.js"
import * as codec from "./internal/storage/queueCodec.js"
import * as statements from "./internal/storage/queueStatements.js"
import * as Reclaim from "./internal/storage/reclaim.js"
import type { ClaimRequest, DeadLetterPolicy, Rescued, Service, StorageError } from "./StorageEngine.js"
import { StorageEngine } from "./StorageEngine.js"
import { type Schemas, StorageSchemas } from "./StorageSchemas.js"
import { TimeSource } from "./TimeSource.js"

/**
 * How queue storage is laid out. Chosen when it is installed (`Migrations.run`), and verified by whoever says what he
 * expects (`layerOf`, `Awa.queueStorage`).
 *
 * @since 0.1.0
 * @category models
 */
export interface QueueStorageConfig {
  /** Slots of the log, 4 to 64. Default: 16. */
  readonly queueSlotCount?: number | undefined
  /** Slots of the leases, 2 to 64. Default: 8. */
  readonly leaseSlotCount?: number | undefined
  /**
   * Whether the receipt of a claim, one row however many jobs it took, stands for its attempts until they show a first sign
   * of life. Without, a claim writes a lease for every attempt at once, which the attempt's end deletes: several times the
   * work, for who wants to see each attempt as a row. Default: true.
   */
  readonly leaseClaimReceipts?: boolean | undefined
}

interface StatusRow {
  readonly system_identifier: string
  readonly epoch_identifier: string
  readonly cached_sequence: string | null
}

/**
 * The query and the judgement that a new connection must pass before jobs are claimed over it: stored transaction ids
 * mean something only in the cluster that gave them out.
 *
 * @since 0.1.0
 * @category checks
 */
export const identityCheck = (schemas: Schemas): {
  readonly text: string
  readonly problem: (row: unknown) => ForeignDatabase | StorageInconsistent | undefined
} => ({
  text: statements.make(schemas).status,
  problem: (row) => {
    const { cached_sequence, epoch_identifier, system_identifier } = row as StatusRow
    if (system_identifier !== epoch_identifier) {
      return new ForeignDatabase({ schema: schemas.engine, expected: epoch_identifier, found: system_identifier })
    }
    if (cached_sequence !== null) {
      return new StorageInconsistent({
        schema: schemas.engine,
        detail: `sequence ${cached_sequence} caches values; set it back with ALTER SEQUENCE ${cached_sequence} CACHE 1`
      })
    }
    return undefined
  }
})

/** The loops of a worker are untraced already; to say so once more costs as much as the statement. */
const untraced = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.flatMap(
    FiberRef.get(FiberRef.currentTracerEnabled),
    (enabled) => enabled ? Effect.withTracerEnabled(self, false) : self
  )

/** States raised by our own functions: see migrations/0010 to 0014. */
const tooManyPending = "AW001"

const isOfTooMany = (error: StorageError): boolean =>
  error._tag === "DatabaseError" && error.sqlState === tooManyPending

const inconsistent = new Set(["AW003", "AW005"])

/** Down to one job, from the largest claim. */
const claimTries = 6

/** How often a claim looks for another shard. */
const shardTries = 10

/**
 * The engine over the `SqlClient` in context, after the identity check. Give it a client of its own: claims must be the
 * first statement of their transaction, on connections that user code never held.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make: Effect.Effect<Service, StorageError, SqlClient.SqlClient> = Effect.gen(function*() {
  const client = yield* SqlClient.SqlClient
  const sql = client.withoutTransforms()
  const schemas = yield* StorageSchemas
  const text = statements.make(schemas)

  const failure = (operation: string) => {
    const fail = Database.fromSqlError(operation)
    return (error: SqlError.SqlError): Effect.Effect<never, StorageError> =>
      Option.exists(Database.sqlState(error), (state) => inconsistent.has(state))
        ? Effect.fail(new StorageInconsistent({ schema: schemas.engine, detail: Database.describe(error) }))
        : fail(error)
  }

  // Background statements stay out of traces, and leave whatever transaction the calling fiber is in.
  const send = statementsOn(client) ??
    (<Row>(text: string, params: ReadonlyArray<unknown>) =>
      sql.unsafe<Row & object>(text, params as Array<never>).pipe(Database.outsideTransaction, untraced))

  const run = <Row extends object>(operation: string, statement: string) => {
    const failed = failure(operation)
    return (...params: ReadonlyArray<unknown>): Effect.Effect<ReadonlyArray<Row>, StorageError> =>
      Effect.uninterruptible(Effect.catchAll(send<Row>(statement, params), failed))
  }

  const now = Effect.flatten(TimeSource)

  yield* run<StatusRow>("check of the storage", text.status)().pipe(
    Effect.flatMap(([row]): Effect.Effect<void, StorageError> => {
      const problem = row === undefined ? undefined : identityCheck(schemas).problem(row)
      return problem === undefined ? Effect.void : Effect.fail(problem)
    })
  )

  yield* run<{ sequence: string | null }>("check of the sequences", text.sequenceBehind)().pipe(
    Effect.flatMap(([row]) => {
      const sequence = row?.sequence ?? null
      return sequence === null ? Effect.void : Effect.fail(
        new StorageInconsistent({
          schema: schemas.engine,
          detail: `sequence ${sequence} is behind the data it numbers, as after a data-only restore: adopt the data ` +
            "(QueueStorage.adopt)"
        })
      )
    })
  )

  /** Few columns, and no date: who claims one job at a time feels each. */
  interface ClaimRow {
    readonly jobs: string
    readonly claimed_at: number | null
  }
  const claimRows = run<ClaimRow>("claim", text.claim)
  const completeAndClaimRows = run<{
    readonly rejected: string | null
    readonly jobs: string | null
    readonly claimed_at: number | null
  }>("complete and claim", text.completeAndClaim)
  const millis = (duration: Duration.Duration | null | undefined): number | null =>
    duration ? Math.ceil(Duration.toMillis(duration)) : null

  /**
   * Too many ids between snapshot and claim: again with all, for after a burst of subtransactions the failed call's own id
   * has moved the horizon, and then with fewer, for the less a claim reads the fewer ids pass meanwhile.
   */
  const claimUpTo = (
    request: ClaimRequest,
    at: Date | null,
    limit: number,
    tries = claimTries
  ): ReturnType<typeof claimRows> =>
    Effect.catchIf(
      claimRows(
        request.queue,
        limit,
        request.owner,
        request.nonce,
        millis(request.deadline),
        request.durability === "async",
        at,
        millis(request.priorityAging)
      ),
      (error) => tries > 0 && isOfTooMany(error),
      () => claimUpTo(request, at, tries === claimTries ? limit : Math.max(1, limit >> 3), tries - 1)
    )

  const claim = (request: ClaimRequest, tries = shardTries): ReturnType<Service["claim"]> =>
    Effect.flatMap(now, (at) =>
      Effect.flatMap(
        claimUpTo(request, at, request.limit),
        ([row]) => row === undefined ? Effect.succeed([]) : claimedBy(request, row, tries)
      ))

  const claimedBy = (request: ClaimRequest, row: ClaimRow, tries: number): ReturnType<Service["claim"]> => {
    // Of a queue with several shards: another claim was quicker.
    if (row.jobs === "[]") return tries > 0 ? claim(request, tries - 1) : Effect.succeed([])
    const { nonce, queue } = request
    const jobs = codec.claimedJobs(row.jobs, { queue, nonce, claimedAt: new Date(Number(row.claimed_at)) })
    // All of them were to be cancelled; there may be others behind.
    return jobs.length === 0 ? claim(request) : Effect.succeed(jobs)
  }

  const completeRows = run<{ rejected: string | null }>("complete", text.complete)
  const heartbeatRows = run<{ lost: string | null }>("heartbeat", text.heartbeat)
  const ownedRows = run<{ owned: string }>("look for owned attempts", text.ownedAttempts)
  const probeRows = run<{ queue: string }>("probe", text.probe)
  const cancelRequestedRows = run<{ settled: number }>("cancel as requested", text.cancelRequested)
  const promoteRows = run<{ promoted: number }>("promote", text.promote)
  const sweepRows = run<{ released: number; last: string | null }>("let go of unique keys", text.sweepUnique)
  const overrideRows = run<{ queue: string; overrides: string }>("look for overrides", text.overrides)
  const cleanupRows = run<{ gone: number }>("clean up dead letters", text.dlqCleanup)
  const rescueRows = run<{ rescued: string; complete: boolean; settled: string; xid: string; xmin: string }>(
    "rescue",
    text.rescue
  )

  // The key up to which the last sweep came.
  let swept: string | null = null

  // Batches below an owner's frontier are closed; so `ownedAttempts` need not read the whole history each time.
  const frontierOf = new Map<string, string>()

  // Batches below the frontier are closed or have leases. What a pass has settled becomes the frontier when every
  // transaction that could still commit a lower batch has ended, as far as a pass after that settles it, too.
  let frontier = 0n
  let candidate: { readonly settled: bigint; readonly xid: bigint } | undefined
  const settle = (pass: { readonly settled: string; readonly xid: string; readonly xmin: string }): void => {
    const settled = BigInt(pass.settled)
    if (candidate !== undefined && BigInt(pass.xmin) > candidate.xid) {
      frontier = settled < candidate.settled ? settled : candidate.settled
      candidate = undefined
    }
    if (candidate === undefined && settled > frontier) candidate = { settled, xid: BigInt(pass.xid) }
  }

  const rescue = (
    reason: Rescued["reason"],
    age: Duration.Duration,
    limit: number,
    deadLetters: DeadLetterPolicy | undefined
  ) =>
    Effect.flatMap(
      now,
      (at) =>
        rescueRows(
          reason,
          Math.ceil(Duration.toMillis(age)),
          String(frontier),
          limit,
          at,
          codec.deadLetterPolicy(deadLetters)
        )
    ).pipe(
      Effect.map(([row]) => {
        if (row === undefined) return []
        if (reason === "stale_heartbeat") settle(row)
        return codec.rescued(row.rescued, reason)
      })
    )

  const counting = (operation: string, statement: string) => {
    const rows = run<{ count: number }>(operation, statement)
    return (...params: ReadonlyArray<unknown>) =>
      Effect.flatMap(now, (at) => rows(...params, at)).pipe(Effect.map(([row]) => row?.count ?? 0))
  }
  const rotating = (operation: string, statement: string) => {
    const rows = run<{ rotated: boolean }>(operation, statement)
    return (intervalMillis: number) =>
      Effect.flatMap(now, (at) => rows(intervalMillis, at)).pipe(Effect.map(([row]) => row?.rotated === true))
  }
  const countRows = run<{ counted: boolean }>("count a slot", text.countSlot)
  const drainRows = run<{ lanes: number; drained: boolean }>("drain a slot", text.drainSlot)
  const freeRows = run<{ answer: "freed" | "undrained" | "open" | "kept" | "history" | "busy" }>(
    "free a slot",
    text.freeSlot
  )
  const slotRows = run<{ slot: number }>("list sealed slots", text.sealedSlots)
  const steps: Reclaim.Steps = {
    rotate: rotating("rotate", text.rotate),
    publishSlot: run("publish the open slot", text.publishSlot)(),
    rotateLeases: rotating("rotate leases", text.rotateLeases),
    sealedSlots: Effect.map(Effect.suspend(() => slotRows()), (rows) => rows.map(({ slot }) => slot)),
    countSlot: (slot) => Effect.map(countRows(slot), ([row]) => row?.counted === true),
    evict: counting("evict", text.evict),
    drainSlot: (...params) =>
      Effect.flatMap(now, (at) => drainRows(...params, at)).pipe(
        Effect.map(([row]) => row ?? { lanes: 0, drained: false })
      ),
    keepHistory: counting("keep history", text.keepHistory),
    freeSlot: (...params) =>
      Effect.flatMap(now, (at) => freeRows(...params, at)).pipe(Effect.map(([row]) => row?.answer ?? "undrained"))
  }
  const expire = counting("expire", text.expire)
  const complete: Service["complete"] = (owner, completions, deadLetters) =>
    // What cannot be encoded is a defect of this effect, like whatever else goes wrong with it.
    Effect.suspend(() => {
      const firsts = codec.firsts(completions)
      const { completed, ended } = codec.completions(firsts?.values() ?? completions)
      return Effect.flatMap(
        now,
        (at) => completeRows(owner, completed, ended, at, codec.deadLetterPolicy(deadLetters))
      ).pipe(
        Effect.map(([row]) => codec.verdicts(completions, firsts, row?.rejected ?? null))
      )
    })

  const { queueSlotCount: slots } = yield* layout

  return {
    name: "queue_storage",
    claim: (request) => claim(request),
    complete,
    completeAndClaim: (completions, request, deadLetters) =>
      Effect.suspend(() => {
        const firsts = codec.firsts(completions)
        const { completed, ended } = codec.completions(firsts?.values() ?? completions)
        const { deadline, durability, limit, nonce, owner, priorityAging, queue } = request
        return Effect.flatMap(now, (at) =>
          completeAndClaimRows(
            owner,
            completed,
            ended,
            codec.deadLetterPolicy(deadLetters),
            queue,
            limit,
            nonce,
            millis(deadline),
            durability === "async",
            at,
            millis(priorityAging)
          )).pipe(Effect.flatMap(([row]) => {
            const { claimed_at, jobs, rejected } = row!
            const verdicts = codec.verdicts(completions, firsts, rejected)
            return jobs === null
              ? Effect.succeed({ verdicts, jobs: [] })
              : Effect.map(claimedBy(request, { jobs, claimed_at }, shardTries), (jobs) => ({ verdicts, jobs }))
          }))
      }).pipe(
        // The ends are stored; this asks how they were taken. Claims know how to go on.
        Effect.catchIf(isOfTooMany, () =>
          Effect.flatMap(complete(request.owner, completions, deadLetters), (verdicts) =>
            Effect.map(claim(request), (jobs) => ({ verdicts, jobs }))))
      ),
    heartbeat: (owner, beats) =>
      Effect.flatMap(now, (at) => heartbeatRows(owner, codec.beats(beats), at)).pipe(
        Effect.map(([row]) => codec.held(beats, row?.lost ?? null))
      ),
    openAttempts: (owner, olderThan) =>
      Effect.flatMap(
        now,
        (at) => ownedRows(owner, Math.ceil(Duration.toMillis(olderThan)), frontierOf.get(owner) ?? "0", at)
      ).pipe(
        Effect.map(([row]) => {
          if (row === undefined) return []
          const owned = codec.owned(row.owned)
          frontierOf.set(owner, owned.frontier)
          return owned.tokens
        })
      ),
    probe: (queues) => Effect.map(probeRows(queues), (rows) => rows.map((row) => row.queue)),
    cancelRequested: (limit) =>
      Effect.flatMap(now, (at) => cancelRequestedRows(limit, at)).pipe(
        Effect.map(([row]) => row?.settled ?? 0)
      ),
    promote: (limit) =>
      Effect.flatMap(now, (at) => promoteRows(limit, at)).pipe(Effect.map(([row]) => row?.promoted ?? 0)),
    rescueStale: ({ deadLetters, limit, staleness }) => rescue("stale_heartbeat", staleness, limit, deadLetters),
    rescueExpired: ({ deadLetters, limit }) => rescue("deadline_exceeded", Duration.zero, limit, deadLetters),
    overrides: (queues) =>
      Effect.map(overrideRows(queues), (rows) =>
        rows.map(({ overrides: json, queue }) => {
          const { overrides, refused } = queueOverrides.fromJson(json)
          return { queue, ...overrides, refused }
        })),
    cleanupDeadLetters: ({ limit, retention }) =>
      Effect.flatMap(now, (at) => cleanupRows(Math.ceil(Duration.toMillis(retention)), limit, at)).pipe(
        Effect.map(([row]) => row?.gone ?? 0)
      ),
    reclaim: (options) => Reclaim.reclaim(steps, { ...options, slots }),
    expire: ({ limit, retention: { cancelled, completed, failed } }) =>
      expire(...[completed, failed, cancelled].map((kept) => Math.ceil(Duration.toMillis(kept))), limit),
    sweepKeys: (limit) =>
      Effect.map(Effect.suspend(() => sweepRows(swept, limit)), ([row]) => {
        swept = row?.last ?? null
        return row?.released ?? 0
      })
  }
})

/**
 * What `adopt` did.
 *
 * @since 0.1.0
 * @category models
 */
export interface Adopted {
  /** The number of the epoch that has begun: one more than before. */
  readonly epoch: number
  /** How many jobs waited where claims would not have found them. */
  readonly requeued: number
}

/**
 * Makes jobs that were restored or replicated from another cluster those of this one: sequences are put in front of the
 * data, jobs that the cursors would pass over are put where claims find them. Until then the engine refuses such jobs with
 * `ForeignDatabase`, or with `StorageInconsistent` where only the sequences stayed behind.
 *
 * Stop workers and producers before, and end prepared transactions: it waits for everybody who writes. Only the owner of
 * the schema may call it (`PermissionDenied`). It reads the whole log once. To call it without need does no harm.
 *
 * @since 0.1.0
 * @category restoring
 */
export const adopt: Effect.Effect<Adopted, StorageError, SqlClient.SqlClient> = Effect.gen(function*() {
  const sql = (yield* SqlClient.SqlClient).withoutTransforms()
  const { engine } = yield* StorageSchemas
  const failed = Database.fromSqlError("adopt")
  const [row] = yield* Database.transaction(
    Effect.catchAll(sql.unsafe<Adopted>(`select epoch, requeued::int from "${engine}".adopt()`), failed),
    { isolation: "read committed" }
  ).pipe(
    Effect.retry({ times: 1, while: isOfTooMany }),
    Database.outsideTransaction
  )
  yield* sql.unsafe(`select "${engine}".publish_slot()`).pipe(Effect.catchAll(failed), Database.outsideTransaction)
  return row ?? { epoch: 0, requeued: 0 }
})

/**
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<StorageEngine, StorageError, SqlClient.SqlClient> = Layer.effect(StorageEngine, make)

/**
 * The engine, if the storage is laid out as expected; whatever is left out is taken as it is.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerOf = (
  expected: QueueStorageConfig
): Layer.Layer<StorageEngine, StorageError, SqlClient.SqlClient> =>
  Layer.effect(StorageEngine, Effect.zipRight(verify(expected), make))

const layout: Effect.Effect<Layout, StorageError, SqlClient.SqlClient> = Effect.gen(function*() {
  const sql = (yield* SqlClient.SqlClient).withoutTransforms()
  const text = statements.make(yield* StorageSchemas)
  const [row] = yield* sql.unsafe<{ queue_slots: number; lease_slots: number; receipts: number }>(text.config).pipe(
    Effect.catchTag("SqlError", Database.fromSqlError("read the layout of the storage"))
  )
  return {
    queueSlotCount: row!.queue_slots,
    leaseSlotCount: row!.lease_slots,
    leaseClaimReceipts: row!.receipts === 1
  }
})

const verify = (expected: QueueStorageConfig): Effect.Effect<void, StorageError, SqlClient.SqlClient> =>
  Effect.gen(function*() {
    const found = yield* layout
    const { engine } = yield* StorageSchemas
    for (const setting of ["queueSlotCount", "leaseSlotCount", "leaseClaimReceipts"] as const) {
      const value = expected[setting]
      if (value !== undefined && value !== found[setting]) {
        return yield* new StorageInconsistent({
          schema: engine,
          detail: `it was installed with a ${setting} of ${found[setting]}, not ${value}; it is chosen by the first ` +
            "Migrations.run and cannot be changed"
        })
      }
    }
  })
