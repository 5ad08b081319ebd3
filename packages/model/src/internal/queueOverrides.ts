/**
 * What operators may override of a queue's settings in running workers, as it is stored.
 */
import * as Duration from "effect/Duration"

/** The same bounds everywhere: the settings of a worker, the operators' functions, what is read back. */
export const maxClaimBatchSize = 10_000

/** @internal */
export const longestPoll = Duration.days(1)

/** @internal */
const longestDeadline = Duration.days(36_525)

/** @internal */
export interface Overrides {
  readonly pollInterval?: Duration.Duration
  readonly claimBatchSize?: number
  readonly deadline?: Duration.Duration
}

/**
 * What is right of stored overrides, and the names of what is not: plain SQL of the owner can store anything.
 *
 * @internal
 */
export const fromJson = (json: string): { readonly overrides: Overrides; readonly refused: ReadonlyArray<string> } => {
  const overrides: { -readonly [K in keyof Overrides]: Overrides[K] } = {}
  const refused: Array<string> = []
  for (const [name, value] of Object.entries(JSON.parse(json) as Record<string, unknown>)) {
    if (typeof value !== "number") {
      refused.push(name)
    } else if (name === "poll_interval_ms" && value >= 1 && value <= Duration.toMillis(longestPoll)) {
      overrides.pollInterval = Duration.millis(value)
    } else if (
      name === "claim_batch_size" && Number.isInteger(value) && value >= 1 && value <= maxClaimBatchSize
    ) {
      overrides.claimBatchSize = value
    } else if (name === "deadline_ms" && value >= 1 && value <= Duration.toMillis(longestDeadline)) {
      overrides.deadline = Duration.millis(value)
    } else {
      refused.push(name)
    }
  }
  return { overrides, refused }
}
