import { TestDatabase } from "@awa/testing"
import { SqlClient } from "@effect/sql"
import { it } from "@effect/vitest"
import { Effect } from "effect"
import { expect } from "vitest"

/** I10: whoever takes several takes them in this order, so that nobody waits in a circle. */
const order = ["maintenance", "slots", "lane", "owner"]

type Functions = ReadonlyMap<string, string>

/** The locks a function takes, as they stand in its text and in the texts of what it calls. */
const locksOf = (functions: Functions, name: string, callers: ReadonlyArray<string> = []): ReadonlyArray<string> => {
  if (callers.includes(name)) return []
  const text = (functions.get(name) ?? "").replaceAll(/--.*$/gm, "")
  return [...text.matchAll(/(?:awa"?\.)lock_class\('(\w+)'\)|\bawa"?\.(\w+)\s*\(/g)].flatMap(([, lock, called]) =>
    lock === undefined ? locksOf(functions, called ?? "", [...callers, name]) : order.includes(lock) ? [lock] : []
  )
}

const isAscending = (locks: ReadonlyArray<string>): boolean =>
  locks.every((lock, i) => i === 0 || order.indexOf(locks[i - 1]!) <= order.indexOf(lock))

it.effect("every function takes its locks in one order", () =>
  Effect.gen(function*() {
    const sql = yield* SqlClient.SqlClient
    const rows = yield* sql<{ name: string; text: string }>`
      select proname as name, prosrc as text from pg_proc where pronamespace = 'awa'::regnamespace
        and prokind = 'f' -- the procedure commits between the two functions it calls`
    const functions: Functions = new Map(rows.map(({ name, text }) => [name, text]))
    const locks = new Map(Array.from(functions.keys(), (name) => [name, locksOf(functions, name)]))
    expect(locks.get("claim")).toContain("lane")
    expect(locks.get("complete")).toContain("owner")
    expect([...locks].filter(([, taken]) => !isAscending(taken))).toEqual([])
  }).pipe(Effect.provide(TestDatabase.layer())))

it("a function that takes a lane after an owner is noticed", () => {
  const functions = new Map([
    ["outer", "perform pg_advisory_xact_lock(awa.lock_class('owner'), 1); perform awa.inner();"],
    ["inner", "-- lock_class('owner')\nperform pg_advisory_xact_lock(awa.lock_class('lane'), 1);"]
  ])
  expect(isAscending(locksOf(functions, "inner"))).toBe(true)
  expect(isAscending(locksOf(functions, "outer"))).toBe(false)
})
