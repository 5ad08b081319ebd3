import type { QueueStorageConfig } from "@awa/model/QueueStorage"
import type { DeadLetterPolicy } from "@awa/model/StorageEngine"
import * as Duration from "effect/Duration"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import type * as BuildError from "../BuildError.js"
import {
  DuplicateHandler,
  DuplicateQueue,
  InvalidChoice,
  InvalidClaimBatchSize,
  InvalidCompletionBatchSize,
  InvalidConnectionCount,
  InvalidDlqBatchSize,
  InvalidDuration,
  InvalidMaxWorkers,
  InvalidQueueName,
  InvalidSlotCount,
  NoHandlersConfigured,
  NoQueuesConfigured,
  UnknownOption
} from "../BuildError.js"
import * as QueueConfig from "../QueueConfig.js"
import type { Handler } from "./handler.js"
import { nearest } from "./nearest.js"

export interface HeartbeatOptions {
  /** How often long attempts say that they still run. Default 30 seconds. */
  readonly interval?: Duration.DurationInput | undefined
  /**
   * How old the last sign of life of an attempt may be before it is taken away. Default 90 seconds, or three times
   * `interval` if that is longer.
   */
  readonly staleness?: Duration.DurationInput | undefined
  /** How often the leader looks for stale attempts. Default 30 seconds. */
  readonly rescueInterval?: Duration.DurationInput | undefined
}

export interface MaintenanceOptions {
  /** How often the leader moves due scheduled and retryable jobs to their queues. Default 250 milliseconds. */
  readonly promoteInterval?: Duration.DurationInput | undefined
  /** How often the leader looks for attempts past their deadline. Default 30 seconds. */
  readonly deadlineRescueInterval?: Duration.DurationInput | undefined
  /**
   * How often the leader looks whether unique keys are held by jobs that have ended, a thousand keys at a time. They are
   * let go with their jobs; this is for those whose success was forgotten. Default 1 minute.
   */
  readonly keySweepInterval?: Duration.DurationInput | undefined
  /** How often a worker tries to become the leader. Default 10 seconds. */
  readonly leaderElectionInterval?: Duration.DurationInput | undefined
  /** How often the leader makes sure that its connection, and with it the lock, is alive. Default 30 seconds. */
  readonly leaderCheckInterval?: Duration.DurationInput | undefined
  /** How often the leader looks for storage that can be given back. Default 5 seconds. */
  readonly reclaimInterval?: Duration.DurationInput | undefined
  /** How often the leader forgets ended jobs that are not kept any longer. Default 60 seconds. */
  readonly expireInterval?: Duration.DurationInput | undefined
}

export interface RetentionOptions {
  /** How long jobs that ended well are kept. Default 24 hours. */
  readonly completed?: Duration.DurationInput | undefined
  /** How long jobs that failed for good are kept. Default 72 hours. */
  readonly failed?: Duration.DurationInput | undefined
  /** How long cancelled jobs are kept. Default 72 hours. */
  readonly cancelled?: Duration.DurationInput | undefined
}

export interface QueueStorageOptions extends QueueStorageConfig {
  /**
   * How often new jobs go to another slot of the log. Default 60 seconds; less often when the history of
   * `retention.completed` would not fit into the slots otherwise.
   */
  readonly queueRotateInterval?: Duration.DurationInput | undefined
  /** How often new leases go to another slot of theirs. Default 60 seconds. */
  readonly leaseRotateInterval?: Duration.DurationInput | undefined
}

export interface CompletionOptions {
  /** The most outcomes one statement closes, 1 to 10,000. Default 512. */
  readonly batchSize?: number | undefined
}

export interface DlqOptions {
  /** Whether jobs that fail for good become dead letters. Default: no. */
  readonly enabled?: boolean | undefined
  /** How long dead letters are kept. Default 30 days. */
  readonly retention?: Duration.DurationInput | undefined
  /** How often the leader looks for dead letters that were kept for long enough. Default 1 minute. */
  readonly cleanupInterval?: Duration.DurationInput | undefined
  /** The most dead letters one statement throws away, 1 to 10,000; a pass goes on until none is left. Default 1,000. */
  readonly cleanupBatchSize?: number | undefined
}

