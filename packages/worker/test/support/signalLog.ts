import { type Signal, Signals } from "@awa/worker/Signals"
import { Deferred, type Duration, Effect, Layer, TestClock, TestServices } from "effect"

type Tag = Signal["_tag"]
type Of<T extends Tag> = Extract<Signal, { readonly _tag: T }>

/** Moves the test clock step by step for as long as something takes. */
export const advancing = <A, E, R>(
  step: Duration.DurationInput,
  self: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> => Effect.raceFirst(self, Effect.interruptible(Effect.forever(TestClock.adjust(step))))

/** Keeps what a worker signals, and lets a test wait for it. */
export const make = () => {
  const seen: Array<Signal> = []
  const waiting: Array<{ readonly accepts: () => boolean; readonly done: Deferred.Deferred<void> }> = []

  const receive = (signal: Signal) => {
    seen.push(signal)
    for (const waiter of [...waiting]) {
      if (!waiter.accepts()) continue
      waiting.splice(waiting.indexOf(waiter), 1)
      Deferred.unsafeDone(waiter.done, Effect.void)
    }
  }

  const all = <T extends Tag>(tag: T): ReadonlyArray<Of<T>> =>
    seen.filter((signal): signal is Of<T> => signal._tag === tag)

  /** Waits until the condition holds; it is looked at after every signal. */
  const until = (what: string, accepts: () => boolean): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (accepts()) return Effect.void
      const done = Deferred.unsafeMake<void>(undefined as never)
      waiting.push({ accepts, done })
      return Deferred.await(done).pipe(
        Effect.timeoutFail({
          duration: "10 seconds",
          onTimeout: () => new Error(`Waited in vain until ${what}. Signals: ${seen.map((s) => s._tag).join(" ")}`)
        }),
        Effect.orDie,
        TestServices.provideLive
      )
    })

  /** Moves the test clock step by step until the condition holds. */
  const advanceUntil = (what: string, step: Duration.DurationInput, accepts: () => boolean): Effect.Effect<void> =>
    advancing(step, until(what, accepts))

  return {
    seen,
    all,
    until,
    advanceUntil,
    /** Waits for so many signals of one kind, from the beginning. */
    untilCount: (tag: Tag, count: number) =>
      until(`${count} × ${tag}`, () => seen.filter((signal) => signal._tag === tag).length >= count),
    /** Waits for a signal that was not there yet. */
    next: <T extends Tag>(tag: T, accepts: (signal: Of<T>) => boolean = () => true): Effect.Effect<Of<T>> =>
      Effect.suspend(() => {
        const from = seen.length
        const find = () =>
          seen.slice(from).find((signal): signal is Of<T> => signal._tag === tag && accepts(signal as Of<T>))
        return Effect.map(until(`the next ${tag}`, () => find() !== undefined), () => find()!)
      }),
    /** All acknowledged outcomes. */
    flushed: () => all("flushed").flatMap(({ results }) => results),
    receive,
    layer: Layer.succeed(Signals, receive)
  }
}
