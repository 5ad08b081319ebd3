/**
 * What a stress program was told of jobs that were enqueued, run and ended, and the comparison with what the database
 * says.
 */

/** `<job>.<run lease>.<nonce>`: names an attempt. */
type Fence = string

/** A line of the database's own record: an end of a job, or that a job which had ended was let run again. */
export interface Line {
  readonly job: string
  readonly lease: string
  /** Absent where the log had let go of the attempt, or there was none. */
  readonly nonce: string | null
  readonly state: "completed" | "failed" | "cancelled" | "revived"
  /** Milliseconds, by the clock of the database. */
  readonly at: number
}

export interface Run {
  readonly fence: Fence
  /** When its job was claimed; milliseconds, by the clock of the database. */
  readonly claimedAt: number
}

export interface Verdict {
  /** Jobs of transactions that were committed. */
  readonly enqueued: number
  /** Attempts whose handlers began. */
  readonly runs: number
  /** Attempts whose success was acknowledged to their worker. */
  readonly acknowledged: number
  /** Jobs that have ended, by the database. */
  readonly ended: number
  /** How often a job that had ended was let run again, by the database. */
  readonly revived: number
  /** Jobs that never ended. */
  readonly lost: number
  /** Attempts that were accepted twice, ends there should not be, and runs of jobs that had ended for good. */
  readonly duplicated: number
  /** Jobs that ran or ended although their transaction was rolled back. */
  readonly phantoms: number
  /** What the program was told and the database does not know, or the other way round. */
  readonly disagreements: number
}

export interface Ends {
  readonly committed: (jobs: ReadonlyArray<bigint>) => void
  readonly rolledBack: (jobs: ReadonlyArray<bigint>) => void
  readonly ran: (run: Run) => void
  /** A success was acknowledged: accepted now, or when the answer was lost. */
  readonly acknowledged: (fence: Fence, verdict: "accepted" | "repeated") => void
  /** A job was cancelled from outside. */
  readonly cancelled: (job: bigint) => void
  readonly verdict: (lines: ReadonlyArray<Line>) => Verdict
}

export const make = (): Ends => {
  const committed = new Set<string>()
  const rolledBack = new Set<string>()
  const runs: Array<Run> = []
  const acknowledged = new Set<Fence>()
  const accepted = new Set<Fence>()
  const cancelled = new Set<string>()
  let acceptedTwice = 0

  const verdict = (lines: ReadonlyArray<Line>): Verdict => {
    const histories = new Map<string, Array<Line>>()
    for (const line of lines) {
      const history = histories.get(line.job)
      if (history === undefined) histories.set(line.job, [line])
      else history.push(line)
    }
    const count = <A>(things: Iterable<A>, is: (thing: A) => boolean) => [...things].filter(is).length
    const excess = (history: ReadonlyArray<Line>) => 2 * count(history, isEnd) - history.length
    const isOver = (job: string) => excess(histories.get(job) ?? []) > 0
    const ranOn = ({ claimedAt, fence }: Run) => {
      const last = histories.get(jobOf(fence))?.at(-1)
      return last !== undefined && isEnd(last) && claimedAt > last.at
    }

    const known = new Set(runs.map(({ fence }) => attemptOf(fence)))
    const completed = lines.filter(({ state }) => state === "completed")
    const stored = new Set(
      completed.flatMap(({ job, lease, nonce }) => [`${job}.${lease}`, `${job}.${lease}.${nonce}`])
    )
    const isStored = (fence: Fence) =>
      stored.has(fence) || (stored.has(attemptOf(fence)) && stored.has(`${attemptOf(fence)}.null`))
    return {
      enqueued: committed.size,
      runs: runs.length,
      acknowledged: acknowledged.size,
      ended: count(histories.keys(), isOver),
      revived: count(lines, (line) => !isEnd(line)),
      lost: count(committed, (job) => !isOver(job)),
      duplicated: acceptedTwice + count(runs, ranOn) +
        [...histories.values()].reduce((sum, history) => sum + Math.max(0, excess(history) - 1), 0),
      phantoms: count(rolledBack, (job) => histories.has(job)) +
        count(runs, ({ fence }) => rolledBack.has(jobOf(fence))),
      disagreements: count(acknowledged, (fence) => !isStored(fence)) +
        count(completed, ({ job, lease }) => !known.has(`${job}.${lease}`)) +
        count(cancelled, (job) => !(histories.get(job) ?? []).some(({ state }) => state === "cancelled"))
    }
  }

  return {
    committed: (jobs) => {
      for (const job of jobs) committed.add(String(job))
    },
    rolledBack: (jobs) => {
      for (const job of jobs) rolledBack.add(String(job))
    },
    ran: (run) => {
      runs.push(run)
    },
    acknowledged: (fence, verdict) => {
      acknowledged.add(fence)
      if (verdict === "accepted" && accepted.has(fence)) acceptedTwice++
      if (verdict === "accepted") accepted.add(fence)
    },
    cancelled: (job) => {
      cancelled.add(String(job))
    },
    verdict
  }
}

const isEnd = ({ state }: Line): boolean => state !== "revived"

const jobOf = (fence: Fence): string => fence.slice(0, fence.indexOf("."))

/** The job and its lease, which two claims share if the first was lost in a crash. */
const attemptOf = (fence: Fence): string => fence.slice(0, fence.lastIndexOf("."))