export interface ShutdownOptions {
  /** How long stopping may take in all. Default 30 seconds; the first four fifths are for running jobs to finish. */
  readonly timeout?: Duration.DurationInput | undefined
}

export interface ConnectionsOptions {
  /**
   * `"listen"`, the default: one connection waits for notifications. `"poll"`: the worker asks for work at the poll
   * interval only, and uses nothing that outlives a transaction, as transaction-mode poolers demand.
   */
  readonly notifications?: "listen" | "poll" | undefined
  /**
   * The connections for claims, completions and maintenance, besides the one that listens and the one that leads.
   * Default: one a queue, at most 4, and 3 more.
   */
  readonly poolSize?: number | undefined
  /** How long establishing a connection may take. Default 5 seconds. */
  readonly connectTimeout?: Duration.DurationInput | undefined
  /** How long one statement of the worker may take. Default 30 seconds. */
  readonly statementTimeout?: Duration.DurationInput | undefined
}

export type ClaimDurability = "async" | "sync"

export type UnknownKinds = "retry" | "fail"

/** Everything the builder collected, as it was given. */
export interface Options {
  readonly queues: ReadonlyArray<readonly [name: string, config: QueueConfig.QueueConfig]>
  readonly handlers: ReadonlyArray<Handler>
  readonly heartbeat: HeartbeatOptions
  readonly maintenance: MaintenanceOptions
  readonly retention: RetentionOptions
  readonly queueStorage: QueueStorageOptions
  readonly completion: CompletionOptions
  readonly dlq: DlqOptions
  readonly overrideRefresh: Duration.DurationInput | undefined
  readonly shutdown: ShutdownOptions
  readonly connections: ConnectionsOptions
  readonly claimDurability: ClaimDurability
  readonly unknownKinds: UnknownKinds
}

export interface Queue extends QueueConfig.Resolved {
  readonly name: string
}

/** The same after validation, with the defaults filled in. */
export interface Settings {
  readonly queues: ReadonlyArray<Queue>
  readonly handlers: ReadonlyMap<string, Handler>
  readonly heartbeat: { readonly [K in keyof Required<HeartbeatOptions>]: Duration.Duration }
  readonly maintenance: { readonly [K in keyof Required<MaintenanceOptions>]: Duration.Duration }
  readonly retention: { readonly [K in keyof Required<RetentionOptions>]: Duration.Duration }
  readonly queueStorage: {
    readonly queueRotateInterval: Duration.Duration
    readonly leaseRotateInterval: Duration.Duration
    /** How the storage is expected to be laid out. */
    readonly layout: QueueStorageConfig
  }
  readonly completion: { readonly batchSize: number }
  readonly dlq: {
    readonly enabled: boolean
    readonly retention: Duration.Duration
    readonly cleanupInterval: Duration.Duration
    readonly cleanupBatchSize: number
  }
  readonly overrideRefresh: Duration.Duration
  readonly shutdown: { readonly timeout: Duration.Duration }
  readonly connections: {
    readonly notifications: "listen" | "poll"
    readonly poolSize: number
    readonly connectTimeout: Duration.Duration
    readonly statementTimeout: Duration.Duration
  }
  readonly claimDurability: ClaimDurability
  readonly unknownKinds: UnknownKinds
}

export const emptyOptions: Options = {
  queues: [],
  handlers: [],
  heartbeat: {},
  maintenance: {},
  retention: {},
  queueStorage: {},
  completion: {},
  dlq: {},
  overrideRefresh: undefined,
  shutdown: {},
  connections: {},
  claimDurability: "async",
  unknownKinds: "retry"
}

const maxBatchSize = 10_000

const maxQueueNameLength = 200

const leastOverrideRefresh = Duration.millis(50)

/** PostgreSQL can take it off any date that makes sense. */
const longestRetention = Duration.days(36_525)

