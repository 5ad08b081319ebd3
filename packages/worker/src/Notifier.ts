/**
 * How a worker learns that a queue has work without asking all the time.
 *
 * Notifications only shorten the wait: a worker polls besides, and loses nothing when they fail.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"

/**
 * - `notified`: the queue may have work.
 * - `connected`: the connection is up, for the first time or again. Notifications may have been missed and marks are
 *   gone.
 *
 * @since 0.1.0
 * @category models
 */
export type Event = "notified" | "connected"

/**
 * The answer to setting an idle mark: `contended` when a producer was looking for it at that moment, `unavailable` when
 * nobody listens.
 *
 * @since 0.1.0
 * @category models
 */
export type MarkResult = "held" | "contended" | "unavailable"

/**
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** Whether notifications arrive at the moment. */
  readonly isListening: () => boolean
  /** Calls back for every event of a queue until the scope closes. The callback must neither block nor throw. */
  readonly subscribe: (queue: string, onEvent: (event: Event) => void) => Effect.Effect<void, never, Scope.Scope>
  /**
   * Calls back with the fences of attempts of a worker that an operator ended, until the scope closes. The callback must
   * neither block nor throw. What is missed the next heartbeat tells.
   */
  readonly subscribeAborted: (
    owner: string,
    onAborted: (fences: ReadonlySet<string>) => void
  ) => Effect.Effect<void, never, Scope.Scope>
  /**
   * Marks a queue as idle: from now on producers notify when they add to it. A producer that looked before the mark was
   * set does not.
   */
  readonly mark: (queue: string) => Effect.Effect<MarkResult>
  /** Takes the mark away, soon. */
  readonly unmark: (queue: string) => Effect.Effect<void>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Notifier extends Context.Tag("@awa/worker/Notifier")<Notifier, Service>() {}

/**
 * Hears nothing: polling does it all. For databases behind a transaction-mode pooler.
 *
 * @since 0.1.0
 * @category constructors
 */
export const pollOnly: Service = {
  isListening: () => false,
  subscribe: () => Effect.void,
  subscribeAborted: () => Effect.void,
  mark: () => Effect.succeed("unavailable"),
  unmark: () => Effect.void
}

/**
 * @since 0.1.0
 * @category layers
 */
export const layerPollOnly: Layer.Layer<Notifier> = Layer.succeed(Notifier, pollOnly)
