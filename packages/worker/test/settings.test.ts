import { PartitionedQueue } from "@awa/model"
import { Awa, QueueConfig } from "@awa/worker"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Either } from "effect"
import * as Builder from "../src/internal/builder.js"
import * as Settings from "../src/internal/settings.js"
import { Greet } from "./support/harness.js"

const handler = Awa.builder.pipe(Awa.handle(Greet, () => Effect.void))

const queue = handler.pipe(Awa.queue("email"))

const resolve = <E, R, K extends string>(builder: Awa.Builder<E, R, K>) => Settings.resolve(Builder.partsOf(builder))

const refusal = <E, R, K extends string>(builder: Awa.Builder<E, R, K>) =>
  Either.match(resolve(builder), { onLeft: (error) => error, onRight: () => assert.fail("accepted") })

describe("settings", () => {
  it("have defaults", () => {
    const settings = Either.getOrThrow(resolve(queue))
    assert.deepStrictEqual(settings.queues, [{ name: "email", ...QueueConfig.defaults }])
    assert.deepStrictEqual(QueueConfig.defaults.maxWorkers, 50)
    assert.deepStrictEqual(QueueConfig.defaults.claimBatchSize, 512)
    assert.strictEqual(Duration.toMillis(QueueConfig.defaults.pollInterval), 200)
    assert.strictEqual(Duration.toMillis(settings.heartbeat.interval), 30_000)
    assert.strictEqual(Duration.toMillis(settings.heartbeat.staleness), 90_000)
    assert.strictEqual(Duration.toMillis(settings.maintenance.promoteInterval), 250)
    assert.strictEqual(Duration.toMillis(settings.shutdown.timeout), 30_000)
    assert.strictEqual(Duration.toHours(settings.retention.completed), 24)
    assert.strictEqual(Duration.toHours(settings.retention.failed), 72)
    assert.strictEqual(Duration.toHours(settings.retention.cancelled), 72)
    assert.strictEqual(Duration.toMillis(settings.queueStorage.queueRotateInterval), 60_000)
    assert.deepStrictEqual(settings.dlq, {
      enabled: false,
      retention: Duration.days(30),
      cleanupInterval: Duration.minutes(1),
      cleanupBatchSize: 1_000
    })
    assert.strictEqual(Duration.toMillis(settings.overrideRefresh), 10_000)
    assert.deepInclude(settings, { claimDurability: "async", unknownKinds: "retry" })
    assert.deepInclude(settings.connections, { notifications: "listen", poolSize: 4 })
  })

  it("are collected without touching the builder they started from", () => {
    const one = handler.pipe(Awa.queue("a"))
    const two = one.pipe(Awa.queue("b", { maxWorkers: 3 }), Awa.heartbeat({ interval: "1 second" }))
    assert.deepStrictEqual(Either.getOrThrow(resolve(one)).queues.map(({ name }) => name), ["a"])
    assert.deepStrictEqual(Either.getOrThrow(resolve(two)).queues.map(({ name }) => name), ["a", "b"])
    const again = two.pipe(Awa.heartbeat({ staleness: "10 seconds" }))
    assert.strictEqual(Duration.toMillis(Either.getOrThrow(resolve(again)).heartbeat.interval), 1000)
  })

  it("say of each queue whether it has dead letters, where that differs", () => {
    const settings = Either.getOrThrow(resolve(
      handler.pipe(
        Awa.queue("a", { dlq: false }),
        Awa.queue("b"),
        Awa.queue("c", { dlq: true }),
        Awa.dlq({ enabled: true })
      )
    ))
    assert.deepStrictEqual(Settings.deadLetterPolicy(settings), { enabled: true, queues: { a: false, c: true } })
  })

  it("a deadline may be left out", () => {
    for (const deadline of [null, "infinity", Duration.infinity] as const) {
      const settings = Either.getOrThrow(resolve(handler.pipe(Awa.queue("email", { deadline }))))
      assert.isNull(settings.queues[0]!.deadline)
    }
  })

  it("priorities age, unless they are not to", () => {
    assert.strictEqual(Duration.toMillis(QueueConfig.defaults.priorityAging), 60_000)
    for (const priorityAging of [null, "infinity", Duration.infinity] as const) {
      const settings = Either.getOrThrow(resolve(handler.pipe(Awa.queue("email", { priorityAging }))))
      assert.isNull(settings.queues[0]!.priorityAging)
    }
    const settings = Either.getOrThrow(resolve(handler.pipe(Awa.queue("email", { priorityAging: "5 seconds" }))))
    assert.deepStrictEqual(settings.queues[0]!.priorityAging, Duration.seconds(5))
  })

  it("a partitioned queue brings all its physical queues, with the same settings", () => {
    const partitioned = PartitionedQueue.unsafeMake("email", 3)
    const { queues } = Either.getOrThrow(
      resolve(handler.pipe(Awa.partitionedQueue(partitioned, { maxWorkers: 7 })))
    )
    assert.deepStrictEqual(
      queues,
      ["email", "email__p1", "email__p2"].map((name) => ({ ...QueueConfig.defaults, name, maxWorkers: 7 }))
    )
  })

  const refused: ReadonlyArray<
    readonly [
      what: string,
      builder: Awa.Builder<never, never, string>,
      tag: string,
      fields: object
    ]
  > = [
    ["no queue", Awa.builder, "NoQueuesConfigured", {}],
    ["a queue twice", queue.pipe(Awa.queue("email")), "DuplicateQueue", { queue: "email" }],
    ["no handler", Awa.builder.pipe(Awa.queue("email")), "NoHandlersConfigured", { setting: "handle" }],
    ["a kind twice", queue.pipe(Awa.handle(Greet, () => Effect.void)), "DuplicateHandler", { kind: "greet" }],
    ["an empty name", Awa.builder.pipe(Awa.queue("")), "InvalidQueueName", { value: "" }],
    ["a long name", Awa.builder.pipe(Awa.queue("x".repeat(201))), "InvalidQueueName", {}],
    ["a name PostgreSQL cannot store", Awa.builder.pipe(Awa.queue("a\0b")), "InvalidQueueName", { value: "a\0b" }],
    ...[0, -1, 1.5, NaN, Infinity].map((maxWorkers) => (
      [`${maxWorkers} workers`, Awa.builder.pipe(Awa.queue("email", { maxWorkers })), "InvalidMaxWorkers", {
        setting: "queue(\"email\").maxWorkers",
        value: maxWorkers
      }] as const
    )),
    ...[0, -5, 10_001].map((claimBatchSize) => (
      [
        `claims of ${claimBatchSize}`,
        Awa.builder.pipe(Awa.queue("email", { claimBatchSize })),
        "InvalidClaimBatchSize",
        {
          setting: "queue(\"email\").claimBatchSize",
          value: claimBatchSize
        }
      ] as const
    )),
    ...([0, -1, NaN, Infinity, "0 seconds", "infinity", "soon"] as ReadonlyArray<Duration.DurationInput>).map((
      pollInterval
    ) => (
      [
        `a poll interval of ${String(pollInterval)}`,
        Awa.builder.pipe(Awa.queue("email", { pollInterval })),
        "InvalidDuration",
        {
          setting: "queue(\"email\").pollInterval",
          value: pollInterval
        }
      ] as const
    )),
    ["a deadline of nothing", Awa.builder.pipe(Awa.queue("email", { deadline: 0 })), "InvalidDuration", {
      setting: "queue(\"email\").deadline"
    }],
    ...([0, -1, "soon"] as ReadonlyArray<Duration.DurationInput>).map((priorityAging) => (
      [
        `ageing every ${String(priorityAging)}`,
        Awa.builder.pipe(Awa.queue("email", { priorityAging })),
        "InvalidDuration",
        {
          setting: "queue(\"email\").priorityAging",
          value: priorityAging
        }
      ] as const
    )),
    [
      "a queue beside a partitioned one of the same name",
      queue.pipe(Awa.partitionedQueue(PartitionedQueue.unsafeMake("email", 2))),
      "DuplicateQueue",
      { queue: "email" }
    ],
    ["heartbeats without pause", queue.pipe(Awa.heartbeat({ interval: 0 })), "InvalidDuration", {
      setting: "heartbeat.interval",
      value: 0
    }],
    [
      "staleness below the heartbeat",
      queue.pipe(Awa.heartbeat({ interval: "30 seconds", staleness: "20 seconds" })),
      "InvalidDuration",
      { setting: "heartbeat.staleness", value: "20 seconds" }
    ],
    ["promotion without pause", queue.pipe(Awa.maintenance({ promoteInterval: "0 millis" })), "InvalidDuration", {
      setting: "maintenance.promoteInterval"
    }],
    ["an election without pause", queue.pipe(Awa.maintenance({ leaderElectionInterval: -1 })), "InvalidDuration", {
      setting: "maintenance.leaderElectionInterval"
    }],
    ["history without end", queue.pipe(Awa.retention({ failed: Infinity })), "InvalidDuration", {
      setting: "retention.failed"
    }],
    ["rotation without pause", queue.pipe(Awa.queueStorage({ queueRotateInterval: 0 })), "InvalidDuration", {
      setting: "queueStorage.queueRotateInterval"
    }],
    ["half a slot", queue.pipe(Awa.queueStorage({ queueSlotCount: 7.5 })), "InvalidSlotCount", {
      setting: "queueStorage.queueSlotCount",
      value: 7.5
    }],
    [
      "receipts that are neither on nor off",
      queue.pipe(Awa.queueStorage({ leaseClaimReceipts: "on" as never })),
      "InvalidChoice",
      {
        setting: "queueStorage.leaseClaimReceipts",
        value: "on"
      }
    ],
    ["a ring misspelt", queue.pipe(Awa.queueStorage({ queueSlots: 8 } as object)), "UnknownOption", {
      setting: "queueStorage.queueSlots"
    }],
    ["empty batches", queue.pipe(Awa.completion({ batchSize: 0 })), "InvalidCompletionBatchSize", {
      setting: "completion.batchSize",
      value: 0
    }],
    [
      "a shutdown without end",
      queue.pipe(Awa.shutdown({ timeout: "infinity" as Duration.DurationInput })),
      "InvalidDuration",
      { setting: "shutdown.timeout" }
    ],
    ["a pool of nothing", queue.pipe(Awa.connections({ poolSize: 0 })), "InvalidConnectionCount", {
      setting: "connections.poolSize",
      value: 0
    }],
    ["dead letters, maybe", queue.pipe(Awa.dlq({ enabled: "yes" as never })), "InvalidChoice", {
      setting: "dlq.enabled",
      value: "yes"
    }],
    ["dead letters of a queue, maybe", Awa.builder.pipe(Awa.queue("email", { dlq: 1 as never })), "InvalidChoice", {
      setting: "queue(\"email\").dlq",
      value: 1
    }],
    ["dead letters for a thousand years", queue.pipe(Awa.dlq({ retention: "365250 days" })), "InvalidDuration", {
      setting: "dlq.retention"
    }],
    ["a cleanup without pause", queue.pipe(Awa.dlq({ cleanupInterval: 0 })), "InvalidDuration", {
      setting: "dlq.cleanupInterval"
    }],
    ["a cleanup of nothing", queue.pipe(Awa.dlq({ cleanupBatchSize: 0 })), "InvalidDlqBatchSize", {
      setting: "dlq.cleanupBatchSize",
      value: 0
    }],
    ["a misspelt setting of dead letters", queue.pipe(Awa.dlq({ retentoin: 1 } as never)), "UnknownOption", {
      setting: "dlq.retentoin",
      suggestion: "dlq.retention"
    }],
    ["overrides at every moment", queue.pipe(Awa.overrideRefresh("49 millis")), "InvalidDuration", {
      setting: "overrideRefresh",
      value: "49 millis"
    }],
    ["a strange way to notify", queue.pipe(Awa.connections({ notifications: "pigeon" as "poll" })), "InvalidChoice", {
      setting: "connections.notifications",
      value: "pigeon"
    }],
    ["a strange durability", queue.pipe(Awa.claimDurability("maybe" as "sync")), "InvalidChoice", {
      setting: "claimDurability",
      value: "maybe"
    }],
    ["a strange policy", queue.pipe(Awa.unknownKinds("ignore" as "fail")), "InvalidChoice", {
      setting: "unknownKinds",
      value: "ignore"
    }],
    [
      "a misspelt option",
      Awa.builder.pipe(Awa.queue("email", { maxWorker: 3 } as QueueConfig.QueueConfig)),
      "UnknownOption",
      {
        setting: "queue(\"email\").maxWorker",
        value: 3,
        suggestion: "queue(\"email\").maxWorkers"
      }
    ],
    ["an option nobody knows", queue.pipe(Awa.shutdown({ pigeons: 3 } as object)), "UnknownOption", {
      setting: "shutdown.pigeons",
      suggestion: null
    }]
  ]

  for (const [what, builder, tag, fields] of refused) {
    it(`refuse ${what}`, () => {
      const error = refusal(builder)
      assert.strictEqual(error._tag, tag)
      assert.deepInclude(error, fields as never)
      assert.isAbove(error.message.length, 20)
    })
  }

  it("staleness follows a long heartbeat interval, and a short one is doubted", () => {
    const sound = handler.pipe(Awa.queue("default"))
    const slow = Either.getOrThrow(resolve(sound.pipe(Awa.heartbeat({ interval: "2 minutes" }))))
    assert.strictEqual(Duration.toMillis(slow.heartbeat.staleness), 360_000)
    assert.deepStrictEqual(Settings.doubts(slow), [])
    const tight = Either.getOrThrow(resolve(sound.pipe(Awa.heartbeat({ staleness: "60 seconds" }))))
    assert.include(Settings.doubts(tight)[0], "heartbeat.staleness (1m)")
  })

  it("a handler whose queue is not worked is doubted", () => {
    assert.include(Settings.doubts(Either.getOrThrow(resolve(queue)))[0], "queue \"default\"")
  })

  it("the first mistake in the order of writing is told", () => {
    const error = refusal(Awa.builder.pipe(
      Awa.queue("a", { maxWorkers: 0 }),
      Awa.queue("b", { claimBatchSize: 0 }),
      Awa.heartbeat({ interval: 0 })
    ))
    assert.include(error.message, "queue(\"a\").maxWorkers cannot be 0")
  })

  it("a misspelt option is told with what was meant", () => {
    const error = refusal(queue.pipe(Awa.heartbeat({ intervall: "1 second" } as object)))
    assert.strictEqual(
      error.message,
      "There is no setting \"heartbeat.intervall\"; did you mean \"heartbeat.interval\"?"
    )
  })
})
