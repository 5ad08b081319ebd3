import { readdirSync, readFileSync } from "node:fs"

/** A change of the shipped SQL. White space aside, `find` must occur exactly so many times, by default once. */
export interface Patch {
  /** The function whose text is changed; without it, the text of all migrations. */
  readonly within?: string
  readonly find: string
  readonly replace: string
  readonly times?: number
}

const folder = new URL("../../../migrations/", import.meta.url)

/** In a database of few slots everything is faster. */
export const slots = 4

/** All migrations, in order. */
export const shipped: string = readdirSync(folder).filter((file) => file.endsWith(".sql")).sort()
  .map((file) => readFileSync(new URL(file, folder), "utf8")).join("\n")
  .replace(/\/\*queueSlotCount\*\/\d+/, String(slots))
  .replace(/\/\*leaseSlotCount\*\/\d+/, "2")

/** The statements that turn a database with the shipped text into one with `patches` applied in turn. */
export const installation = (patches: ReadonlyArray<Patch>): string => {
  const sql = patches.reduce(apply, shipped)
  if (patches.some(({ within }) => within === undefined)) return `drop schema awa cascade; ${sql}`
  const before = new Set(functionsOf(shipped))
  return functionsOf(sql).filter((text) => !before.has(text))
    .map((text) => text.replace("create function", "create or replace function")).join("\n")
}

const functionsOf = (sql: string): ReadonlyArray<string> => sql.match(/^create function [^$]*\$\$.*?^\$\$;$/gms) ?? []

const apply = (sql: string, patch: Patch): string => {
  const [start, end] = patch.within === undefined ? [0, sql.length] : extentOf(sql, patch.within)
  const text = sql.slice(start, end)
  const found = pattern(patch.find)
  const count = [...text.matchAll(found)].length
  if (count !== (patch.times ?? 1)) {
    throw new Error(`patch no longer applies: ${count} × ${patch.find} in ${patch.within ?? "the migrations"}`)
  }
  return sql.slice(0, start) + text.replace(found, () => patch.replace) + sql.slice(end)
}

const extentOf = (sql: string, name: string): readonly [number, number] => {
  const texts = functionsOf(sql).filter((text) => text.startsWith(`create function ${name}(`))
  const [text] = texts
  if (text === undefined || texts.length > 1) throw new Error(`patch no longer applies: ${texts.length} × ${name}()`)
  const start = sql.indexOf(text)
  return [start, start + text.length]
}

const pattern = (find: string): RegExp =>
  new RegExp(find.trim().split(/\s+/).map((word) => word.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("\\s+"), "g")
