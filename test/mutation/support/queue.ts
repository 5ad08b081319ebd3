import type { Finding } from "./rule.js"
import type { Session, World } from "./world.js"

/** One attempt, as a claim hands it out. */
export interface Attempt {
  readonly slot: number
  readonly batch: string
  readonly nonce: number
  readonly member: number
  readonly job: string
  readonly lease: string
}

export type Token = Pick<Attempt, "slot" | "batch" | "nonce" | "member">

/** What the claims of one worker have in common. */
export interface Claim {
  readonly limit?: number
  readonly owner?: string
  readonly nonce?: number
  readonly now?: Date | undefined
  readonly queue?: string
  /** Milliseconds. */
  readonly aging?: number
}

export const alice = "00000000-0000-4000-8000-00000000000a"
export const bob = "00000000-0000-4000-8000-00000000000b"
export const carol = "00000000-0000-4000-8000-00000000000c"

type Batch = readonly [
  slot: number,
  batch: string,
  priority: number,
  members: ReadonlyArray<readonly [job: string, lease: string] | null>,
  ranks: ReadonlyArray<number> | null
]

/** Enqueues jobs in the session's transaction; answers their ids. */
export const enqueue = async (
  session: Session,
  jobs: number | ReadonlyArray<object> = 1,
  now?: Date
): Promise<ReadonlyArray<string>> => {
  const list = typeof jobs === "number" ? Array.from({ length: jobs }, () => ({})) : jobs
  const [row] = await session.query<{ ids: string }>(
    "select ids from awa.enqueue($1, $2)",
    JSON.stringify(list.map((job) => ({ kind: "k", ...job }))),
    now
  )
  return row?.ids.split(",") ?? []
}

/** Enqueues one plain job of priority 2, as producers do that compute the lane themselves. */
export const enqueueOne = async (session: Session, lanePriority = 2): Promise<string> => {
  const [row] = await session.query<{ ids: string }>(
    "select split_part(e, ' ', 2) as ids from awa.enqueue_one('k', '1', 'default', 2::smallint, 25::smallint, awa.lane_id('default', $1, 0), awa.lock_key('default'), null) as e",
    lanePriority
  )
  return row?.ids ?? ""
}

/** Enqueues plain jobs in one call. */
export const enqueueAlike = async (session: Session, jobs: number): Promise<ReadonlyArray<string>> => {
  const [row] = await session.query<{ ids: string }>(
    "select split_part(e, ' ', 2) as ids from awa.enqueue_alike('k', $1, 'default', 2::smallint, 25::smallint, awa.lane_id('default', 2, 0), awa.lock_key('default'), null) as e",
    Array.from({ length: jobs }, () => "null").join("\u001e")
  )
  return row?.ids.split(",") ?? []
}

export const claim = async (session: Session, options: Claim = {}): Promise<ReadonlyArray<Attempt>> => {
  const { aging, limit = 100, nonce = 1, now, owner = alice, queue = "default" } = options
  const [row] = await session.query<{ jobs: string }>(
    "select jobs from awa.claim($1, $2, $3, $4, null, true, $5, $6)",
    queue,
    limit,
    owner,
    nonce,
    now,
    aging
  )
  return (JSON.parse(row?.jobs ?? "[]") as ReadonlyArray<Batch>)
    .flatMap(([slot, batch, _priority, members, ranks]) =>
      members.flatMap((member, i) => {
        if (member === null) return []
        const [job, lease] = member
        return [{ rank: ranks?.[i] ?? i, attempt: { slot, batch, nonce, member: i + 1, job, lease } }]
      })
    )
    .sort((one, other) => one.rank - other.rank)
    .map(({ attempt }) => attempt)
}

/** Changes jobs; answers the verdict on each, by its id. */
export const change = async (
  session: Session,
  ids: ReadonlyArray<string>,
  change: { readonly op: string } & Readonly<Record<string, unknown>>
): Promise<Readonly<Record<string, string>>> => {
  const [row] = await session.query<{ verdicts: ReadonlyArray<readonly [id: string, verdict: string]> }>(
    "select awa.change_jobs($1, $2, null) as verdicts",
    ids,
    JSON.stringify(change)
  )
  return Object.fromEntries(row?.verdicts ?? [])
}

/** One attempt's end other than success. */
export interface End extends Token {
  readonly act: "retry" | "return" | "complete" | "fail"
  readonly delay_ms?: number
}

