/**
 * How long the statements of a process take, seen where all systems send them: at node-postgres.
 */
import pg from "pg"
import { monotonicMillis } from "./Statistics.js"

type Query = (...args: Array<unknown>) => unknown

const textOf = (query: unknown): string =>
  typeof query === "string" ? query : String((query as { readonly text?: unknown } | undefined)?.text ?? "")

/** Milliseconds of every statement that matches, from now on, in the order in which they are answered. */
export const watchStatements = (pattern: RegExp | undefined): Array<number> => {
  const times: Array<number> = []
  if (pattern === undefined) return times
  const client = pg.Client.prototype as { query: unknown }
  const send = client.query as Query
  client.query = function(this: pg.Client, ...args: Array<unknown>): unknown {
    if (!pattern.test(textOf(args[0]))) return send.apply(this, args)
    const started = monotonicMillis()
    const answered = () => void times.push(monotonicMillis() - started)
    const callback = args.at(-1)
    if (typeof callback === "function") {
      const watched = (...answer: Array<unknown>) => {
        answered()
        ;(callback as Query)(...answer)
      }
      return send.apply(this, [...args.slice(0, -1), watched])
    }
    const answer = send.apply(this, args)
    if (answer instanceof Promise) answer.then(answered, answered)
    return answer
  }
  return times
}
