import { Errors, Job, PartitionedQueue, Queues } from "@awa/model"
import { SqlClient } from "@effect/sql"
import { assert, layer } from "@effect/vitest"
import { Effect, Either, FastCheck as fc, Schema } from "effect"
import { describe, it } from "vitest"
import * as orderingKey from "../src/internal/orderingKey.js"
import { MigratedLive } from "./support/database.js"

/** Key, hash, its remainders by 4 and 8, the hash for partitions, its remainder by 4. */
const vectors = [
  ["", 14695981039346656037n, 1n, 5n, 12892176949946654770n, 2n],
  ["a", 12638153115695167552n, 0n, 0n, 6661374579423403285n, 1n],
  ["customer-42", 695220319317454988n, 0n, 4n, 2415934538594125323n, 3n],
  ["customer-1", 3941431770969791803n, 3n, 3n, 1220848219415206867n, 3n]
] as const

describe("hashes", () => {
  it("are those of the specification", () => {
    for (const [key, hash, by4, by8, partition, partitionBy4] of vectors) {
      const found = orderingKey.hash(key)
      assert.deepStrictEqual([found, found % 4n, found % 8n], [hash, by4, by8], key)
      assert.deepStrictEqual([orderingKey.partitionHash(key), orderingKey.partitionHash(key) % 4n], [
        partition,
        partitionBy4
      ])
    }
  })

  it("are numbers of 64 bits", () =>
    fc.assert(fc.property(fc.fullUnicodeString(), (key) => {
      for (const hash of [orderingKey.hash(key), orderingKey.partitionHash(key)]) {
        assert.strictEqual(hash, BigInt.asUintN(64, hash))
      }
    })))

  it("spread keys over partitions and, within one, over shards", () => {
    const counts = new Map<string, number>()
    for (let n = 0; n < 8000; n++) {
      const place = `${orderingKey.partitionHash(`customer-${n}`) % 4n}/${orderingKey.hash(`customer-${n}`) % 4n}`
      counts.set(place, (counts.get(place) ?? 0) + 1)
    }
    assert.strictEqual(counts.size, 16)
    for (const [place, count] of counts) assert.isTrue(count > 400 && count < 600, `${count} of 8000 at ${place}`)
  })
})

const names = fc.stringMatching(/^[a-z]{1,10}$/)

