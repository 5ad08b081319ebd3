/**
 * A worker process that can be told where to die.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Awa, AwaLive, Database, Signals } from "awa"
import { Effect, Layer } from "effect"
import type { ProcessOptions } from "./process.js"
import * as Jobs from "./work.js"

const options = JSON.parse(process.argv[2]!) as ProcessOptions

/** Ends this process as the operating system would, at the chosen moment. */
const reached = (() => {
  const { death } = options
  let left = death?.after ?? 0
  return (point: string) => {
    if (point === death?.point && --left <= 0) process.kill(process.pid, "SIGKILL")
  }
})()

const gate = Effect.unsafeMakeLatch(false)
process.on("message", () => gate.unsafeOpen())

const worker = Jobs.worker(reached).pipe(
  Awa.shutdown({ timeout: options.shutdown ?? "5 seconds" }),
  Awa.handle(Jobs.Hold, ({ release }) =>
    Effect.zipRight(
      Effect.sync(() => process.send?.("holding")),
      release ? gate.await : Effect.never
    ))
)

const onSignal = (signal: Signals.Signal) => {
  if (signal._tag === "claimed" && signal.count > 0) reached("claimed")
  if (signal._tag === "flushed") reached("stored")
}

const Announced = Layer.effectDiscard(Effect.map(Awa.Awa, () => process.send?.("ready")))

const Live = Announced.pipe(
  Layer.provide(AwaLive(worker)),
  Layer.provide(Layer.succeed(Signals.Signals, onSignal)),
  Layer.provide(Database.layer({ url: options.url, maxConnections: 5 }))
)

process.once("disconnect", () => process.exit(1))

NodeRuntime.runMain(Layer.launch(Live))
