import { DatabaseError, ForeignDatabase } from "@awa/model/Errors"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { Attempt, Attempts } from "../src/internal/attempts.js"
import * as Completion from "../src/internal/completion.js"
import * as Outcome from "../src/internal/outcome.js"
import { Permits } from "../src/internal/permits.js"
import * as MemoryEngine from "./support/memoryEngine.js"
import * as SignalLog from "./support/signalLog.js"

const databaseError = (sqlState: string | null) =>
  new DatabaseError({ operation: "complete", sqlState, cause: new Error("down") })

/** A completer with running attempts. */
const setUp = (options: { readonly jobs: number; readonly batchSize?: number }) =>
  Effect.gen(function*() {
    const engine = MemoryEngine.make()
    const signals = SignalLog.make()
    const attempts = new Attempts()
    const completer = yield* Completion.make({
      engine: engine.service,
      owner: "w",
      batchSize: options.batchSize ?? 512,
      deadLetters: { enabled: false, queues: {} },
      attempts,
      signal: signals.receive
    })
    engine.add(...Array.from({ length: options.jobs }, () => ({ kind: "greet" })))
    const claimed = yield* engine.service.claim({
      queue: "default",
      limit: options.jobs,
      owner: "w",
      nonce: "1",
      deadline: null,
      durability: "async"
    })
    const queue = { name: "default", permits: new Permits(options.jobs), deadlineMillis: Infinity }
    const running = claimed.map((job) => new Attempt(job, queue, 0))
    for (const attempt of running) attempts.start(attempt)
    const complete = (...which: ReadonlyArray<Attempt>) => {
      for (const attempt of which) {
        attempts.stopRunning(attempt)
        completer.submit(attempt, Outcome.completed)
      }
    }
    const sizes = () => engine.calls.filter(({ operation }) => operation === "complete").map(({ size }) => size)
    return { engine, signals, attempts, completer, running, complete, sizes }
  })

