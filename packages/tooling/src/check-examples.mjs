// Every TypeScript block of the README, the guides and the packages' READMEs compiles, each as a module of its own, under
// the flags of the sources.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import ts from "typescript"

const folder = "node_modules/.cache/awa-examples"
const pages = [
  "README.md",
  ...readdirSync("docs").filter((name) => name.endsWith(".md")).map((name) => `docs/${name}`),
  ...readdirSync("packages").map((name) => `packages/${name}/README.md`).filter((page) => existsSync(page))
]

const blocksOf = (page) => {
  const text = readFileSync(page, "utf8")
  return [...text.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(({ 1: code, index }) => ({
    code,
    place: `${page}:${text.slice(0, index).split("\n").length + 1}`
  }))
}

rmSync(folder, { recursive: true, force: true })
mkdirSync(folder, { recursive: true })
const places = new Map()
for (const { code, place } of pages.flatMap(blocksOf)) {
  const file = `${folder}/example-${places.size}.ts`
  places.set(file, place)
  writeFileSync(file, `${code}\nexport {}\n`)
}

const { config } = ts.readConfigFile("tsconfig.base.json", (path) => readFileSync(path, "utf8"))
const { options } = ts.convertCompilerOptionsFromJson(config.compilerOptions, ".")
const program = ts.createProgram([...places.keys()], {
  ...options,
  composite: false,
  incremental: false,
  noEmit: true,
  noUnusedLocals: false // what an example defines, the reader uses
})
const problems = ts.getPreEmitDiagnostics(program).map(({ file, messageText, start }) => {
  const place = places.get(file?.fileName) ?? file?.fileName ?? "?"
  const line = file === undefined ? 0 : file.getLineAndCharacterOfPosition(start ?? 0).line
  return `${place} + ${line}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}`
})

if (places.size === 0) problems.push("no example was found")
console.log(problems.length === 0 ? `${places.size} examples compile` : problems.join("\n"))
process.exit(problems.length === 0 ? 0 : 1)
