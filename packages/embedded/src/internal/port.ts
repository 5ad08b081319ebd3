import * as Effect from "effect/Effect"
import { randomInt } from "node:crypto"
import { createServer } from "node:net"

/**
 * A free port on the loopback interface, below the range that systems give to outgoing connections: a port from there could be
 * taken while the server restarts, or a client that reconnects could even be connected to itself.
 *
 * @internal
 */
export const freePort: Effect.Effect<number> = Effect.suspend(() => {
  const port = randomInt(10_240, 32_000)
  return Effect.flatMap(isFree(port), (free) => free ? Effect.succeed(port) : freePort)
})

const isFree = (port: number): Effect.Effect<boolean> =>
  Effect.async((resume) => {
    const probe = createServer()
    probe.once("error", () => resume(Effect.succeed(false)))
    probe.listen({ port, host: "127.0.0.1", exclusive: true }, () => probe.close(() => resume(Effect.succeed(true))))
  })
