// `npm run check`: everything that can be found without running the program. All checks run, and then the failures are told.
import { spawn } from "node:child_process"
import { commands } from "./commands.mjs"

const bin = (path) => `node_modules/${path}`
const tooling = (path) => `packages/tooling/src/${path}`

const checks = {
  "types": [bin("typescript/bin/tsc"), "-p", "tsconfig.json"],
  "lint and format": [bin("eslint/bin/eslint.js"), "."],
  "build": commands.build([])[0],
  "type tests": [bin("tstyche/build/bin.js")],
  "import cycles": [
    bin("dpdm/lib/bin/dpdm.js"),
    "--transform",
    "--no-tree",
    "--no-warning",
    "--no-progress",
    "--exit-code=circular:1",
    "--tsconfig=tsconfig.base.json",
    "packages/*/src/**/*.ts"
  ],
  "dead code": [bin("knip/bin/knip.js"), "--no-config-hints"],
  "generated files": [tooling("embed-migrations.mjs"), "--check"],
  "documentation": [tooling("check-docs.mjs")],
  "examples": [tooling("check-examples.mjs")],
  "packages": [tooling("check-packages.mjs")]
}

const perform = ([name, args]) =>
  new Promise((resolve) => {
    const started = performance.now()
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] })
    let output = ""
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => output += text)
    child.once("close", (code) => {
      const seconds = ((performance.now() - started) / 1000).toFixed(1)
      console.log(`${code === 0 ? "passed" : "FAILED"}  ${name}  ${seconds} s`)
      resolve({ name, passed: code === 0, output })
    })
  })

/** Two at a time. */
const queue = Object.entries(checks)
const results = []
const worker = async () => {
  for (let next = queue.shift(); next !== undefined; next = queue.shift()) results.push(await perform(next))
}
await Promise.all([worker(), worker()])

const failures = results.filter(({ passed }) => !passed)
for (const { name, output } of failures) console.log(`\n── ${name} ──\n${output.trim()}`)
console.log(`\n${results.length - failures.length} checks passed, ${failures.length} failed`)
process.exit(failures.length === 0 ? 0 : 1)
