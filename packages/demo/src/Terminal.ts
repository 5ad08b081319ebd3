/**
 * Lines, one of which rewrites itself, and a table. Where nobody can see a line rewrite itself, it is printed now and then.
 */
import { styleText } from "node:util"

const rewrites = process.stdout.isTTY && process.env["TERM"] !== "dumb"

/** Knows of NO_COLOR and FORCE_COLOR. */
const hasColors = process.stdout.isTTY && process.stdout.hasColors()

type Style = Parameters<typeof styleText>[0]

export const style = (format: Style, text: string): string => hasColors ? styleText(format, text) : text

const quietMillis = 2000

let status = ""
let statusAt = -Infinity

const erase = () => {
  if (rewrites && status !== "") process.stdout.write("\r\x1b[2K")
}

const draw = () => {
  if (rewrites && status !== "") process.stdout.write(status.slice(0, (process.stdout.columns || 80) - 1))
}

// Whoever reads us may have seen enough: `npm run demo | head`.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code === "EPIPE") process.exit(0)
  throw error
})

/** A line that stays. */
export const say = (line = ""): void => {
  erase()
  process.stdout.write(`${line}\n`)
  draw()
}

/** The line that shows how far things are. */
export const showStatus = (line: string): void => {
  if (rewrites) {
    erase()
    status = line
    return draw()
  }
  if (line === status || performance.now() - statusAt < quietMillis) return
  status = line
  statusAt = performance.now()
  process.stdout.write(`${line}\n`)
}

export const hideStatus = (): void => {
  erase()
  status = ""
}

/** ███░░░░░ */
export const bar = (part: number, width = 8): string => {
  const full = Math.round(width * Math.min(1, Math.max(0, part)))
  return "█".repeat(full) + "░".repeat(width - full)
}

export const number = (value: number): string => value.toLocaleString("en-US")

const ansi = /\x1b\[[0-9;]*m/g

const widthOf = (cell: string): number => cell.replace(ansi, "").length

const pad = (cell: string, width: number, side: "left" | "right"): string => {
  const space = " ".repeat(Math.max(0, width - widthOf(cell)))
  return side === "left" ? space + cell : cell + space
}

/** The first column is text, the others are numbers. */
export const table = (rows: ReadonlyArray<ReadonlyArray<string>>): ReadonlyArray<string> => {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => widthOf(row[column]!))))
  return rows.map((row) =>
    row.map((cell, column) => pad(cell, widths[column]!, column === 0 ? "right" : "left")).join("  ")
  )
}