describe("completion", () => {
  it.scoped("what is handed over together is stored together, up to the size of a batch", () =>
    Effect.gen(function*() {
      const { attempts, complete, completer, running, signals, sizes } = yield* setUp({ jobs: 1100 })
      complete(...running)
      yield* completer.drained
      assert.deepStrictEqual(sizes(), [512, 512, 76])
      assert.isTrue(signals.flushed().every(({ verdict }) => verdict === "accepted"))
      assert.isTrue(running.every(({ fence }) => !attempts.known().has(fence)))
      assert.strictEqual(completer.backlog(), 0)
    }))

  it.scoped("what arrives while a batch is being stored forms the next", () =>
    Effect.gen(function*() {
      const { complete, completer, engine, running, sizes } = yield* setUp({ jobs: 10 })
      const gate = yield* Effect.makeLatch(false)
      engine.before("complete", gate.await)
      complete(running[0]!)
      while (sizes().length === 0) yield* Effect.yieldNow()
      complete(...running.slice(1))
      yield* gate.open
      yield* completer.drained
      assert.deepStrictEqual(sizes(), [1, 9])
    }))

  it.scoped("what a claim has taken along keeps nothing else from being stored", () =>
    Effect.gen(function*() {
      const { attempts, complete, completer, running, signals, sizes } = yield* setUp({ jobs: 5 })
      complete(running[0]!)
      assert.isNull(completer.takeAlong(0))
      const taken = completer.takeAlong(1)!
      assert.deepStrictEqual(taken.completions.map(({ token }) => token.fence), [running[0]!.fence])
      complete(...running.slice(1))
      yield* signals.until("the others are stored", () => signals.flushed().length === 4)
      assert.deepStrictEqual(sizes(), [4])
      assert.strictEqual(completer.backlog(), 1)
      const drained = yield* Effect.fork(completer.drained)
      yield* Effect.yieldNow()
      assert.isNull(drained.unsafePoll())
      yield* taken.stored(["accepted"])
      yield* drained.await
      assert.strictEqual(completer.backlog(), 0)
      assert.isFalse(attempts.known().has(running[0]!.fence))
      assert.deepStrictEqual(sizes(), [4])
    }))

  it.scoped("what a claim took along in vain is stored without it, behind what is being stored", () =>
    Effect.gen(function*() {
      const { attempts, complete, completer, engine, running, signals, sizes } = yield* setUp({ jobs: 4 })
      const gate = yield* Effect.makeLatch(false)
      engine.before("complete", gate.await)
      complete(running[0]!)
      const taken = completer.takeAlong(1)!
      complete(...running.slice(1, 3))
      while (sizes().length === 0) yield* Effect.yieldNow()
      taken.failed()
      complete(running[3]!)
      assert.isNull(completer.takeAlong(100))
      yield* gate.open
      yield* completer.drained
      assert.deepStrictEqual(sizes(), [2, 2])
      assert.strictEqual(signals.flushed().length, 4)
      assert.isTrue(signals.flushed().every(({ verdict }) => verdict === "accepted"))
      assert.isTrue(running.every(({ fence }) => !attempts.known().has(fence)))
    }))

  it.scoped("a batch that fails for a passing reason is stored again and again, and nothing is lost", () =>
    Effect.gen(function*() {
      const { complete, completer, engine, running, signals } = yield* setUp({ jobs: 3 })
      for (const [i, error] of [databaseError(null), databaseError("57P01"), databaseError("55P03")].entries()) {
        engine.before("complete", Effect.fail(error))
        complete(running[i]!)
        yield* signals.advanceUntil("it failed twice", "100 millis", () => signals.all("failed").length === 2 * (i + 1))
        engine.before("complete", Effect.void)
        yield* SignalLog.advancing("1 second", completer.drained)
      }
      assert.deepStrictEqual(engine.states(), ["completed", "completed", "completed"])
    }))

  it.scoped("a lost answer is asked for again and counts once", () =>
    Effect.gen(function*() {
      const { complete, completer, engine, running, signals } = yield* setUp({ jobs: 2 })
      engine.after("complete", Effect.fail(databaseError(null)))
      complete(...running)
      yield* signals.next("failed")
      engine.after("complete", Effect.void)
      yield* SignalLog.advancing("1 second", completer.drained)
      assert.deepStrictEqual(signals.flushed().map(({ verdict }) => verdict), ["repeated", "repeated"])
    }))

  it.scoped("a foreign database is an operator's business: the results wait", () =>
    Effect.gen(function*() {
      const { complete, completer, engine, running, signals } = yield* setUp({ jobs: 1 })
      engine.before("complete", Effect.fail(new ForeignDatabase({ schema: "awa", expected: "1", found: "2" })))
      complete(...running)
      yield* signals.next("failed")
      engine.before("complete", Effect.void)
      yield* SignalLog.advancing("1 second", completer.drained)
      assert.deepStrictEqual(engine.states(), ["completed"])
    }))

  it.scoped("one result the database refuses does not keep the others from being stored", () =>
    Effect.gen(function*() {
      const { attempts, complete, completer, engine, running, signals } = yield* setUp({ jobs: 40 })
      const poison = running[17]!
      const { service } = engine
      const complete_ = service.complete
      Object.assign(service, {
        complete: (owner: string, list: Parameters<typeof complete_>[1]) =>
          list.some(({ token }) => token.fence === poison.fence)
            ? Effect.zipRight(Effect.yieldNow(), Effect.fail(databaseError("22P05")))
            : complete_(owner, list)
      })
      complete(...running)
      yield* completer.drained
      assert.strictEqual(engine.states().filter((state) => state === "completed").length, 39)
      assert.strictEqual(engine.jobs[17]!.state, "running")
      assert.strictEqual(signals.flushed().length, 39)
      // It ran: it must be rescued, which counts the attempt, and not be given back, which does not.
      assert.isTrue(attempts.known().has(poison.fence))
    }))

  const faults = {
    "throws": () => {
      throw new TypeError("cannot be encoded")
    },
    "dies": () => Effect.die("a bug"),
    "exceeds a limit (54)": () => Effect.fail(databaseError("54000")),
    "is refused as data (22)": () => Effect.fail(databaseError("22003"))
  }
  for (const [what, fault] of Object.entries(faults)) {
    it.scoped(`one result that ${what} is given up, the others are stored`, () =>
      Effect.gen(function*() {
        const { complete, completer, engine, running } = yield* setUp({ jobs: 9 })
        const { service } = engine
        const complete_ = service.complete
        Object.assign(service, {
          complete: (owner: string, list: Parameters<typeof complete_>[1]) =>
            list.some(({ token }) => token.fence === running[4]!.fence) ? fault() : complete_(owner, list)
        })
        complete(...running)
        yield* completer.drained
        assert.strictEqual(engine.states().filter((state) => state === "completed").length, 8)
        assert.strictEqual(engine.jobs[4]!.state, "running")
      }))
  }

  it.scoped("says since when it fails, until it works", () =>
    Effect.gen(function*() {
      const { complete, completer, engine, running, signals } = yield* setUp({ jobs: 1 })
      engine.before("complete", Effect.fail(databaseError(null)))
      assert.isNull(completer.failingSince())
      complete(...running)
      yield* signals.advanceUntil("it failed thrice", "1 second", () => signals.all("failed").length === 3)
      assert.strictEqual(completer.failingSince(), 0)
      engine.before("complete", Effect.void)
      yield* SignalLog.advancing("1 second", completer.drained)
      assert.isNull(completer.failingSince())
    }))

  it.scoped("an attempt that was taken away is told refused and forgotten", () =>
    Effect.gen(function*() {
      const { attempts, complete, completer, engine, running, signals } = yield* setUp({ jobs: 2 })
      engine.jobs[0]!.lease += 1
      complete(...running)
      yield* completer.drained
      assert.deepStrictEqual(signals.flushed().map(({ verdict }) => verdict), ["refused", "accepted"])
      assert.isFalse(attempts.known().has(running[0]!.fence))
    }))

  it.scoped("above four batches there is no room for more jobs", () =>
    Effect.gen(function*() {
      const { complete, completer, engine, running } = yield* setUp({ jobs: 100, batchSize: 10 })
      const gate = yield* Effect.makeLatch(false)
      engine.before("complete", gate.await)
      const room = () => Effect.map(Effect.fork(completer.roomForMore), (fiber) => fiber)
      complete(...running.slice(0, 40))
      yield* completer.roomForMore
      complete(running[40]!)
      const waiting = yield* room()
      yield* Effect.yieldNow()
      assert.isNull(waiting.unsafePoll())
      yield* gate.open
      yield* waiting.await
      yield* completer.drained
    }))

  it.scoped("progress nobody stored travels with the outcome", () =>
    Effect.gen(function*() {
      const { completer, engine, running } = yield* setUp({ jobs: 1 })
      running[0]!.progress.set(40, "half way")
      completer.submit(running[0]!, { _tag: "retry", delay: null, error: "later" })
      yield* completer.drained
      assert.deepStrictEqual(engine.jobs[0]!.progress, { percent: 40, message: "half way" })
    }))
})
