// What the package.json files of the published packages must say, and that Node understands it so.
import { readdirSync, readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { isDeepStrictEqual } from "node:util"

const published = ["model", "worker", "awa", "testing", "embedded"]
const problems = []

const exportsMap = {
  ".": { "awa-source": "./src/index.ts", types: "./dist/index.d.ts", default: "./dist/index.js" },
  "./*": { "awa-source": "./src/*.ts", types: "./dist/*.d.ts", default: "./dist/*.js" },
  "./internal/*": null
}

const internals = (folder) => {
  try {
    return readdirSync(`${folder}/src/internal`, { recursive: true }).filter((file) => file.endsWith(".ts"))
  } catch {
    return []
  }
}

/** A package may call itself by its name, through its own exports map. */
const isClosed = (folder, specifier) => {
  try {
    createRequire(`${process.cwd()}/${folder}/package.json`).resolve(specifier)
    return false
  } catch (error) {
    return error.code === "ERR_PACKAGE_PATH_NOT_EXPORTED"
  }
}

for (const directory of published) {
  const folder = `packages/${directory}`
  const manifest = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"))
  const { name } = manifest
  if (!isDeepStrictEqual(manifest.exports, exportsMap)) problems.push(`${name}: its exports map is not the usual one`)
  if (manifest.license !== "MIT" || manifest.type !== "module") problems.push(`${name}: must be ESM under MIT`)
  for (const file of internals(folder)) {
    const specifier = `${name}/internal/${file.replace(/\.ts$/, "")}`
    if (!isClosed(folder, specifier)) problems.push(`${specifier} can be imported from outside`)
  }
  const index = readFileSync(`${folder}/src/index.ts`, "utf8")
  for (const file of readdirSync(`${folder}/src`)) {
    if (/^[A-Z].*\.ts$/.test(file) && !index.includes(file.replace(/\.ts$/, ".js"))) {
      problems.push(`${name}: index.ts does not export ${file}`)
    }
  }
}

for (const problem of problems) console.error(problem)
process.exit(problems.length === 0 ? 0 : 1)
