import { assert, describe, it } from "@effect/vitest"
import { readMigrations, renderModule } from "../src/migrations.mjs"

const control = "-- schema: control\nselect 1;\n"

describe("migrations", () => {
  it("are read in the order of their numbers", () => {
    const engine = "-- what it is\r\n-- schema: engine\r\nselect 2;\r\n"
    assert.deepStrictEqual(readMigrations({ "0010_second.sql": engine, "0001_the_first.sql": control }), [
      { version: 1, name: "the_first", schema: "control", sql: control },
      { version: 10, name: "second", schema: "engine", sql: engine.replaceAll("\r\n", "\n") }
    ])
  })

  it.each([
    ["1_a.sql", { "1_a.sql": control }, "the name must look like"],
    ["0000_a.sql", { "0000_a.sql": control }, "the name must look like"],
    ["0001_A.sql", { "0001_A.sql": control }, "the name must look like"],
    ["0001_a.sql~", { "0001_a.sql~": control }, "the name must look like"],
    ["a number twice", { "0001_a.sql": control, "0001_b.sql": control }, "the number 1 is used twice"],
    ["a name twice", { "0001_a.sql": control, "0002_a.sql": control }, "the name a is used twice"],
    ["no schema", { "0001_a.sql": "select 1" }, "exactly one line"],
    ["two schemas", { "0001_a.sql": `${control}-- schema: engine\n` }, "exactly one line"],
    ["another schema", { "0001_a.sql": "-- schema: public\n" }, "exactly one line"],
    ["broken text", { "0001_a.sql": `${control}\ufffd` }, "not clean UTF-8"]
  ])("are refused: %s", (_, files: Readonly<Record<string, string>>, message) => {
    assert.throws(() => readMigrations(files), message)
  })

  it("come back from the generated module as they were written", async () => {
    const sql = "-- schema: engine\nselect '\\d`${x}' || $1 || $$a$$;\n"
    const text = renderModule(readMigrations({ "0001_a.sql": sql }))
    const source = text.replace(/: ReadonlyArray<[^>]*>/, "")
    const module = await import(`data:text/javascript,${encodeURIComponent(source)}`) as {
      readonly migrations: unknown
    }
    assert.deepStrictEqual(module.migrations, [{ version: 1, name: "a", schema: "engine", sql }])
  })
})