const byBatch = (tokens: ReadonlyArray<Token>) => {
  const batches = new Map<string, { slot: number; batch: string; nonce: number; members: Array<number> }>()
  for (const { batch, member, nonce, slot } of tokens) {
    const key = `${slot}/${batch}/${nonce}`
    const group = batches.get(key) ?? { slot, batch, nonce, members: [] }
    batches.set(key, group)
    group.members.push(member)
  }
  return [...batches.values()]
}

/** Ends attempts; answers the verdicts on those that were not accepted. */
export const complete = async (
  session: Session,
  completed: ReadonlyArray<Token>,
  { ended = [], now, owner = alice }: {
    readonly ended?: ReadonlyArray<End>
    readonly owner?: string
    readonly now?: Date
  } = {}
): Promise<ReadonlyArray<"repeated" | "refused">> => {
  const [row] = await session.query<{ rejected: ReadonlyArray<ReadonlyArray<unknown>> | null }>(
    "select awa.complete($1, $2, $3, $4) as rejected",
    owner,
    JSON.stringify(byBatch(completed)),
    JSON.stringify(ended.map((token) => ({ ...token }))),
    now
  )
  return (row?.rejected ?? []).map((rejected) => rejected[4] as "repeated" | "refused")
}

/** Says that attempts still run; answers how many no longer belong to the owner. */
export const heartbeat = async (
  session: Session,
  tokens: ReadonlyArray<Token>,
  now?: Date,
  owner = alice
): Promise<number> => {
  const [row] = await session.query<{ lost: ReadonlyArray<unknown> | null }>(
    "select awa.heartbeat($1, $2, $3) as lost",
    owner,
    JSON.stringify(tokens),
    now
  )
  return row?.lost?.length ?? 0
}

/** Takes back attempts without a sign of life for `age` milliseconds; answers their jobs. */
export const rescue = async (session: Session, age: number, now: Date): Promise<ReadonlyArray<string>> => {
  const [row] = await session.query<{ rescued: ReadonlyArray<readonly [job: string, state: string]> }>(
    "select rescued from awa.rescue('stale_heartbeat', $1, 0, 1000, $2)",
    age,
    now
  )
  return row?.rescued.map(([job]) => job) ?? []
}

export const promote = async (session: Session, now: Date): Promise<void> => {
  await session.query("select awa.promote(1000, $1)", now)
}

export const setShards = async (session: Session, shards: number, queue = "default"): Promise<void> => {
  await session.query("select awa.set_shards($1, $2)", queue, shards)
}

export const begin = (session: Session): Promise<unknown> => session.query("begin")
export const commit = (session: Session): Promise<unknown> => session.query("commit")
export const rollback = (session: Session): Promise<unknown> => session.query("rollback")

/** A transaction that has its id, and so its place in the order of ids, before it does anything. */
export const transaction = async (world: World): Promise<Session> => {
  const session = await world.session()
  await begin(session)
  await session.query("select pg_current_xact_id()")
  return session
}

/** Which attempts there have to be, and which there were. */
export class Ledger {
  private readonly due = new Set<string>()
  private readonly given: Array<string> = []

  /** Jobs whose next attempt has this lease number have been committed to the queue. */
  waiting(jobs: ReadonlyArray<string>, lease = 1): void {
    for (const job of jobs) this.due.add(`${job}/${lease}`)
  }

  claimed<Attempts extends ReadonlyArray<Attempt>>(attempts: Attempts): Attempts {
    for (const { job, lease } of attempts) this.given.push(`${job}/${lease}`)
    return attempts
  }

  /** An attempt nobody asked for is a job done twice. */
  findings(): ReadonlyArray<Finding> {
    const given = new Set(this.given)
    return [
      ...(given.size < this.given.length || this.given.some((attempt) => !this.due.has(attempt))
        ? ["job doubled" as const]
        : []),
      ...([...this.due].some((attempt) => !given.has(attempt)) ? ["job lost" as const] : [])
    ]
  }
}

/** Claims until nothing is left, or something comes back for ever. */
export const drain = async (session: Session, ledger: Ledger, options: Claim = {}): Promise<void> => {
  for (let left = 20; left > 0; left--) {
    if (ledger.claimed(await claim(session, options)).length === 0) break
  }
}

export const minutes = (count: number): number => count * 60_000

export const hours = (count: number): number => minutes(count * 60)

export const later = (time: Date, milliseconds: number): Date => new Date(time.getTime() + milliseconds)

/** The worker is gone: all its open attempts are taken back, and their jobs are claimed again. */
export const crashAndRescue = async (session: Session, ledger: Ledger): Promise<void> => {
  const now = new Date()
  await rescue(session, 0, later(now, hours(1)))
  await promote(session, later(now, hours(48)))
  await drain(session, ledger)
}
