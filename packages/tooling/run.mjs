// `npm run demo|test|check|bench|…`: makes a fresh clone ready and runs the command. Needs nothing but Node and npm.
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"

const [major, minor] = process.versions.node.split(".").map(Number)
if (major < 20 || (major === 20 && minor < 19)) {
  console.error(`This needs Node 20.19 or newer, and this is ${process.version}: get one from https://nodejs.org`)
  process.exit(1)
}
process.chdir(join(dirname(fileURLToPath(import.meta.url)), "..", ".."))

// Not at the top: an older Node could not even read these.
const { commands } = await import("./src/commands.mjs")
const { install } = await import("./src/install.mjs")
const { run } = await import("./src/supervise.mjs")

const [name, ...args] = process.argv.slice(2)
if (!Object.hasOwn(commands, name ?? "")) {
  console.error(`Usage: npm run ${Object.keys(commands).join("|")} -- …`)
  process.exit(1)
}
const steps = [() => install(run), ...commands[name](args).map((step) => () => run(process.execPath, step))]
for (const step of steps) {
  const code = await step()
  if (code !== 0) process.exit(code)
}
