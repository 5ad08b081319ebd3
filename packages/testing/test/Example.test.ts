import { Job, StorageEngine, TimeSource } from "@awa/model"
import { Jobs, TestDatabase } from "@awa/testing"
import { assert, it } from "@effect/vitest"
import { Duration, Effect, Layer, Schema, TestClock } from "effect"

const SendEmail = Job.make("send_email", { payload: { to: Schema.String }, queue: "email" })

const TestLive = Layer.merge(TestDatabase.layerQueueStorage(), TimeSource.TimeSource.layerFromClock)

const claim = Effect.flatMap(StorageEngine.StorageEngine, (engine) =>
  engine.claim({
    queue: "email",
    limit: 10,
    owner: "00000000-0000-4000-8000-000000000001",
    nonce: "1",
    deadline: Duration.minutes(5),
    durability: "async"
  }))

it.effect("a reminder is sent in a day, not before", () =>
  Effect.gen(function*() {
    const engine = yield* StorageEngine.StorageEngine
    const { id } = yield* SendEmail.enqueue({ to: "ada@example.com" }, { delay: "1 day" })

    yield* TestClock.adjust("23 hours")
    assert.strictEqual(yield* engine.promote(10), 0)
    assert.strictEqual((yield* Jobs.get(id)).state, "scheduled")

    yield* TestClock.adjust("1 hour")
    assert.strictEqual(yield* engine.promote(10), 1)
    const [job] = yield* claim
    assert.deepStrictEqual(job?.args, { to: "ada@example.com" })
    assert.strictEqual((yield* Jobs.countByState({ queue: "email" })).running, 1)
  }).pipe(Effect.provide(TestLive)))
