/**
 * What every storage engine must do, as a suite that any engine can be put through.
 *
 * The checks see an engine as a worker, a producer and an operator do: through the port `StorageEngine`, through
 * `Producer`, and through the view `jobs`. Time in them is `TestClock`'s, the database is real.
 *
 * @since 0.1.0
 */
import type { StorageEngine } from "@awa/model/StorageEngine"
import type * as SqlClient from "@effect/sql/SqlClient"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import { changing } from "./internal/conformance/changing.js"
import { claiming } from "./internal/conformance/claim.js"
import { completing } from "./internal/conformance/complete.js"
import { concurrently } from "./internal/conformance/concurrency.js"
import { enqueueing } from "./internal/conformance/enqueue.js"
import * as harness from "./internal/conformance/harness.js"
import { living } from "./internal/conformance/life.js"
import { heartbeats, promoting, rescuing } from "./internal/conformance/liveness.js"
import { ordering } from "./internal/conformance/order.js"
import { outcomesOfAttempts } from "./internal/conformance/outcomes.js"
import { probing } from "./internal/conformance/probe.js"
import { telling } from "./internal/conformance/time.js"
import { beingUnique } from "./internal/conformance/unique.js"

/**
 * One statement about engines, and the program that finds out whether it holds. The program brings its own clock.
 *
 * @since 0.1.0
 * @category models
 */
export interface Check {
  /** A sentence. */
  readonly name: string
  /**
   * Whether it needs a database that nobody used before: engines promote and rescue across all queues. Others share one,
   * one after the other: each has queues of its own.
   */
  readonly alone: boolean
  readonly run: Effect.Effect<void, CheckError, StorageEngine | SqlClient.SqlClient>
}

/**
 * The engine did something else than the check says.
 *
 * @since 0.1.0
 * @category errors
 */
export type CheckFailed = harness.CheckFailed

/**
 * @since 0.1.0
 * @category errors
 */
export const CheckFailed = harness.CheckFailed

/**
 * How a check ends that does not succeed: refuted, or unable to go on.
 *
 * @since 0.1.0
 * @category errors
 */
export type CheckError = harness.CheckError

/**
 * All checks.
 *
 * @since 0.1.0
 * @category checks
 */
export const checks: ReadonlyArray<Check> = [
  enqueueing,
  claiming,
  ordering,
  completing,
  outcomesOfAttempts,
  heartbeats,
  promoting,
  rescuing,
  probing,
  telling,
  living,
  beingUnique,
  changing,
  concurrently
].flat()

/**
 * What `suite` needs of a test runner, as vitest has it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Runner {
  readonly describe: (name: string, body: () => void) => unknown
  readonly it: (name: string, test: () => Promise<void>) => unknown
  readonly afterAll: (release: () => Promise<void>) => unknown
}

/**
 * Registers every check as a test of its own. The layer brings the engine to be tested on an empty, migrated database, as
 * `TestDatabase.layerQueueStorage()` does. It is built several times: see `Check.alone`.
 *
 * @example
 * ```ts
 * import { Conformance, TestDatabase } from "@awa/testing"
 * import { afterAll, describe, it } from "vitest"
 *
 * Conformance.suite("queue storage", TestDatabase.layerQueueStorage(), { afterAll, describe, it })
 * ```
 *
 * @since 0.1.0
 * @category checks
 */
export const suite = <E>(
  name: string,
  engine: Layer.Layer<StorageEngine | SqlClient.SqlClient, E>,
  runner: Runner
): void => {
  runner.describe(name, () => {
    const shared = ManagedRuntime.make(engine)
    runner.afterAll(() => shared.dispose())
    for (const check of checks) {
      runner.it(
        check.name,
        () => check.alone ? Effect.runPromise(Effect.provide(check.run, engine)) : shared.runPromise(check.run)
      )
    }
  })
}
