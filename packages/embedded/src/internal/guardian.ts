import * as Effect from "effect/Effect"
import { type ChildProcess, spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { EmbeddedPostgresError } from "../EmbeddedPostgresError.js"
import { environment, logFile, serverUser } from "./folders.js"

/**
 * A shell between us and a program, for one reason: it lives on for a moment when this process dies.
 *
 * It holds the read end of a pipe to us. Each line is the name of a signal for the program; the end of the pipe means that
 * this process is gone, whatever ended it, so the program is ended and its folder removed. The shell has a session of its own, so
 * that Ctrl-C in a terminal reaches it only through the pipe, and it ends with the program's exit code. The first thing it
 * prints is the program's process id.
 *
 * Arguments: the folder, the log file, then the command line.
 */
const script = `
home=$1 log=$2
shift 2
umask 077
rm -f "$home/abandoned"
exec 3<&0 </dev/null
"$@" 3<&- >>"$log" 2>&1 &
program=$!
echo "$program"
exec >/dev/null 2>&1
{
  while read -r signal <&3; do kill -s "$signal" "$program"; done
  : >"$home/abandoned"
  kill -s QUIT "$program"
  for second in 1 2 3; do sleep 1; done
  kill -s KILL "$program"
} &
reader=$!
exec 3<&-
wait "$program"
code=$?
kill "$reader"
if [ -e "$home/abandoned" ]; then rm -rf "$home"; fi
exit "$code"
`

/** @internal */
export type Signal = "INT" | "QUIT" | "KILL"

/** @internal */
export interface Guarded {
  readonly pid: number
  /** Sends the program a signal; does nothing once it has ended. */
  readonly signal: (signal: Signal) => Effect.Effect<void>
  /** Waits until the program has ended. */
  readonly exitCode: Effect.Effect<number | null>
  readonly isAlive: Effect.Effect<boolean>
}

/**
 * Runs a program as the server's user, with its output in the log file of `home`.
 *
 * @internal
 */
export const spawnGuarded = (
  home: string,
  command: ReadonlyArray<string>
): Effect.Effect<Guarded, EmbeddedPostgresError> =>
  Effect.async((resume) => {
    const child = spawn("/bin/sh", ["-c", script, "awa-postgres", home, logFile(home), ...command], {
      ...serverUser,
      cwd: "/",
      detached: true,
      env: environment,
      stdio: ["pipe", "pipe", "ignore"]
    })
    const fail = (cause: unknown) =>
      resume(Effect.fail(
        new EmbeddedPostgresError({
          reason: "start-failed",
          message: `Embedded PostgreSQL: could not run /bin/sh as ${serverUser?.uid ?? "this user"} (${
            String(cause)
          }).`,
          cause
        })
      ))
    child.stdin.on("error", () => {}) // a signal for a program that has just ended
    child.once("error", fail)
    child.once("close", fail) // only the first call of resume counts
    createInterface(child.stdout).once("line", (line) => resume(Effect.succeed(watch(child, Number(line)))))
  })

const watch = (child: ChildProcess, pid: number): Guarded => {
  const isAlive = () => child.exitCode === null && child.signalCode === null
  const exitCode = new Promise<number | null>((resolve) => {
    const end = () => {
      child.stdin?.end() // should somebody have killed the shell itself, what is left of it still ends the program
      resolve(child.exitCode)
    }
    if (isAlive()) child.once("exit", end)
    else end()
  })
  return {
    pid,
    signal: (signal) => Effect.sync(() => isAlive() && child.stdin?.write(`${signal}\n`)),
    exitCode: Effect.promise(() => exitCode),
    isAlive: Effect.sync(isAlive)
  }
}
