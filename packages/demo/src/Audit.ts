/**
 * Compares what the queue says with what the program knows, figure by figure and job by job. Pure.
 */
import type { Attempt, Outcome } from "./Ledger.js"

/** What the shop knows of a job it enqueued. */
export interface Expected {
  readonly id: string
  readonly kind: string
  readonly maxAttempts: number
  readonly ends: End
  /** The first attempt that can end the job; those before it fail. */
  readonly decidedBy: number
  /** 0: at once. */
  readonly delayMillis: number
}

export type End = "completed" | "cancelled" | "failed"

/** A job as `awa.jobs` shows it. */
export interface Stored {
  readonly id: string
  readonly kind: string
  readonly state: string
  readonly attempt: number
  readonly createdAtMillis: number
  /** The attempts that were taken from a worker that stopped answering. */
  readonly rescued: ReadonlyArray<number>
}

export interface Running {
  readonly jobId: string
  readonly attempt: number
}

export interface Evidence {
  readonly expected: ReadonlyArray<Expected>
  readonly attempts: ReadonlyArray<Attempt>
  readonly stored: ReadonlyArray<Stored>
  readonly orders: { readonly recorded: number; readonly stored: number }
  /** The ids that were given out in the transaction that rolled back. */
  readonly regretted: ReadonlyArray<string>
  readonly killed: {
    readonly worker: string
    /** What all workers ran according to the queue, once the killed one could not act any more. */
    readonly running: ReadonlyArray<Running>
  }
}

/** One figure, from both sides. */
export interface Figure {
  readonly name: string
  readonly recorded: number
  readonly stored: number
}

export interface Row {
  readonly kind: string
  readonly figures: ReadonlyArray<Figure>
}

export interface Audit {
  /** By kind of job: how many there are, how they ended, how often they were tried. */
  readonly rows: ReadonlyArray<Row>
  readonly facts: ReadonlyArray<Figure>
  /** What differs, in words. Empty when all is well. */
  readonly differences: ReadonlyArray<string>
}

export const make = (evidence: Evidence): Audit => {
  const histories = historiesOf(evidence)
  const rows = rowsOf(evidence, histories)
  const facts = factsOf(evidence, histories)
  return {
    rows,
    facts,
    differences: [
      ...rows.flatMap(({ figures, kind }) => figures.flatMap((figure) => differenceOf(figure, `${kind}, `))),
      ...facts.flatMap((figure) => differenceOf(figure)),
      ...jobDifferences(evidence, histories)
    ]
  }
}

const differenceOf = ({ name, recorded, stored }: Figure, prefix = ""): ReadonlyArray<string> =>
  recorded === stored ? [] : [`${prefix}${name}: ${recorded} recorded, ${stored} in the database`]

// The program's record: what became of every attempt

/** `lost`: it ran, or was about to, when its worker was killed. */
type Fate = Outcome | "lost" | "unfinished"

interface History {
  readonly expected: Expected
  /** By the number of the attempt. */
  readonly fates: ReadonlyMap<number, Fate>
}

const keyOf = ({ attempt, jobId }: Running): string => `${jobId}/${attempt}`

/**
 * The attempts the killed worker held: all that ran then, but for those that a worker still alive has recorded. (Those
 * it had claimed and not begun are in no record at all.)
 */
const lostAttempts = ({ attempts, killed }: Evidence): ReadonlyArray<Running> => {
  const others = new Set(attempts.filter(({ worker }) => worker !== killed.worker).map(keyOf))
  return killed.running.filter((running) => !others.has(keyOf(running)))
}

const historiesOf = (evidence: Evidence): ReadonlyMap<string, History> => {
  const fates = new Map<string, Map<number, Fate>>(evidence.expected.map(({ id }) => [id, new Map()]))
  for (const { attempt, jobId, outcome } of evidence.attempts) fates.get(jobId)?.set(attempt, outcome ?? "unfinished")
  for (const { attempt, jobId } of lostAttempts(evidence)) fates.get(jobId)?.set(attempt, "lost")
  return new Map(evidence.expected.map((expected) => [expected.id, { expected, fates: fates.get(expected.id)! }]))
}

/** The attempt that ends the job: the first that can and was not lost, or the last there may be. */
const lastAttempt = ({ expected, fates }: History): number => {
  let attempt = expected.decidedBy
  while (fates.get(attempt) === "lost" && attempt < expected.maxAttempts) attempt += 1
  return attempt
}

const endOf = ({ expected, fates }: History): End | undefined => {
  const attempt = lastAttempt({ expected, fates })
  const fate = fates.get(attempt)
  switch (fate) {
    case "completed":
    case "cancelled":
    case "failed":
      return fate
    case "retry":
    case "lost":
      return attempt === expected.maxAttempts ? "failed" : undefined
    default:
      return undefined
  }
}

// Figures

const count = <A>(items: Iterable<A>, predicate: (item: A) => boolean): number => {
  let found = 0
  for (const item of items) if (predicate(item)) found += 1
  return found
}

