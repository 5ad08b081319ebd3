// Writes the SQL files of `migrations/` into a module of @awa/model, so that the package needs no files at run time.
// `--check` writes nothing and fails when the module is not what it would write.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { dirname, join, relative } from "node:path"
import { fileURLToPath } from "node:url"
import { readMigrations, renderModule } from "./migrations.mjs"

const root = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "..")
const folder = join(root, "migrations")
const target = join(root, "packages", "model", "src", "internal", "migrations.generated.ts")

const files = Object.fromEntries(readdirSync(folder).map((file) => [file, readFileSync(join(folder, file), "utf8")]))
const text = renderModule(readMigrations(files))
const upToDate = existsSync(target) && readFileSync(target, "utf8") === text

if (!upToDate && process.argv.includes("--check")) {
  console.error(`${relative(root, target)} is out of date: run \`npm run generate\``)
  process.exit(1)
}
if (!upToDate) {
  writeFileSync(target, text)
  console.log(`wrote ${relative(root, target)}`)
}
