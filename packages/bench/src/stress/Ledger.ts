/**
 * The stress program's own record of what was committed and what was claimed, and the comparison of the two.
 */

export interface Enqueued {
  readonly id: bigint
  readonly lane: string
  /** When the enqueue call was sent. */
  readonly calledAt: number
}

export interface Claimed {
  readonly id: bigint
  readonly lane: string
  readonly batch: bigint
}

export interface Verdict {
  /** Jobs of committed transactions. */
  readonly enqueued: number
  /** Different jobs that were claimed. */
  readonly claimed: number
  readonly lost: number
  readonly duplicated: number
  /** Jobs that were claimed although their transaction was rolled back. */
  readonly phantoms: number
  /** Jobs claimed before a job of the same lane that was committed when they were enqueued. */
  readonly orderViolations: number
}

export interface Ledger {
  readonly committed: (jobs: ReadonlyArray<Enqueued>, at: number) => void
  /** The jobs of one claim, in the order of its answer. */
  readonly claimed: (jobs: ReadonlyArray<Claimed>) => void
  readonly verdict: () => Verdict
}

interface Committed extends Enqueued {
  readonly committedAt: number
}

interface Position {
  /** Claims of one lane exclude each other, and batch ids rise: this is their order. */
  readonly batch: bigint
  readonly index: number
}

export const make = (): Ledger => {
  const committed = new Map<bigint, Committed>()
  const claims = new Map<bigint, Position>()
  let duplicated = 0

  const claimed: Ledger["claimed"] = (jobs) => {
    const lastBatch = new Map<string, bigint>()
    for (const { batch, lane } of jobs) {
      const last = lastBatch.get(lane)
      if (last === undefined || batch > last) lastBatch.set(lane, batch)
    }
    jobs.forEach(({ id, lane }, index) => {
      if (claims.has(id)) duplicated++
      else claims.set(id, { batch: lastBatch.get(lane)!, index })
    })
  }

  const verdict = (): Verdict => {
    const lanes = new Map<string, Array<Committed & Position>>()
    for (const job of committed.values()) {
      const position = claims.get(job.id)
      if (position === undefined) continue
      const lane = lanes.get(job.lane) ?? []
      lanes.set(job.lane, lane)
      lane.push({ ...job, ...position })
    }
    return {
      enqueued: committed.size,
      claimed: claims.size,
      lost: [...committed.keys()].filter((id) => !claims.has(id)).length,
      duplicated,
      phantoms: [...claims.keys()].filter((id) => !committed.has(id)).length,
      orderViolations: [...lanes.values()].reduce((sum, lane) => sum + violations(lane), 0)
    }
  }

  return {
    committed: (jobs, committedAt) => {
      for (const job of jobs) committed.set(job.id, { ...job, committedAt })
    },
    claimed,
    verdict
  }
}

/** From the last claimed to the first: was anything claimed later committed before this job was enqueued? */
const violations = (lane: ReadonlyArray<Committed & Position>): number => {
  const byClaim = [...lane].sort((a, b) => a.batch === b.batch ? a.index - b.index : a.batch < b.batch ? -1 : 1)
  let earliestCommit = Number.POSITIVE_INFINITY
  let found = 0
  for (let i = byClaim.length - 1; i >= 0; i--) {
    const job = byClaim[i]!
    if (earliestCommit < job.calledAt) found++
    earliestCommit = Math.min(earliestCommit, job.committedAt)
  }
  return found
}