describe("a partitioned queue", () => {
  it("has physical queues, the first with its own name", () => {
    assert.deepStrictEqual(PartitionedQueue.unsafeMake("email", 1).queues, ["email"])
    assert.deepStrictEqual(PartitionedQueue.unsafeMake("email", 3).queues, ["email", "email__p1", "email__p2"])
    assert.deepStrictEqual(Either.getOrThrow(PartitionedQueue.fromQueues(["eu", "us"])).queues, ["eu", "us"])
    assert.lengthOf(PartitionedQueue.unsafeMake("email", 32_767).queues, 32_767)
  })

  it("sends a key where the specification says", () => {
    const queue = PartitionedQueue.unsafeMake("q", 4)
    assert.deepStrictEqual(
      vectors.map(([key]) => PartitionedQueue.queueForKey(queue, key)),
      ["q__p2", "q__p1", "q__p3", "q__p3"]
    )
  })

  it("sends a key always to the same of its queues, and uses all of them", () =>
    fc.assert(fc.property(names, fc.integer({ min: 1, max: 12 }), fc.fullUnicodeString(), (name, partitions, key) => {
      const queue = PartitionedQueue.unsafeMake(name, partitions)
      const chosen = PartitionedQueue.queueForKey(queue, key)
      assert.include(queue.queues, chosen)
      assert.strictEqual(PartitionedQueue.queueForKey(PartitionedQueue.unsafeMake(name, partitions), key), chosen)
      const used = new Set(Array.from({ length: 400 }, (_, n) => PartitionedQueue.queueForKey(queue, `${key}${n}`)))
      assert.strictEqual(used.size, partitions)
    })))

  it("deals by index in turn", () =>
    fc.assert(fc.property(fc.integer({ min: 1, max: 12 }), fc.maxSafeInteger(), (partitions, index) => {
      const queue = PartitionedQueue.unsafeMake("q", partitions)
      const inTurn = Array.from(
        { length: partitions },
        (_, n) => PartitionedQueue.queueForIndex(queue, BigInt(index) + BigInt(n))
      )
      assert.sameMembers(inTurn, [...queue.queues])
      assert.strictEqual(inTurn[0], PartitionedQueue.queueForIndex(queue, index))
    })))

  it("routes over the options it is given", () => {
    const queue = PartitionedQueue.unsafeMake("q", 4)
    const options = { priority: 1, queue: "other" } as const
    assert.deepStrictEqual(PartitionedQueue.routeByKey(queue, "a", options), {
      priority: 1,
      queue: "q__p1",
      orderingKey: "a"
    })
    assert.deepStrictEqual(PartitionedQueue.routeByIndex(queue, 6, options), { priority: 1, queue: "q__p2" })
  })

  const refused: ReadonlyArray<
    readonly [
      what: string,
      made: Either.Either<PartitionedQueue.PartitionedQueue, Errors.InvalidPartitionedQueue>,
      field: string
    ]
  > = [
    ["an empty name", PartitionedQueue.make("", 2), "name"],
    ["a long name", PartitionedQueue.make("x".repeat(201), 1), "name"],
    ["a name that is too long for its suffix", PartitionedQueue.make("x".repeat(197), 2), "name"],
    ["a name that is too long for its longest suffix", PartitionedQueue.make("x".repeat(196), 11), "name"],
    ["a name PostgreSQL cannot store", PartitionedQueue.make("a\0", 2), "name"],
    ...[0, -1, 1.5, NaN, 32_768].map((partitions) => (
      [`${partitions} partitions`, PartitionedQueue.make("email", partitions), "partitions"] as const
    )),
    ["no queues", PartitionedQueue.fromQueues([]), "queues"],
    ["an empty queue name", PartitionedQueue.fromQueues(["a", ""]), "queues[1]"],
    ["a long queue name", PartitionedQueue.fromQueues(["a", "x".repeat(201)]), "queues[1]"],
    ["a queue twice", PartitionedQueue.fromQueues(["a", "b", "a"]), "queues[2]"]
  ]
  for (const [what, made, field] of refused) {
    it(`refuses ${what}`, () => {
      const error = Either.getOrThrow(Either.flip(made))
      assert.instanceOf(error, Errors.InvalidPartitionedQueue)
      assert.strictEqual(error.field, field)
      assert.include(error.message, field)
    })
  }

  it("fits the longest names", () => {
    assert.isTrue(Either.isRight(PartitionedQueue.make("x".repeat(196), 10)))
    assert.isTrue(Either.isRight(PartitionedQueue.make("\u{1f600}".repeat(196), 10)), "characters, not code units")
  })

  it("throws where it is a constant", () =>
    assert.throws(() => PartitionedQueue.unsafeMake("", 2), Errors.InvalidPartitionedQueue))
})

const Work = Job.make("work", { payload: Schema.Int })

