import { StorageEngine } from "@awa/model"
import { Conformance, TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { Cause, Effect, Exit, ManagedRuntime, Option } from "effect"
import { afterAll, assert, describe, it } from "vitest"
import { type Mutant, mutants } from "./fixtures/mutants.js"

const storage = TestDatabase.layerQueueStorage()
const shared = ManagedRuntime.make(storage)
afterAll(() => shared.dispose())

const spoil = (mutant: Mutant) =>
  Effect.zipWith(StorageEngine.StorageEngine, SqlClient.SqlClient, (engine, sql) => (
    { ...engine, ...mutant.spoil(engine, sql) }
  ))

/** How the check ends, and never fails itself: a database is kept only for a test that fails. */
const outcome = (mutant: Mutant, { alone, run }: Conformance.Check) => {
  const spoilt = Effect.exit(Effect.provideServiceEffect(run, StorageEngine.StorageEngine, spoil(mutant)))
  return alone ? Effect.runPromise(Effect.provide(spoilt, storage)) : shared.runPromise(spoilt)
}

const checkNamed = (name: string): Conformance.Check => {
  const check = Conformance.checks.find((check) => check.name === name)
  assert.isDefined(check, `no check is called "${name}"`)
  return check
}

describe("the conformance suite catches an engine that", () => {
  for (const mutant of mutants) {
    it(mutant.does, async () => {
      for (const name of mutant.caughtBy) {
        const exit = await outcome(mutant, checkNamed(name))
        const failure = Exit.isFailure(exit) ? Option.getOrUndefined(Cause.failureOption(exit.cause)) : undefined
        const end = Exit.isFailure(exit) ? Cause.pretty(exit.cause) : "it held"
        assert.strictEqual(failure?._tag, "CheckFailed", `"${name}" should have been refuted, but: ${end}`)
      }
    })
  }
})
