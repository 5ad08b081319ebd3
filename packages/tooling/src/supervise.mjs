import { spawn } from "node:child_process"
import { constants } from "node:os"

/** Signals that ask us to end. They go on to the child's process group; a second one no longer asks. */
const endings = ["SIGINT", "SIGTERM", "SIGHUP"]
const patience = 30_000

/** @type {number | undefined} */
let group
/** @type {NodeJS.Signals | undefined} */
let ending

const killGroup = (signal) => {
  try {
    if (group !== undefined) process.kill(-group, signal)
  } catch {
    // everything in it has ended already
  }
}

const end = (signal) => {
  killGroup(ending === undefined ? signal : "SIGKILL")
  ending ??= signal
  setTimeout(() => killGroup("SIGKILL"), patience).unref()
}

for (const signal of endings) process.on(signal, end)
process.on("exit", () => killGroup("SIGKILL"))

// A terminal sends Ctrl-C to all of us, but npm, ended alone, just leaves.
if (process.env.npm_lifecycle_event !== undefined) {
  const parent = process.ppid
  const watch = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(watch)
    end("SIGTERM")
  }, 250)
  watch.unref()
}

/**
 * Runs a program in a process group of its own and answers its exit code. Nothing of that group outlives it.
 *
 * @param {string} program
 * @param {ReadonlyArray<string>} args
 * @param {NodeJS.ProcessEnv} [env]
 * @returns {Promise<number>}
 */
export const run = (program, args, env = process.env) =>
  new Promise((resolve) => {
    const child = spawn(program, args, { detached: true, env, stdio: ["ignore", "inherit", "inherit"] })
    group = child.pid
    child.once("error", (error) => {
      console.error(`could not run ${program}: ${error.message}`)
      resolve(1)
    })
    child.once("exit", (code, signal) => {
      killGroup("SIGKILL")
      group = undefined
      const by = ending ?? signal
      if (by !== undefined && by !== null) process.exit(128 + constants.signals[by])
      resolve(code ?? 1)
    })
  })
