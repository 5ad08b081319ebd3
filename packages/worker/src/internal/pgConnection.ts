import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Pg from "pg"
import * as Pacing from "./pacing.js"

/** A statement or the connection under it failed: the connection is of no use any more. */
export class ConnectionLost {
  readonly _tag = "ConnectionLost"
  constructor(readonly cause: unknown) {}
  toString(): string {
    return this.cause instanceof Error ? this.cause.message : String(this.cause)
  }
}

/** One connection of node-postgres that nobody else uses. Statements run one after the other. */
export interface PgConnection {
  readonly query: (
    text: string,
    values?: ReadonlyArray<unknown>
  ) => Effect.Effect<ReadonlyArray<Record<string, unknown>>, ConnectionLost>
  /** Fails when the connection ends. */
  readonly ended: Effect.Effect<never, ConnectionLost>
}

/** What the connection hears; called outside any fiber. */
export type OnNotification = (channel: string, payload: string) => void

/**
 * How long any statement on such a connection may take, by the clock of the driver: they are all trivial, so a longer
 * silence is that of a dead network.
 */
const queryTimeoutMillis = 5_000

/** A goodbye that takes longer is not waited for. */
const endMillis = 1_000

/**
 * The server notices by itself, within half a minute, when this client is gone without a word: its locks must not
 * outlive it for long. (Without effect on Unix sockets.)
 */
const sessionSettings = `
  set tcp_keepalives_idle = 15;
  set tcp_keepalives_interval = 5;
  set tcp_keepalives_count = 3;
  set tcp_user_timeout = '30s'
`

export const open = (
  config: Pg.ClientConfig,
  onNotification?: OnNotification
): Effect.Effect<PgConnection, ConnectionLost, Scope.Scope> =>
  Effect.gen(function*() {
    const client = new Pg.Client({ ...config, keepAlive: true, query_timeout: queryTimeoutMillis })
    // Without a listener an error event would end the process.
    client.on("error", () => {})
    if (onNotification !== undefined) {
      client.on("notification", ({ channel, payload }) => onNotification(channel, payload ?? ""))
    }
    const ended = yield* Deferred.make<never, ConnectionLost>()
    const closed = new ConnectionLost(new Error("The connection was closed"))
    client.once("end", () => Deferred.unsafeDone(ended, Effect.fail(closed)))
    const turns = yield* Effect.makeSemaphore(1)

    const query: PgConnection["query"] = (text, values) =>
      turns.withPermits(1)(
        Effect.tryPromise({
          try: async () => (await client.query(text, values === undefined ? undefined : [...values])).rows,
          catch: (cause) => new ConnectionLost(cause)
        })
      )

    yield* Effect.acquireRelease(
      Effect.tryPromise({ try: () => client.connect(), catch: (cause) => new ConnectionLost(cause) }),
      () => Pacing.atMost(Effect.interruptible(Effect.promise(() => client.end().catch(() => {}))), endMillis)
    )
    // Some platforms do not know all of them.
    yield* Effect.ignore(query(sessionSettings))

    return {
      query,
      ended: Deferred.await(ended)
    }
  })
