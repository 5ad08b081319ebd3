import { createHash } from "node:crypto"
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"

/** Names the state that `node_modules` was installed from. */
const stamp = "node_modules/.installed-from"

/** One installation a user at a time, in whatever clone: npx and pnpm share their caches between clones. */
export const lockFile = () => join(tmpdir(), `awa-install-${process.getuid?.() ?? "user"}.lock`)

/**
 * Installs the dependencies unless they are there as the lock file wants them.
 *
 * @param {(program: string, args: ReadonlyArray<string>, env: NodeJS.ProcessEnv) => Promise<number>} run
 * @returns {Promise<number>} an exit code
 */
export const install = async (run) => {
  const wanted = fingerprint()
  if (isInstalled(wanted)) return 0
  await takeLock()
  try {
    return isInstalled(wanted) ? 0 : await installNow(run, wanted)
  } finally {
    releaseLock()
  }
}

const installNow = async (run, wanted) => {
  const { packageManager } = JSON.parse(readFileSync("package.json", "utf8"))
  console.error(`Installing the dependencies with ${packageManager} …`)
  // CI: pnpm must not ask questions.
  const args = ["--yes", packageManager, "install", "--frozen-lockfile", "--reporter=append-only"]
  const code = await run("npx", args, { ...process.env, CI: "true" })
  if (code === 0) writeFileSync(stamp, wanted)
  else console.error("The installation failed: it needs the npm registry; what went wrong stands above.")
  return code
}

const fingerprint = () => {
  const hash = createHash("sha256").update(`${process.platform} ${process.arch}`)
  for (const file of ["pnpm-lock.yaml", "pnpm-workspace.yaml"]) hash.update(readFileSync(file))
  return hash.digest("hex")
}

const isInstalled = (wanted) => existsSync(stamp) && readFileSync(stamp, "utf8") === wanted

const takeLock = async () => {
  process.on("exit", releaseLock)
  for (let told = false;; told = true) {
    try {
      return writeFileSync(lockFile(), String(process.pid), { flag: "wx" })
    } catch (error) {
      if (error.code !== "EEXIST") throw error
    }
    if (!isAlive(owner())) rmSync(lockFile(), { force: true })
    else {
      if (!told) console.error("Waiting for another installation to end …")
      await sleep(200)
    }
  }
}

const releaseLock = () => {
  if (owner() === process.pid) rmSync(lockFile(), { force: true })
}

const owner = () => {
  try {
    return Number(readFileSync(lockFile(), "utf8"))
  } catch {
    return undefined
  }
}

const isAlive = (pid) => {
  if (pid === undefined) return false
  try {
    // An empty file is a lock whose owner has not written its id yet.
    return pid === 0 || process.kill(pid, 0)
  } catch (error) {
    return error.code === "EPERM"
  }
}
