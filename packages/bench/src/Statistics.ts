/** The value below which the share `p` (0 to 1) of `values` lies: the nearest rank. */
export const percentile = (values: ReadonlyArray<number>, p: number): number => {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(p * sorted.length) - 1))] ?? Number.NaN
}

export const median = (values: ReadonlyArray<number>): number => {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  const upper = sorted[middle] ?? Number.NaN
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? Number.NaN)) / 2
}

/** Numbers in [0, 1), the same for the same seed (mulberry32): every system gets the same arrivals. */
export const makeRandom = (seed: number) => {
  let state = seed >>> 0
  return (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** Arrival times in milliseconds of a Poisson process with `rate` arrivals a second. */
export const poissonArrivals = (rate: number, seconds: number, seed: number): ReadonlyArray<number> => {
  const random = makeRandom(seed)
  const arrivals: Array<number> = []
  for (let at = 0;;) {
    at += (-Math.log(1 - random()) / rate) * 1000
    if (at >= seconds * 1000) return arrivals
    arrivals.push(at)
  }
}

/** A clock that all processes of one machine share. */
export const monotonicMillis = (): number => Number(process.hrtime.bigint()) / 1e6
