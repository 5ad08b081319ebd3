/** @internal How queue storage's functions write what goes in and out of them. */
import * as Duration from "effect/Duration"
import { type JobFailure, JobId } from "../../JobRow.js"
import type {
  AttemptToken,
  Beat,
  ClaimedJob,
  Completion,
  DeadLetterPolicy,
  Outcome,
  Rescued,
  Verdict
} from "../../StorageEngine.js"
import * as JobRows from "../jobRow.js"
import { storable } from "./storable.js"

/** The answer of `claim` in migrations/0012. The members of a batch are numbered from 1. */
type ClaimedBatch = readonly [
  slot: number,
  batchId: string,
  priority: number,
  /** `null` where the job was cancelled by its claim. */
  members: ReadonlyArray<ClaimedMember | null>,
  ranks: ReadonlyArray<number> | null
]

type ClaimedMember = readonly [
  jobId: string,
  runLease: string,
  kind: string,
  attempt: number,
  maxAttempts: number,
  runAtMillis: number,
  createdAtMillis: number,
  args: unknown,
  envelope: Envelope | null
]

interface Envelope {
  readonly metadata?: Record<string, unknown>
  readonly tags?: ReadonlyArray<string>
  readonly errors?: ReadonlyArray<{
    readonly error: string
    readonly attempt: number
    readonly at: string
    readonly terminal?: boolean
  }>
  readonly progress?: unknown
  readonly ordering_key?: string
  readonly unique?: unknown
}

const noTags: ReadonlyArray<string> = []
const noErrors: ReadonlyArray<JobFailure> = []

const failures = (errors: Envelope["errors"]): ReadonlyArray<JobFailure> =>
  errors === undefined ? noErrors : errors.map((entry) => ({ ...entry, at: new Date(entry.at) }))

const fence = (jobId: string, runLease: string, nonce: string): string => `${jobId}.${runLease}.${nonce}`

/** @internal */
export const claimedJobs = (
  json: string,
  claim: { readonly queue: string; readonly nonce: string; readonly claimedAt: Date }
): ReadonlyArray<ClaimedJob> => {
  const jobs: Array<ClaimedJob> = []
  for (const [slot, batchId, priority, members, ranks] of JSON.parse(json) as ReadonlyArray<ClaimedBatch>) {
    for (let i = 0; i < members.length; i++) {
      const member = members[i]!
      // Ranks count from 1. A place may stay empty.
      if (member !== null) {
        jobs[ranks === null ? i : ranks[i]! - 1] = claimedJob(slot, batchId, priority, i + 1, member, claim)
      }
    }
  }
  return jobs.flat()
}

const claimedJob = (
  slot: number,
  batchId: string,
  priority: number,
  index: number,
  member: ClaimedMember,
  { claimedAt, nonce, queue }: { readonly queue: string; readonly nonce: string; readonly claimedAt: Date }
): ClaimedJob => {
  const envelope = member[8]
  const args = member[7]
  const token = { slot, batchId, nonce, index, fence: fence(member[0], member[1], nonce) }
  return {
    token: envelope?.unique === undefined ? token : { ...token, unique: true },
    job: JobRows.make({
      id: BigInt(member[0]) as JobId,
      kind: member[2],
      queue,
      args,
      state: "running",
      priority,
      attempt: member[3],
      maxAttempts: member[4],
      runLease: BigInt(member[1]),
      runAt: new Date(member[5]),
      createdAt: new Date(member[6]),
      attemptedAt: claimedAt,
      metadata: envelope?.metadata ?? {},
      tags: envelope?.tags ?? noTags,
      errors: failures(envelope?.errors),
      progress: envelope?.progress,
      orderingKey: envelope?.ordering_key
    }),
    args
  }
}

/** A century: PostgreSQL holds the sum with any instant that makes sense. */
const longest = Duration.toMillis(Duration.days(36_525))

const delayMillis = (delay: Duration.Duration): number =>
  Math.max(0, Math.min(Math.ceil(Duration.toMillis(delay)), longest))

interface Ended {
  readonly act: "complete" | "retry" | "snooze" | "return" | "cancel" | "fail"
  readonly delay_ms?: number
  readonly error?: string
}

const ended = (outcome: Outcome): Ended => {
  switch (outcome._tag) {
    case "completed":
      return { act: "complete" }
    case "retry":
      return {
        act: "retry",
        ...(outcome.delay === null ? undefined : { delay_ms: delayMillis(outcome.delay) }),
        ...(outcome.error === null ? undefined : { error: storable(outcome.error) })
      }
    case "snooze":
      return { act: "snooze", delay_ms: delayMillis(outcome.delay) }
    case "return":
      return { act: "return" }
    case "cancel":
      return { act: "cancel", error: `cancelled: ${storable(outcome.reason)}` }
    case "fail":
      return { act: "fail", error: storable(outcome.error) }
  }
}

const address = (token: AttemptToken) => ({
  slot: token.slot,
  batch: token.batchId,
  nonce: token.nonce,
  member: token.index
})

const withProgress = (progress: unknown) => progress === undefined ? undefined : { progress }

const keyOf = (slot: number, batchId: string, nonce: string, member: number): string =>
  `${slot}/${batchId}/${nonce}/${member}`

const keyOfToken = ({ batchId, index, nonce, slot }: AttemptToken): string => keyOf(slot, batchId, nonce, index)

/**
 * What a call says of each attempt: the first, should it name one several times. `null` when it does not.
 *
 * @internal
 */
