import { EmbeddedPostgres } from "@awa/embedded"
import type { Effect, Layer, Scope } from "effect"
import { expect, test } from "tstyche"

test("a server needs a scope, its layer nothing", () => {
  expect(EmbeddedPostgres.make()).type.toBe<
    Effect.Effect<EmbeddedPostgres.Service, EmbeddedPostgres.EmbeddedPostgresError, Scope.Scope>
  >()
  expect(EmbeddedPostgres.layer()).type.toBe<
    Layer.Layer<EmbeddedPostgres.EmbeddedPostgres, EmbeddedPostgres.EmbeddedPostgresError>
  >()
})

test("options that mean nothing do not compile", () => {
  expect(EmbeddedPostgres.make).type.not.toBeCallableWith({ version: 14 })
  expect(EmbeddedPostgres.make).type.not.toBeCallableWith({ fsnyc: false })
})
