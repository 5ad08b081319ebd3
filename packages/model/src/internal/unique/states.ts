/**
 * In which states a job holds its key.
 */
import { isTerminal, JobState } from "../../JobState.js"

/** The bits of a mask, the first being bit 0. */
const bits = [
  "scheduled",
  "available",
  "running",
  "completed",
  "retryable",
  "failed",
  "cancelled",
  "waiting_external"
] as const satisfies ReadonlyArray<JobState>

/**
 * Where a job may go from a state that is not final, moved by a worker, the clock or an operator.
 *
 * @internal
 */
export const transitions: { readonly [State in JobState]?: ReadonlyArray<JobState> } = {
  scheduled: ["available", "cancelled"],
  available: ["running", "scheduled", "cancelled"],
  running: ["completed", "available", "scheduled", "retryable", "failed", "cancelled", "waiting_external"],
  retryable: ["available", "cancelled"],
  waiting_external: ["running", "available", "completed", "retryable", "failed", "cancelled"]
}

/** @internal */
export const live: ReadonlyArray<JobState> = JobState.literals.filter((state) => !isTerminal(state))

/** @internal Eight bits, as SQL writes them. */
export const mask = (states: ReadonlyArray<JobState>): string =>
  bits.map((state) => states.includes(state) ? "1" : "0").join("")

/**
 * A step with which a job that holds no key comes into a state in which it must hold one, if there is any.
 *
 * @internal
 */
export const reentry = (
  states: ReadonlyArray<JobState>
): { readonly from: JobState; readonly to: JobState } | undefined => {
  for (const from of live) {
    const to = states.includes(from) ? undefined : transitions[from]!.find((state) => states.includes(state))
    if (to !== undefined) return { from, to }
  }
  return undefined
}
