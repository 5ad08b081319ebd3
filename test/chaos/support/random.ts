/** Numbers that look random and are the same for the same seed. */
export const seeded = (seed: number) => {
  let state = seed >>> 0
  /** A whole number from `from` to `to`. */
  return (from: number, to: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return from + Math.floor((state / 2 ** 32) * (to - from + 1))
  }
}

/** How much chaos: `AWA_CHAOS_ROUNDS` (default 1), each with other choices, beginning with `AWA_CHAOS_SEED`. */
export const rounds: ReadonlyArray<number> = Array.from(
  { length: Number(process.env["AWA_CHAOS_ROUNDS"] ?? 1) },
  (_, round) => Number(process.env["AWA_CHAOS_SEED"] ?? 20_250_101) + round
)