/** The first thing that is wrong, in the order in which things were written down. */
export const resolve = (options: Options): Either.Either<Settings, BuildError.BuildError> =>
  Either.gen(function*() {
    if (options.queues.length === 0) return yield* Either.left(new NoQueuesConfigured())
    const queues: Array<Queue> = []
    for (const [name, config] of options.queues) {
      yield* queueName(name)
      if (queues.some((queue) => queue.name === name)) return yield* Either.left(new DuplicateQueue({ queue: name }))
      queues.push({ name, ...(yield* queueConfig(name, config)) })
    }
    if (options.handlers.length === 0) return yield* Either.left(new NoHandlersConfigured())
    const handlers = new Map<string, Handler>()
    for (const handler of options.handlers) {
      if (handlers.has(handler.kind)) return yield* Either.left(new DuplicateHandler({ kind: handler.kind }))
      handlers.set(handler.kind, handler)
    }
    const interval = yield* duration("heartbeat.interval", options.heartbeat.interval, Duration.seconds(30))
    const heartbeat = yield* durations("heartbeat", options.heartbeat, {
      interval,
      staleness: Duration.max(Duration.seconds(90), comfortable(interval)),
      rescueInterval: Duration.seconds(30)
    })
    if (Duration.lessThanOrEqualTo(heartbeat.staleness, heartbeat.interval)) {
      return yield* Either.left(
        new InvalidDuration({
          setting: "heartbeat.staleness",
          value: options.heartbeat.staleness,
          reason: `an attempt says that it lives every ${Duration.format(heartbeat.interval)} (heartbeat.interval)` +
            " and would be taken away in between; three times as long is a good choice"
        })
      )
    }
    const maintenance = yield* durations("maintenance", options.maintenance, {
      promoteInterval: Duration.millis(250),
      deadlineRescueInterval: Duration.seconds(30),
      keySweepInterval: Duration.minutes(1),
      leaderElectionInterval: Duration.seconds(10),
      leaderCheckInterval: Duration.seconds(30),
      reclaimInterval: Duration.seconds(5),
      expireInterval: Duration.seconds(60)
    })
    const retention = yield* durations("retention", options.retention, {
      completed: Duration.hours(24),
      failed: Duration.hours(72),
      cancelled: Duration.hours(72)
    })
    const { leaseClaimReceipts, leaseSlotCount, queueSlotCount, ...rotation } = options.queueStorage
    yield* slotCount("queueSlotCount", queueSlotCount)
    yield* slotCount("leaseSlotCount", leaseSlotCount)
    yield* flag("queueStorage.leaseClaimReceipts", leaseClaimReceipts)
    const intervals = yield* durations("queueStorage", rotation, {
      queueRotateInterval: Duration.seconds(60),
      leaseRotateInterval: Duration.seconds(60)
    })
    const queueStorage = { ...intervals, layout: { leaseClaimReceipts, leaseSlotCount, queueSlotCount } }
    yield* knownOptions("completion", options.completion, ["batchSize"])
    const batchSize = options.completion.batchSize ?? 512
    yield* integer(InvalidCompletionBatchSize, "completion.batchSize", batchSize, maxBatchSize)
    const dlq = yield* dlqSettings(options.dlq)
    const overrideRefresh = yield* duration("overrideRefresh", options.overrideRefresh, Duration.seconds(10))
    if (Duration.lessThan(overrideRefresh, leastOverrideRefresh)) {
      return yield* Either.left(
        new InvalidDuration({
          setting: "overrideRefresh",
          value: options.overrideRefresh,
          reason: "it must be at least 50 milliseconds"
        })
      )
    }
    const shutdown = yield* durations("shutdown", options.shutdown, { timeout: Duration.seconds(30) })
    const connections = yield* connectionSettings(options.connections, queues.length)
    yield* choice("claimDurability", options.claimDurability, ["async", "sync"])
    yield* choice("unknownKinds", options.unknownKinds, ["retry", "fail"])
    return {
      queues,
      handlers,
      heartbeat,
      maintenance,
      retention,
      queueStorage,
      completion: { batchSize },
      dlq,
      overrideRefresh,
      shutdown,
      connections,
      claimDurability: options.claimDurability,
      unknownKinds: options.unknownKinds
    }
  })

/** A sign of life may be late, and one may be lost. */
const comfortable = (interval: Duration.Duration): Duration.Duration => Duration.times(interval, 3)

