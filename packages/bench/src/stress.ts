/**
 * `npm run stress -- PROGRAM [options]`
 */
import { Console, Data, Effect } from "effect"
import { parseArgs } from "node:util"
import * as CommandLine from "./CommandLine.js"
import { freshDatabase, type Server, startServer } from "./Server.js"
import * as Cursor from "./stress/Cursor.js"
import * as Turmoil from "./stress/Turmoil.js"

class StressFailed extends Data.TaggedError("StressFailed")<{ readonly message: string }> {}

const usage = `npm run stress -- PROGRAM [options]

  cursor           claims against producers with transactions of every shape: none lost, none doubled, order kept
  rotate           worker processes that are killed, a server that crashes, slots that are freed at once: no job lost or doubled
  mixed            the same with retries, snoozes, cancels, unique keys, dead letters, moves and priorities
  programs         random programs of all operations against a model (--seconds, --seed, --length; from test/programs)

  --seconds N      how long to produce (30)
  --producers N    concurrent producers (cursor: 24; rotate, mixed: 8)
  --claimers N     concurrent claimers (cursor: 4)
  --workers N      worker processes (rotate, mixed: 3)
  --seed N         seed of the random choices
  --json FILE      write the result as JSON too

A fresh PostgreSQL 18 is started unless DATABASE_URL names a server whose role may create databases. That one does not
crash.`

const names = ["cursor", "rotate", "mixed"] as const

const parse = CommandLine.parse(usage, () => {
  const { positionals, values } = parseArgs({
    allowPositionals: true,
    options: {
      seconds: { type: "string" },
      producers: { type: "string" },
      claimers: { type: "string" },
      workers: { type: "string" },
      seed: { type: "string" },
      json: { type: "string" }
    }
  })
  const program = names.find((name) => name === positionals[0])
  if (positionals.length !== 1 || program === undefined) {
    throw new CommandLine.UsageError({ message: "Name one program" })
  }
  return {
    program,
    json: values.json,
    seconds: CommandLine.positive("seconds", values.seconds) ?? 30,
    producers: CommandLine.positive("producers", values.producers) ?? (program === "cursor" ? 24 : 8),
    claimers: CommandLine.positive("claimers", values.claimers) ?? 4,
    workers: CommandLine.positive("workers", values.workers) ?? 3,
    // Another one each time, and printed, so that a run can be had again.
    seed: CommandLine.positive("seed", values.seed) ?? (Date.now() % 1_000_000) + 1
  }
})

const sum = (...counts: ReadonlyArray<number>): number => counts.reduce((total, count) => total + count, 0)

/** The result, and how often something was wrong with it. */
const run = ({ program, server, url, ...options }: Options) =>
  program === "cursor"
    ? Effect.map(Cursor.run({ url, ...options }), (result) => {
      const { duplicated, lost, orderViolations, phantoms, refused, unfinished } = result
      return { result, wrong: sum(lost, duplicated, phantoms, orderViolations, refused, unfinished) }
    })
    : Effect.map(Turmoil.run({ program, server, url, ...options }), (result) => {
      const { disagreements, duplicated, keysLeft, lost, phantoms, unexpected, unfinished } = result
      return { result, wrong: sum(lost, duplicated, phantoms, disagreements, keysLeft, unexpected, unfinished) }
    })

type Options = Omit<Effect.Effect.Success<typeof parse>, "json"> & { readonly server: Server; readonly url: string }

const program = Effect.gen(function*() {
  const { json, ...options } = yield* parse
  const server = yield* startServer
  const url = yield* freshDatabase(server)
  const { result, wrong } = yield* run({ ...options, server, url })
  yield* Console.log(JSON.stringify(result, null, 2))
  yield* CommandLine.writeJson(json, result)
  if (result.enqueued === 0 || wrong > 0) {
    yield* new StressFailed({ message: "The stress program found what must not be: see above" })
  }
}).pipe(Effect.scoped)

CommandLine.main(program)
