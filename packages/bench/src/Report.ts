/**
 * Results as a table on standard output and as JSON.
 */
import { median } from "./Statistics.js"
import type { System } from "./System.js"

export interface Figure {
  readonly median: number
  readonly rounds: ReadonlyArray<number>
  readonly unit: string
}

/** One figure of a system, or several by name (rates and percentiles, numbers of jobs, tables). */
export type Figures = Figure | { readonly [name: string]: Figures }

export interface Report {
  readonly benchmark: string
  readonly figures: { readonly [system: string]: Figures }
  /** Rounds of peers that came to no end, and why. */
  readonly failures: ReadonlyArray<string>
  /** Ours divided by theirs, from the medians. */
  readonly ratios: { readonly [system: string]: unknown }
  readonly configurations: { readonly [system: string]: unknown }
  readonly environment: { readonly [name: string]: unknown }
}

export const figure = (rounds: ReadonlyArray<number>, unit: string): Figure => ({
  median: round(median(rounds)),
  rounds: rounds.map(round),
  unit
})

/** Of the systems that have a round to show. */
export const figuresOf = <A>(
  results: ReadonlyMap<string, ReadonlyArray<A>>,
  toFigures: (rounds: ReadonlyArray<A>) => Figures
): Report["figures"] =>
  Object.fromEntries(
    Array.from(results).filter(([, rounds]) => rounds.length > 0).map(([name, rounds]) => [name, toFigures(rounds)])
  )

const isFigure = (figures: Figures): figures is Figure => Array.isArray((figures as Figure).rounds)

/** Four significant digits, no decimals from 1,000 on. */
export const round = (value: number): number => value >= 1000 ? Math.round(value) : Number(value.toPrecision(4))

const ratio = (ours: number, theirs: number): number => Number((ours / theirs).toPrecision(3))

/** Ours to theirs for every figure that both have. */
const ratiosOf = (ours: Figures, theirs: Figures): unknown => {
  if (isFigure(ours)) return isFigure(theirs) ? ratio(ours.median, theirs.median) : null
  if (isFigure(theirs)) return null
  return Object.fromEntries(
    Object.entries(ours).flatMap(([name, figures]) => {
      const other = theirs[name]
      return other === undefined ? [] : [[name, ratiosOf(figures, other)]]
    })
  )
}

export const ratiosTo = (
  subject: string,
  figures: Report["figures"]
): Report["ratios"] => {
  const ours = figures[subject]
  if (ours === undefined) return {}
  return Object.fromEntries(
    Object.entries(figures).filter(([name]) => name !== subject).map(([name, theirs]) => [name, ratiosOf(ours, theirs)])
  )
}

const number = (value: number): string => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 })

const align = (rows: ReadonlyArray<ReadonlyArray<string>>): string => {
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? []
  return rows
    .map((row) =>
      row.map((cell, column) => column === 0 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!)).join("  ")
        .trimEnd()
    )
    .join("\n")
}

const figureRows = (path: ReadonlyArray<string>, figures: Figures, ratios: unknown): Array<ReadonlyArray<string>> =>
  isFigure(figures)
    ? [[
      path.join(" "),
      `${number(figures.median)} ${figures.unit}`,
      typeof ratios === "number" ? `${ratios} ×` : "",
      figures.rounds.map(number).join("  ")
    ]]
    : Object.entries(figures).flatMap(([name, inner]) =>
      figureRows([...path, name], inner, (ratios as Record<string, unknown> | undefined)?.[name])
    )

const valueRows = (values: object): ReadonlyArray<ReadonlyArray<string>> =>
  Object.entries(values).map((
    [name, value]
  ) => [`  ${name}`, typeof value === "string" ? value : JSON.stringify(value)])

const configurationText = (name: string, configuration: unknown): string => {
  const { remarks, ...settings } = configuration as { readonly remarks: ReadonlyArray<string> }
  return [
    name,
    ...remarks.map((remark) => `  ${remark}`),
    ...Object.entries(settings).flatMap(([key, value]) =>
      value === undefined ? [] : [`  ${key}: ${JSON.stringify(value)}`]
    )
  ].join("\n")
}

export const toText = (report: Report): string =>
  [
    `${report.benchmark}\n`,
    align([
      ["system", "median", "ours/theirs", "rounds"],
      ...Object.entries(report.figures).flatMap(([name, figures]) => figureRows([name], figures, report.ratios[name]))
    ]),
    ...(report.failures.length === 0 ? [] : ["\nFailures", ...report.failures.map((failure) => `  ${failure}`)]),
    "\nConfigurations",
    ...Object.entries(report.configurations).map(([name, configuration]) => configurationText(name, configuration)),
    "\nEnvironment",
    ...valueRows(report.environment).map((row) => row.join(": "))
  ].join("\n")

/** What is told of a system beside its figures. */
export const configurationOf = (system: System, more: object = {}): unknown => ({ remarks: system.remarks, ...more })
