// Every public export of the published packages says since when it is there and under which heading the reference lists it.
import { readdirSync, readFileSync } from "node:fs"
import ts from "typescript"

const published = ["model", "worker", "awa", "testing", "embedded"]

const isPublic = (statement) =>
  ts.canHaveModifiers(statement) &&
  (ts.getModifiers(statement) ?? []).some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword)

const nameOf = (statement) => (statement.declarationList?.declarations[0] ?? statement).name?.getText() ?? "default"

/** The comment right before it: the first overload speaks for all, and a class or type for the value of the same name. */
const missing = (statement) => {
  const [doc] = statement.jsDoc?.slice(-1) ?? []
  if (doc === undefined) return ["a comment"]
  const tags = (doc.tags ?? []).map(({ tagName }) => tagName.text)
  return ["since", "category"].filter((tag) => !tags.includes(tag)).map((tag) => `@${tag}`)
}

const problemsOf = (file) => {
  const source = ts.createSourceFile(file, readFileSync(file, "utf8"), ts.ScriptTarget.Latest, true)
  const named = source.statements.filter(isPublic).filter((statement) => !ts.isExportDeclaration(statement))
  const documented = new Set(named.filter((statement) => missing(statement).length === 0).map(nameOf))
  return named.filter((statement) => !documented.has(nameOf(statement))).map((statement) => {
    const { line } = source.getLineAndCharacterOfPosition(statement.getStart())
    return `${file}:${line + 1} ${nameOf(statement)} lacks ${missing(statement).join(", ")}`
  })
}

const problems = published
  .flatMap((name) => readdirSync(`packages/${name}/src`).map((file) => `packages/${name}/src/${file}`))
  .filter((file) => file.endsWith(".ts") && !file.endsWith("/index.ts"))
  .flatMap(problemsOf)

for (const problem of problems) console.error(problem)
process.exit(problems.length === 0 ? 0 : 1)
