import { abortedChannel, idleLock, wakeChannel } from "@awa/model/Locks"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Pg from "pg"
import type { Event, MarkResult, Service } from "../Notifier.js"
import type { Signal } from "../Signals.js"
import * as Loop from "./loop.js"
import * as Pacing from "./pacing.js"
import * as PgConnection from "./pgConnection.js"

/** A dead network says nothing, so we ask. */
const pingMillis = 10_000

/** Between the loss of a connection and the next. */
const reconnectMillis = 100

/**
 * A notifier on one connection of its own for all queues of a worker: it listens there and holds the idle marks there,
 * so that a mark never outlives the ear behind it.
 */
export const make = (options: {
  readonly config: Pg.ClientConfig
  readonly schema: string
  readonly signal: (signal: Signal) => void
}): Effect.Effect<Service, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { config, schema, signal } = options
    const scope = yield* Effect.scope
    const subscribers = new Map<string, (event: Event) => void>()
    let connection: PgConnection.PgConnection | null = null
    let marks = new Set<string>()

    const aborted = abortedChannel(schema)
    const owners = new Map<string, (fences: ReadonlySet<string>) => void>()

    const hear = (channel: string, payload: string) =>
      channel === aborted ? hearAborted(payload) : subscribers.get(channel)?.("notified")

    /** `<owner> <fence>,<fence>,...` */
    const hearAborted = (payload: string) => {
      const [owner = "", fences = ""] = payload.split(" ")
      owners.get(owner)?.(new Set(fences.split(",")))
    }

    const connected = (opened: PgConnection.PgConnection) => {
      connection = opened
      signal({ _tag: "listening", up: true })
      for (const onEvent of subscribers.values()) onEvent("connected")
    }

    const disconnected = () => {
      if (connection === null) return
      connection = null
      marks = new Set()
      signal({ _tag: "listening", up: false })
    }

    const listen = (on: PgConnection.PgConnection, channel: string) =>
      on.query(`listen ${Pg.escapeIdentifier(channel)}`)

    /**
     * Who subscribes meanwhile finds no connection to listen on and is left to us: we are connected once nobody is left,
     * and between looking and saying so nothing else runs.
     */
    const listenToAll = (
      on: PgConnection.PgConnection,
      heard: ReadonlySet<string>
    ): Effect.Effect<void, PgConnection.ConnectionLost> =>
      Effect.suspend(() => {
        const channels = new Set([aborted, ...subscribers.keys()])
        const left = [...channels].filter((channel) => !heard.has(channel))
        if (left.length > 0) {
          return Effect.zipRight(
            Effect.forEach(left, (channel) => listen(on, channel), { discard: true }),
            listenToAll(on, channels)
          )
        }
        connected(on)
        return Effect.void
      })

    const open = Effect.gen(function*() {
      const opened = yield* PgConnection.open(config, hear)
      yield* Effect.addFinalizer(() => Effect.sync(disconnected))
      yield* listenToAll(opened, new Set())
      return opened
    })

    /** Lasts as long as the connection. */
    const hold = (opened: PgConnection.PgConnection) => {
      const ping = Effect.forever(Effect.zipRight(Pacing.sleep(pingMillis), opened.query("select 1")))
      return Effect.flip(Effect.raceFirst(ping, opened.ended)).pipe(
        Effect.flatMap((loss) =>
          Effect.logWarning(`The connection for notifications was lost, polling until it is back: ${loss}`)
        ),
        Effect.zipRight(Effect.sync(disconnected)),
        Effect.zipRight(Pacing.sleep(reconnectMillis))
      )
    }

    yield* Loop.forkSessions({ name: "listener", open, hold, signal })

    /** Runs on the connection there is; `otherwise` if there is none, or it breaks. */
    const onConnection = <A>(
      use: (connection: PgConnection.PgConnection) => Effect.Effect<A, PgConnection.ConnectionLost>,
      otherwise: A
    ): Effect.Effect<A> =>
      Effect.suspend(() => connection === null ? Effect.succeed(otherwise) : use(connection)).pipe(
        Effect.catchAll(() => Effect.succeed(otherwise))
      )

    const mark = (queue: string) =>
      onConnection<MarkResult>((on) => {
        if (marks.has(queue)) return Effect.succeed("held")
        return Effect.map(
          on.query("select pg_try_advisory_lock_shared($1, $2) as held", idleLock(schema, queue)),
          ([row]) => {
            if (row?.["held"] !== true) return "contended"
            if (on !== connection) return "unavailable"
            marks.add(queue)
            return "held"
          }
        )
      }, "unavailable")

    // A session lock counts: should the next `mark` overtake the unlock, it is held just once in the end.
    const unlock = (queue: string) =>
      onConnection<unknown>(
        (on) => on.query("select pg_advisory_unlock_shared($1, $2)", idleLock(schema, queue)),
        undefined
      )

    return {
      isListening: () => connection !== null,
      subscribe: (queue, onEvent) =>
        Effect.suspend(() => {
          const channel = wakeChannel(schema, queue)
          subscribers.set(channel, onEvent)
          return Effect.zipRight(
            Effect.addFinalizer(() => Effect.sync(() => subscribers.delete(channel))),
            onConnection<unknown>((on) => listen(on, channel), undefined)
          )
        }),
      subscribeAborted: (owner, onAborted) =>
        Effect.suspend(() => {
          owners.set(owner, onAborted)
          return Effect.addFinalizer(() => Effect.sync(() => owners.delete(owner)))
        }),
      mark: (queue) => Effect.uninterruptible(mark(queue)),
      unmark: (queue) => Effect.suspend(() => marks.delete(queue) ? Effect.forkIn(unlock(queue), scope) : Effect.void)
    }
  })
