import { expect, it } from "vitest"
import { installation } from "./support/shipped.js"

const replace = "changed"

it("a patch replaces what it finds, whatever the white space", () => {
  const sql = installation([{ within: "awa.pending_xids", find: "if v_own   - v_xmax\n> 256 then", replace }])
  expect(sql).toMatch(/^create or replace function awa\.pending_xids\(.*\bchanged\s+raise exception/s)
  expect(sql.match(/create or replace function/g)).toHaveLength(1)
})

it("a patch that finds nothing, or too much, fails", () => {
  expect(() => installation([{ within: "awa.pending_xids", find: "no such text", replace }])).toThrow(
    "no longer applies"
  )
  expect(() => installation([{ within: "awa.pending_xids", find: "v_own", replace }])).toThrow("no longer applies")
  expect(() => installation([{ within: "awa.no_such_function", find: "begin", replace }])).toThrow("no longer applies")
})

it("a patch outside of functions installs everything anew", () => {
  expect(installation([{ find: "create sequence awa.pos_seq cache 1;", replace }])).toMatch(/^drop schema awa cascade;/)
})