/** What works but is probably not meant. */
export const doubts = ({ handlers, heartbeat, queues }: Settings): ReadonlyArray<string> => {
  const worked = new Set(queues.map(({ name }) => name))
  const elsewhere = [...handlers.values()].filter(({ queue }) => !worked.has(queue))
  return [
    ...(Duration.lessThan(heartbeat.staleness, comfortable(heartbeat.interval))
      ? [
        `heartbeat.staleness (${Duration.format(heartbeat.staleness)}) is less than three times heartbeat.interval (` +
        `${Duration.format(heartbeat.interval)}): one late heartbeat, and a running job is taken away and run twice`
      ]
      : []),
    ...elsewhere.map(({ kind, queue }) =>
      `there is a handler for ${JSON.stringify(kind)}, whose jobs go to queue ${JSON.stringify(queue)} by default, ` +
      "which this worker does not work: add Awa.queue, or give the job another queue"
    )
  ]
}

type Check<A = void> = Either.Either<A, BuildError.BuildError>

const ok: Check = Either.right(undefined)

const queueName = (name: unknown): Check => {
  const refuse = (reason: string) => Either.left(new InvalidQueueName({ value: name, reason }))
  if (typeof name !== "string") return refuse("it must be a string")
  if (name.length === 0) return refuse("it must not be empty")
  if (name.length > maxQueueNameLength) return refuse(`it must not be longer than ${maxQueueNameLength} characters`)
  if (/[\0\p{Surrogate}]/u.test(name)) return refuse("it contains a character that PostgreSQL cannot store")
  return ok
}

const queueConfig = (name: string, config: QueueConfig.QueueConfig): Check<QueueConfig.Resolved> =>
  Either.gen(function*() {
    const group = `queue(${JSON.stringify(name)})`
    const { defaults } = QueueConfig
    yield* knownOptions(group, config, Object.keys(defaults))
    const maxWorkers = config.maxWorkers ?? defaults.maxWorkers
    yield* integer(InvalidMaxWorkers, `${group}.maxWorkers`, maxWorkers, Number.MAX_SAFE_INTEGER)
    const claimBatchSize = config.claimBatchSize ?? defaults.claimBatchSize
    yield* integer(InvalidClaimBatchSize, `${group}.claimBatchSize`, claimBatchSize, maxBatchSize)
    const pollInterval = yield* duration(`${group}.pollInterval`, config.pollInterval, defaults.pollInterval)
    const deadline = isEndless(config.deadline)
      ? null
      : yield* duration(`${group}.deadline`, config.deadline, defaults.deadline)
    const priorityAging = isEndless(config.priorityAging)
      ? null
      : yield* duration(`${group}.priorityAging`, config.priorityAging, defaults.priorityAging)
    yield* flag(`${group}.dlq`, config.dlq)
    return { maxWorkers, claimBatchSize, pollInterval, deadline, priorityAging, dlq: config.dlq ?? defaults.dlq }
  })

const dlqSettings = (options: DlqOptions): Check<Settings["dlq"]> =>
  Either.gen(function*() {
    yield* knownOptions("dlq", options, ["enabled", "retention", "cleanupInterval", "cleanupBatchSize"])
    yield* flag("dlq.enabled", options.enabled)
    const retention = yield* duration("dlq.retention", options.retention, Duration.days(30))
    if (Duration.greaterThan(retention, longestRetention)) {
      return yield* Either.left(
        new InvalidDuration({
          setting: "dlq.retention",
          value: options.retention,
          reason: "it must be at most 100 years"
        })
      )
    }
    const cleanupBatchSize = options.cleanupBatchSize ?? 1_000
    yield* integer(InvalidDlqBatchSize, "dlq.cleanupBatchSize", cleanupBatchSize, maxBatchSize)
    const cleanupInterval = yield* duration("dlq.cleanupInterval", options.cleanupInterval, Duration.minutes(1))
    return { enabled: options.enabled ?? false, retention, cleanupInterval, cleanupBatchSize }
  })

/** What becomes of the jobs of this worker that fail for good. */
export const deadLetterPolicy = ({ dlq, queues }: Pick<Settings, "dlq" | "queues">): DeadLetterPolicy => ({
  enabled: dlq.enabled,
  queues: Object.fromEntries(queues.flatMap(({ dlq, name }) => dlq === null ? [] : [[name, dlq]]))
})

