import type * as Job from "@awa/model/Job"
import type * as Effect from "effect/Effect"
import type * as ParseResult from "effect/ParseResult"
import type * as JobContext from "../JobContext.js"

/**
 * A handler as the executor sees it. Its services are not in the type any more: they are in the context of the layer,
 * whose own type demands them.
 */
export interface Handler {
  readonly kind: string
  /** Where its jobs go unless an option says otherwise. */
  readonly queue: string
  readonly decode: (args: unknown) => Effect.Effect<unknown, ParseResult.ParseIssue>
  readonly run: (payload: unknown, context: JobContext.Service) => Effect.Effect<unknown, unknown>
}

export const make = <J extends Job.Any>(
  job: J,
  run: (payload: Job.Payload<J>, context: JobContext.Service) => Effect.Effect<unknown, unknown, unknown>
): Handler => ({
  kind: job.kind,
  queue: job.defaults.queue ?? "default",
  decode: job.decode as Handler["decode"],
  // `run` is only ever given what `decode` of the same job answered.
  run: run as Handler["run"]
})
