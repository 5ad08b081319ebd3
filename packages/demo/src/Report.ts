/**
 * What the demo prints: how far it is, and the table at the end.
 */
import type { Audit, Figure } from "./Audit.js"
import type { Counts } from "./Queue.js"
import { bar, number, style, table } from "./Terminal.js"

export const status = (counts: Counts, jobs: number): string => {
  const { available = 0, cancelled = 0, completed = 0, failed = 0, retryable = 0, running = 0, scheduled = 0 } = counts
  const done = completed + cancelled + failed
  const parts = [
    [available, "waiting"],
    [running, "running"],
    [retryable, "to retry"],
    [scheduled, "scheduled"]
  ] as const
  const rest = parts.filter(([count]) => count > 0).map(([count, what]) => `${number(count)} ${what}`)
  return [`${bar(done / jobs)} ${number(done)}/${number(jobs)} done`, ...rest].join(", ")
}

const show = ({ recorded, stored }: Figure): string =>
  recorded === stored ? number(stored) : style("red", `${number(stored)} ≠ ${number(recorded)}`)

const verdict = (figures: ReadonlyArray<Figure>): string =>
  figures.every(({ recorded, stored }) => recorded === stored) ? style("green", "✓") : style("red", "✗")

const mostDifferences = 20

/** Every figure is the database's; where the program's own record differs, that stands beside it. */
export const audit = ({ differences, facts, rows }: Audit): ReadonlyArray<string> => [
  "",
  ...table([
    ["", ...rows[0]!.figures.map(({ name }) => style("bold", name)), ""],
    ...rows.map(({ figures, kind }) => [kind, ...figures.map(show), verdict(figures)])
  ]),
  "",
  ...table(facts.map((figure) => [figure.name, show(figure), verdict([figure])])),
  "",
  ...differences.slice(0, mostDifferences).map((difference) => style("red", difference)),
  ...(differences.length > mostDifferences ? [`… and ${differences.length - mostDifferences} more`] : []),
  ...(differences.length === 0
    ? [style("green", "Everything the queue says is what the shop and its handlers recorded.")]
    : [])
]