const connectionSettings = (options: ConnectionsOptions, queues: number): Check<Settings["connections"]> =>
  Either.gen(function*() {
    yield* knownOptions("connections", options, ["notifications", "poolSize", "connectTimeout", "statementTimeout"])
    const notifications = options.notifications ?? "listen"
    yield* choice("connections.notifications", notifications, ["listen", "poll"])
    const poolSize = options.poolSize ?? Math.min(queues, 4) + 3
    yield* integer(InvalidConnectionCount, "connections.poolSize", poolSize, Number.MAX_SAFE_INTEGER)
    return {
      notifications,
      poolSize,
      connectTimeout: yield* duration("connections.connectTimeout", options.connectTimeout, Duration.seconds(5)),
      statementTimeout: yield* duration("connections.statementTimeout", options.statementTimeout, Duration.seconds(30))
    }
  })

/** A group of options that are all durations. */
const durations = <K extends string>(
  group: string,
  options: { readonly [P in K]?: Duration.DurationInput | undefined },
  defaults: { readonly [P in K]: Duration.Duration }
): Check<{ readonly [P in K]: Duration.Duration }> =>
  Either.gen(function*() {
    const names = Object.keys(defaults) as Array<K> // an object literal has the keys of its type
    yield* knownOptions(group, options, names)
    const resolved: { [P in K]: Duration.Duration } = { ...defaults }
    for (const name of names) resolved[name] = yield* duration(`${group}.${name}`, options[name], defaults[name])
    return resolved
  })

const knownOptions = (group: string, options: object, known: ReadonlyArray<string>): Check => {
  for (const [name, value] of Object.entries(options)) {
    if (!known.includes(name)) {
      const meant = nearest(name, known)
      return Either.left(
        new UnknownOption({
          setting: `${group}.${name}`,
          value,
          suggestion: meant === null ? null : `${group}.${meant}`
        })
      )
    }
  }
  return ok
}

const slotCount = (name: "queueSlotCount" | "leaseSlotCount", count: number | undefined): Check =>
  count === undefined ? ok : integer(InvalidSlotCount, `queueStorage.${name}`, count, 64)

const isEndless = (input: QueueConfig.QueueConfig["deadline"]): input is "infinity" | null =>
  input === null || input === "infinity" ||
  Option.exists(Duration.decodeUnknown(input), (duration) => !Duration.isFinite(duration))

const duration = (
  setting: string,
  input: Duration.DurationInput | undefined,
  otherwise: Duration.Duration
): Check<Duration.Duration> => {
  const refuse = (reason: string) => Either.left(new InvalidDuration({ setting, value: input, reason }))
  if (input === undefined) return Either.right(otherwise)
  const decoded = Duration.decodeUnknown(input)
  if (Option.isNone(decoded)) return refuse("it is no duration, such as \"30 seconds\" or Duration.seconds(30)")
  if (!Duration.isFinite(decoded.value)) return refuse("it must end some day")
  if (Duration.toMillis(decoded.value) < 1) return refuse("it must be at least a millisecond")
  return Either.right(decoded.value)
}

type NumberError = new(
  fields: { readonly setting: string; readonly value: unknown; readonly reason: string }
) => BuildError.BuildError

const integer = (Refused: NumberError, setting: string, value: unknown, max: number): Check =>
  Number.isInteger(value) && (value as number) >= 1 && (value as number) <= max
    ? ok
    : Either.left(
      new Refused({
        setting,
        value,
        reason: max === Number.MAX_SAFE_INTEGER
          ? "it must be a whole number, at least 1"
          : `it must be a whole number from 1 to ${max}`
      })
    )

const flag = (setting: string, value: unknown): Check =>
  value === undefined || typeof value === "boolean"
    ? ok
    : Either.left(new InvalidChoice({ setting, value, reason: "it must be true or false" }))

const choice = (setting: string, value: unknown, choices: ReadonlyArray<string>): Check =>
  choices.includes(value as string)
    ? ok
    : Either.left(new InvalidChoice({ setting, value, reason: `it must be one of ${choices.join(", ")}` }))