layer(MigratedLive(), { excludeTestServices: true })("shards", (it) => {
  const shardsOf = (queue: string) =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      const rows = yield* sql<{ shard: number; n: number }>`
        select l.shard, count(*)::int as n from awa.ready_entries r
        join (select distinct lane_id, queue, shard from awa.lanes) l on l.lane_id = r.lane_id
        where l.queue = ${queue} group by l.shard order by l.shard`
      return rows.map(({ n, shard }) => [shard, n])
    })

  it.effect("the database hashes as the specification says", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      for (const [key, hash] of vectors) {
        const [row] = yield* sql<{ hash: string }>`select awa.ordering_hash(${key})::text as hash`
        assert.strictEqual(row?.hash, String(hash), key)
      }
      const keys = fc.sample(fc.fullUnicodeString({ maxLength: 200 }), { numRuns: 200, seed: 5 })
        .map((key) => key.replaceAll("\0", ""))
      const rows = yield* sql<{ hash: string }>`
        select awa.ordering_hash(k)::text as hash
        from jsonb_array_elements_text(${JSON.stringify(keys)}::jsonb) with ordinality as e(k, n) order by n`
      assert.deepStrictEqual(rows.map(({ hash }) => hash), keys.map((key) => String(orderingKey.hash(key))))
    }))

  it.effect("a queue has one, until it is said to have several", () =>
    Effect.gen(function*() {
      yield* Work.enqueueMany([1, 2, 3, 4], { queue: "a" })
      yield* Work.enqueue(5, { queue: "a" })
      assert.deepStrictEqual(yield* shardsOf("a"), [[0, 5]])
      yield* Queues.setShards("a", 3)
      yield* Queues.setShards("a", 4)
      yield* Work.enqueueMany([1, 2, 3, 4], { queue: "a" })
      assert.deepStrictEqual(yield* shardsOf("a"), [[0, 6], [1, 1], [2, 1], [3, 1]])
      yield* Work.enqueueMany([1, 2, 3, 4], { queue: "b" })
      assert.deepStrictEqual(yield* shardsOf("b"), [[0, 4]], "another queue")
    }))

  it.effect("jobs without a key go round, however they are enqueued", () =>
    Effect.gen(function*() {
      yield* Queues.setShards("round", 4)
      yield* Effect.forEach([1, 2, 3, 4, 5, 6, 7, 8], (n) => Work.enqueue(n, { queue: "round" }))
      assert.deepStrictEqual(yield* shardsOf("round"), [[0, 2], [1, 2], [2, 2], [3, 2]], "one by one")
      yield* Work.enqueueMany(Array.from({ length: 100 }, (_, n) => n), { queue: "round" })
      assert.deepStrictEqual(yield* shardsOf("round"), [[0, 27], [1, 27], [2, 27], [3, 27]], "alike")
      yield* Work.enqueueMany([1, 2, 3, 4], (n) => ({ queue: "round", tags: [`${n}`] }))
      assert.deepStrictEqual(yield* shardsOf("round"), [[0, 28], [1, 28], [2, 28], [3, 28]], "all different")
    }))

  it.effect("the ordering key decides on the shard", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      yield* Queues.setShards("keyed", 8)
      for (const [key, , , by8] of vectors.slice(1)) {
        const queue = "keyed"
        const rows = [
          yield* Work.enqueue(1, { queue, orderingKey: key }),
          yield* Work.enqueue(2, { queue, orderingKey: key, priority: 1, delay: "1 minute" })
        ]
        yield* Work.enqueueMany([3, 4], { queue, orderingKey: key })
        assert.deepStrictEqual(rows.map((row) => row.orderingKey), [key, key])
        const found = yield* sql<{ shard: number; n: number }>`
          select shard, count(*)::int as n from (
            select l.shard, r.envelope from awa.ready_entries r
            join (select distinct lane_id, shard from awa.lanes) l on l.lane_id = r.lane_id
            union all select shard, envelope from awa.deferred_jobs
          ) j
          where envelope ->> 'ordering_key' = ${key} group by shard`
        assert.deepStrictEqual(found.map(({ n, shard }) => [shard, n]), [[Number(by8), 4]])
      }
    }))

  it.effect("a wrong number, queue or key is refused", () =>
    Effect.gen(function*() {
      const sql = yield* SqlClient.SqlClient
      for (const shards of [0, -1, 1.5, NaN, 65]) {
        const error = yield* Effect.flip(Queues.setShards("a", shards))
        assert.deepInclude(error, { _tag: "InvalidSetting", setting: "shards" })
      }
      assert.deepInclude(yield* Effect.flip(Queues.setShards("", 2)), { _tag: "InvalidSetting", setting: "queue" })
      for (const call of ["'a', 0", "'a', 65", "'a', null", "'', 2", "null, 2", "repeat('x', 201), 2"]) {
        const error = yield* Effect.flip(sql.unsafe(`select awa.set_shards(${call})`))
        assert.match(String(error.cause), /must (be 1 to 64|have 1 to 200 characters)/)
      }
      for (const key of ["", "x".repeat(201), "a\0b"]) {
        const error = yield* Effect.flip(Work.enqueue(1, { orderingKey: key }))
        assert.deepInclude(error, { _tag: "InvalidJob", field: "orderingKey" })
      }
      for (const key of ["", "x".repeat(201)]) {
        const document = JSON.stringify([{ kind: "k", args: 1 }, { kind: "k", args: 1, ordering_key: key }])
        const error = yield* Effect.flip(sql`select awa.enqueue(${document}::jsonb)`)
        assert.match(String(error.cause), /job 1: ordering_key: must have 1 to 200 characters/)
      }
    }))
})
