/**
 * `npm run stress -- PROGRAM [options]`
 */
import { Console, Data, Effect } from "effect"
import { parseArgs } from "node:util"
import * as CommandLine from "./CommandLine.js"
import { freshDatabase, startServer } from "./Server.js"
import * as Cursor from "./stress/Cursor.js"

class StressFailed extends Data.TaggedError("StressFailed")<{ readonly message: string }> {}

const usage = `npm run stress -- PROGRAM [options]

  cursor           claims against producers with transactions of every shape: none lost, none doubled, order kept
  programs         random programs of all operations against a model (--seconds, --seed, --length; from test/programs)

  --seconds N      how long to produce (30)
  --producers N    concurrent producers (24)
  --claimers N     concurrent claimers (4)
  --seed N         seed of the random choices
  --json FILE      write the result as JSON too

A fresh PostgreSQL 18 is started unless DATABASE_URL names a server whose role may create databases.`

const parse = CommandLine.parse(usage, () => {
  const { positionals, values } = parseArgs({
    allowPositionals: true,
    options: {
      seconds: { type: "string" },
      producers: { type: "string" },
      claimers: { type: "string" },
      seed: { type: "string" },
      json: { type: "string" }
    }
  })
  if (positionals.length !== 1 || positionals[0] !== "cursor") {
    throw new CommandLine.UsageError({ message: "Name one program" })
  }
  return {
    json: values.json,
    seconds: CommandLine.positive("seconds", values.seconds) ?? 30,
    producers: CommandLine.positive("producers", values.producers) ?? 24,
    claimers: CommandLine.positive("claimers", values.claimers) ?? 4,
    // Another one each time, and printed, so that a run can be had again.
    seed: CommandLine.positive("seed", values.seed) ?? (Date.now() % 1_000_000) + 1
  }
})

const program = Effect.gen(function*() {
  const { json, ...options } = yield* parse
  const server = yield* startServer
  const url = yield* freshDatabase(server)
  const result = yield* Cursor.run({ url, ...options })
  yield* Console.log(JSON.stringify(result, null, 2))
  yield* CommandLine.writeJson(json, result)
  const { duplicated, enqueued, lost, orderViolations, phantoms, refused, unfinished } = result
  if (enqueued === 0 || lost + duplicated + phantoms + orderViolations + refused + unfinished > 0) {
    yield* new StressFailed({ message: "The stress program found what must not be: see above" })
  }
}).pipe(Effect.scoped)

CommandLine.main(program)
