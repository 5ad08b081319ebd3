/**
 * A job in a row table of queue storage, whose envelope holds what most jobs have not.
 */
import { JobId } from "../JobRow.js"
import * as operator from "./operator.js"

/** @internal */
export interface Row {
  readonly job_id: string
  readonly kind: string
  readonly queue: string
  readonly args: string
  readonly priority: string
  readonly attempt: string
  readonly max_attempts: string
  readonly run_lease: string
  readonly run_at: string
  readonly created_at: string
  readonly attempted_at: string | null
  readonly envelope: string | null
}

/** @internal */
export const columns: string = [
  "kind, queue",
  operator.columns(["job_id", "args", "priority", "attempt", "max_attempts", "run_lease", "envelope"]),
  ...["run_at", "created_at", "attempted_at"].map(operator.millis)
].join(", ")

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
}

/** @internal */
export const fields = (row: Row) => {
  const envelope: Envelope = JSON.parse(row.envelope ?? "{}")
  return {
    id: JobId.make(BigInt(row.job_id)),
    kind: row.kind,
    queue: row.queue,
    args: JSON.parse(row.args) as unknown,
    priority: Number(row.priority),
    attempt: Number(row.attempt),
    maxAttempts: Number(row.max_attempts),
    runLease: BigInt(row.run_lease),
    runAt: operator.dateOf(row.run_at)!,
    createdAt: operator.dateOf(row.created_at)!,
    attemptedAt: operator.dateOf(row.attempted_at),
    metadata: envelope.metadata ?? {},
    tags: envelope.tags ?? [],
    errors: (envelope.errors ?? []).map((entry) => ({ ...entry, at: new Date(entry.at) })),
    progress: envelope.progress,
    orderingKey: envelope.ordering_key
  }
}
