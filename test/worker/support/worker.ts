import { Awa, AwaLive, Job, Signals } from "awa"

import { Context, Deferred, Effect, Layer, Schema, TestServices } from "effect"

export const Greet = Job.make("greet", { payload: { name: Schema.String } })

type Tag = Signals.Signal["_tag"]

/** Keeps what a worker signals, and lets a test wait for it. */
const makeLog = () => {
  const seen: Array<Signals.Signal> = []
  const waiting = new Map<Deferred.Deferred<void>, () => boolean>()

  const receive = (signal: Signals.Signal) => {
    seen.push(signal)
    for (const [done, accepts] of waiting) if (accepts()) Deferred.unsafeDone(done, Effect.void)
  }

  const until = (what: string, accepts: () => boolean): Effect.Effect<void> =>
    Effect.acquireUseRelease(
      Effect.tap(Deferred.make<void>(), (done) => Effect.sync(() => waiting.set(done, accepts))),
      (done) => accepts() ? Effect.void : Deferred.await(done),
      (done) => Effect.sync(() => waiting.delete(done))
    ).pipe(
      Effect.timeoutFail({
        duration: "30 seconds",
        onTimeout: () => new Error(`Waited in vain until ${what}. Signals: ${seen.map(({ _tag }) => _tag).join(" ")}`)
      }),
      Effect.orDie,
      TestServices.provideLive
    )

  const all = <T extends Tag>(tag: T) =>
    seen.filter((signal): signal is Extract<Signals.Signal, { readonly _tag: T }> => signal._tag === tag)

  return {
    seen,
    receive,
    until,
    all,
    flushed: () => all("flushed").flatMap(({ results }) => results),
    /** Waits for one more signal of a kind than there are. */
    next: (tag: Tag) =>
      Effect.suspend(() => {
        const count = all(tag).length
        return until(`the next ${tag}`, () => all(tag).length > count)
      })
  }
}

/** Starts a worker that lasts as long as the scope. */
export const start = <E, R, Kinds extends string>(builder: Awa.Builder<E, R, Kinds>) =>
  Effect.gen(function*() {
    const signals = makeLog()
    const context: Context.Context<Awa.Awa> = yield* Layer.build(AwaLive(builder)).pipe(
      Effect.provideService(Signals.Signals, signals.receive)
    )
    return { awa: Context.get(context, Awa.Awa), signals }
  })