const sum = <A>(items: Iterable<A>, value: (item: A) => number): number => {
  let total = 0
  for (const item of items) total += value(item)
  return total
}

const rowsOf = ({ expected, stored }: Evidence, histories: ReadonlyMap<string, History>): ReadonlyArray<Row> => {
  const kinds = new Set([...expected, ...stored].map(({ kind }) => kind))
  return [...kinds].map((kind): Row => {
    const known = [...histories.values()].filter((history) => history.expected.kind === kind)
    const found = stored.filter((job) => job.kind === kind)
    const ended = (end: End): Figure => ({
      name: end,
      recorded: count(known, (history) => endOf(history) === end),
      stored: count(found, ({ state }) => state === end)
    })
    return {
      kind,
      figures: [
        { name: "jobs", recorded: known.length, stored: found.length },
        ended("completed"),
        ended("cancelled"),
        ended("failed"),
        {
          name: "attempts",
          recorded: sum(known, ({ fates }) => fates.size),
          stored: sum(found, ({ attempt }) => attempt)
        }
      ]
    }
  })
}

const factsOf = (evidence: Evidence, histories: ReadonlyMap<string, History>): ReadonlyArray<Figure> => {
  const { attempts, expected, killed, orders, stored } = evidence
  const delayed = expected.filter(({ delayMillis }) => delayMillis > 0)
  const begun = new Map<string, number>()
  for (const { begunAtMillis, jobId } of attempts) {
    begun.set(jobId, Math.min(begunAtMillis, begun.get(jobId) ?? Infinity))
  }
  const lost = lostAttempts(evidence)
  const byId = new Map(stored.map((job) => [job.id, job]))
  const survived = (attempt: Attempt) => attempt.worker !== killed.worker
  return [
    {
      name: "jobs enqueued in a transaction that rolled back",
      recorded: 0,
      stored: count(evidence.regretted, (id) => byId.has(id))
    },
    { name: "orders, each with the job that confirms it", ...orders },
    {
      name: "jobs completed after more than one attempt",
      recorded: count(histories.values(), (history) => endOf(history) === "completed" && history.fates.size > 1),
      stored: count(stored, ({ attempt, state }) => state === "completed" && attempt > 1)
    },
    {
      name: "jobs enqueued for later that waited until then",
      recorded: delayed.length,
      stored: count(
        delayed,
        ({ delayMillis, id }) => (begun.get(id) ?? 0) - (byId.get(id)?.createdAtMillis ?? 0) >= delayMillis
      )
    },
    {
      name: `attempts the killed ${killed.worker} held, now rescued`,
      recorded: lost.length,
      stored: sum(stored, ({ rescued }) => rescued.length)
    },
    {
      name: "of these, run again by another worker",
      recorded: count(
        lost,
        (it) => attempts.some((other) => other.jobId === it.jobId && other.attempt > it.attempt && survived(other))
      ),
      stored: count(lost, ({ attempt, jobId }) => (byId.get(jobId)?.attempt ?? 0) > attempt)
    },
    {
      name: "attempts that ran twice",
      recorded: 0,
      stored: attempts.length - new Set(attempts.map(({ fence }) => fence)).size
    }
  ]
}

// Job by job: figures may agree although the jobs do not

const jobDifferences = (evidence: Evidence, histories: ReadonlyMap<string, History>): ReadonlyArray<string> => {
  const { expected, killed, stored } = evidence
  const byId = new Map(stored.map((job) => [job.id, job]))
  return [
    ...stored.filter(({ id }) => !histories.has(id)).map(({ id, kind }) => `job ${id} (${kind}) was never enqueued`),
    ...expected.flatMap(({ id, kind }) => {
      const wanted = describe(histories.get(id)!)
      const job = byId.get(id)
      const found = job === undefined ? "missing" : `${job.state} after ${attemptsOf(job.attempt, job.rescued)}`
      return wanted === found ? [] : [`job ${id} (${kind}) should be ${wanted}, and is ${found}`]
    }),
    ...(lostAttempts(evidence).length === 0 ? [`${killed.worker} held nothing when it was killed`] : [])
  ]
}

/** How the job must have ended, and what speaks against it in the program's own record. */
const describe = (history: History): string => {
  const { expected, fates } = history
  const last = lastAttempt(history)
  const lost = [...fates].filter(([, fate]) => fate === "lost").map(([attempt]) => attempt)
  const agrees = endOf(history) === expected.ends && fates.size === last
  const complaint = agrees ? "" : ` (but its handlers recorded: ${[...fates.values()].join(", ") || "nothing"})`
  return `${expected.ends} after ${attemptsOf(last, lost)}${complaint}`
}

const attemptsOf = (attempts: number, rescued: ReadonlyArray<number>): string =>
  `${attempts} ${attempts === 1 ? "attempt" : "attempts"}${
    rescued.length === 0 ? "" : `, number ${rescued.join(", ")} rescued`
  }`
