import type { Attempt } from "./queue.js"

/** A job whose transaction may still fail. */
export interface Job {
  readonly id: string
  /** Jobs of one are claimed in order; null where nothing is promised. */
  readonly lane: string | null
  /** It waits for its time first, and takes its place in the order then. */
  readonly deferred: boolean
  /** When the enqueue call was made. */
  readonly calledAt: number
}

interface Committed extends Job {
  readonly committedAt: number
}

/** The program's own record of what was committed and what was claimed. */
export class History {
  private instants = 0
  private readonly jobs = new Map<string, Committed>()
  private readonly due = new Set<string>()
  private readonly claims: Array<ReadonlyArray<Attempt>> = []

  /** The order in which this process saw things happen. */
  instant(): number {
    return ++this.instants
  }

  committed(jobs: ReadonlyArray<Job>): void {
    const committedAt = this.instant()
    for (const job of jobs) {
      this.jobs.set(job.id, { ...job, committedAt })
      this.due.add(`${job.id}/1`)
    }
  }

  claimed(attempts: ReadonlyArray<Attempt>): ReadonlyArray<Attempt> {
    if (attempts.length > 0) this.claims.push(attempts)
    return attempts
  }

  /** These attempts will be followed by another one. */
  unsuccessful(attempts: ReadonlyArray<Attempt>): void {
    for (const { job, lease } of attempts) this.due.add(`${job}/${Number(lease) + 1}`)
  }

  counts(): { readonly jobs: number; readonly attempts: number } {
    return { jobs: this.jobs.size, attempts: this.claims.flat().length }
  }

  verdict(): {
    readonly lost: number
    readonly doubled: number
    readonly phantoms: number
    readonly outOfOrder: number
  } {
    const attempts = this.claims.flat().map(({ job, lease }) => `${job}/${lease}`)
    const given = new Set(attempts)
    return {
      lost: [...this.due].filter((attempt) => !given.has(attempt)).length,
      doubled: attempts.length - given.size,
      phantoms: [...given].filter((attempt) => !this.due.has(attempt)).length,
      outOfOrder: [...this.firstAttempts().values()].reduce((sum, lane) => sum + outOfOrder(lane), 0)
    }
  }

  /** Each lane's first attempts in the order of their claims: these exclude each other, and batch numbers rise. */
  private firstAttempts(): ReadonlyMap<string, ReadonlyArray<Committed>> {
    const batchOf = (claim: ReadonlyArray<Attempt>) => Math.min(...claim.map(({ batch }) => Number(batch)))
    const jobs = [...this.claims].sort((a, b) => batchOf(a) - batchOf(b)).flat()
      .filter(({ lease }) => lease === "1")
      .flatMap(({ job }) => this.jobs.get(job) ?? [])
    const lanes = new Map<string, Array<Committed>>()
    for (const job of jobs) {
      if (job.lane === null || job.deferred) continue
      lanes.set(job.lane, [...(lanes.get(job.lane) ?? []), job])
    }
    return lanes
  }
}

/** Jobs before one that had been committed when they were enqueued. */
const outOfOrder = (lane: ReadonlyArray<Committed>): number => {
  let earliest = Infinity
  let found = 0
  for (const job of [...lane].reverse()) {
    if (earliest < job.calledAt) found++
    earliest = Math.min(earliest, job.committedAt)
  }
  return found
}