export const firsts = (list: ReadonlyArray<Completion>): ReadonlyMap<string, Completion> | null => {
  if (!hasDuplicates(list)) return null
  const first = new Map<string, Completion>()
  for (const item of list) {
    const key = keyOfToken(item.token)
    if (!first.has(key)) first.set(key, item)
  }
  return first
}

const batchKeyOf = ({ batchId, nonce, slot }: AttemptToken): string => `${slot}/${batchId}/${nonce}`

const isOfSameBatch = (one: AttemptToken, other: AttemptToken | undefined): boolean =>
  one.batchId === other?.batchId && one.nonce === other.nonce && one.slot === other.slot

const hasDuplicates = (list: ReadonlyArray<Completion>): boolean => {
  const batches = new Map<string, Set<number>>()
  let previous: AttemptToken | undefined
  let members = new Set<number>() // neighbours mostly are of one batch
  for (const { token } of list) {
    if (!isOfSameBatch(token, previous)) {
      const key = batchKeyOf(token)
      members = batches.get(key) ?? new Set()
      batches.set(key, members)
      previous = token
    }
    if (members.has(token.index)) return true
    members.add(token.index)
  }
  return false
}

interface Group {
  readonly slot: number
  readonly batch: string
  readonly nonce: string
  readonly members: Array<number>
}

/**
 * The two documents of `complete`: successes grouped by batch, everything else one by one, and with it the successes that
 * let a unique key go.
 *
 * @internal
 */
export const completions = (list: Iterable<Completion>): { readonly completed: string; readonly ended: string } => {
  const groups = new Map<string, Group>()
  const others: Array<object> = []
  let previous: AttemptToken | undefined
  let group: Group | undefined
  for (const { outcome, progress, token } of list) {
    if (outcome._tag !== "completed" || token.unique === true) {
      others.push({ ...address(token), ...ended(outcome), ...withProgress(progress) })
      continue
    }
    if (group === undefined || !isOfSameBatch(token, previous)) group = groupOf(groups, token)
    previous = token
    group.members.push(token.index)
  }
  return { completed: JSON.stringify([...groups.values()]), ended: JSON.stringify(others) }
}

const groupOf = (groups: Map<string, Group>, token: AttemptToken): Group => {
  const key = batchKeyOf(token)
  const known = groups.get(key)
  if (known !== undefined) return known
  const group: Group = { slot: token.slot, batch: token.batchId, nonce: token.nonce, members: [] }
  groups.set(key, group)
  return group
}

type Rejected = readonly [slot: number, batchId: string, nonce: string, member: number, verdict: Verdict]

/** @internal */
export const verdicts = (
  list: ReadonlyArray<Completion>,
  first: ReadonlyMap<string, Completion> | null,
  json: string | null
): ReadonlyArray<Verdict> => {
  if (json === null && first === null) return list.map(() => "accepted")
  const rejected = new Map(
    (JSON.parse(json ?? "[]") as ReadonlyArray<Rejected>).map(([slot, batchId, nonce, member, verdict]) =>
      [keyOf(slot, batchId, nonce, member), verdict] as const
    )
  )
  return list.map((completion) => {
    const key = keyOfToken(completion.token)
    const verdict = rejected.get(key) ?? "accepted"
    const decisive = first?.get(key) ?? completion
    if (decisive === completion) return verdict
    return verdict === "refused" || decisive.outcome._tag !== completion.outcome._tag ? "refused" : "repeated"
  })
}

/** @internal Of an attempt that is named several times the latest progress counts. */
export const beats = (list: ReadonlyArray<Beat>): string => {
  const latest = new Map<string, object>()
  for (const { progress, token } of list) {
    const key = keyOfToken(token)
    latest.set(key, { ...address(token), ...latest.get(key), ...withProgress(progress) })
  }
  return JSON.stringify([...latest.values()])
}

/** @internal */
export const held = (list: ReadonlyArray<Beat>, json: string | null): ReadonlyArray<boolean> => {
  if (json === null) return list.map(() => true)
  const lost = new Set(
    (JSON.parse(json) as ReadonlyArray<readonly [number, string, string, number]>).map((key) => keyOf(...key))
  )
  return list.map(({ token }) => !lost.has(keyOfToken(token)))
}

interface Owned {
  readonly frontier: string
  readonly attempts: ReadonlyArray<
    readonly [slot: number, batchId: string, nonce: string, member: number, jobId: string, runLease: string]
  >
}

/** @internal */
export const owned = (json: string): { readonly frontier: string; readonly tokens: ReadonlyArray<AttemptToken> } => {
  const { attempts, frontier } = JSON.parse(json) as Owned
  return {
    frontier,
    tokens: attempts.map(([slot, batchId, nonce, index, jobId, runLease]) => ({
      slot,
      batchId,
      nonce,
      index,
      fence: fence(jobId, runLease, nonce)
    }))
  }
}

/** @internal */
export const rescued = (json: string, reason: Rescued["reason"]): ReadonlyArray<Rescued> =>
  (JSON.parse(json) as ReadonlyArray<readonly [string, Rescued["state"]]>).map(([id, state]) => ({
    jobId: JobId.make(BigInt(id)),
    reason,
    state
  }))

const policies = new WeakMap<DeadLetterPolicy, string>()

/** @internal A worker says the same all its life. */
export const deadLetterPolicy = (policy: DeadLetterPolicy | undefined): string | null => {
  if (policy === undefined) return null
  let json = policies.get(policy)
  if (json === undefined) {
    json = JSON.stringify(policy)
    policies.set(policy, json)
  }
  return json
}
