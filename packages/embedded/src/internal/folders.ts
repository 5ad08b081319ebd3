import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Fs from "node:fs/promises"
import * as Os from "node:os"
import * as Path from "node:path"
import { EmbeddedPostgresError, type Reason } from "../EmbeddedPostgresError.js"

/** PostgreSQL refuses to run as root, so root lends it the account `nobody`. */
const unprivilegedId = 65534

/**
 * The user that `initdb` and `postgres` run as: `undefined` is the own user.
 *
 * @internal
 */
export const serverUser: { readonly uid: number; readonly gid: number } | undefined = process.getuid?.() === 0
  ? { uid: unprivilegedId, gid: unprivilegedId }
  : undefined

/**
 * Variables of the caller such as PGDATA or LC_ALL are none of the server's business.
 *
 * @internal
 */
export const environment: NodeJS.ProcessEnv = { PATH: process.env["PATH"] ?? "/usr/bin:/bin", LC_ALL: "C", TZ: "UTC" }

/** @internal */
export const attempt = <A>(
  reason: Reason,
  advice: string,
  run: () => Promise<A>
): Effect.Effect<A, EmbeddedPostgresError> =>
  Effect.tryPromise({
    try: run,
    catch: (cause) =>
      new EmbeddedPostgresError({
        reason,
        message: `Embedded PostgreSQL: ${advice} (${cause instanceof Error ? cause.message : String(cause)}).`,
        cause
      })
  })

/**
 * The folder of this user's copies of the PostgreSQL programs. Its name can be guessed, so it must prove to be ours.
 *
 * @internal
 */
export const runtimeRoot = async (): Promise<string> => {
  const uid = process.getuid?.() ?? 0
  const folder = Path.join(Os.tmpdir(), `awa-embedded-${uid}`)
  await Fs.mkdir(folder, { mode: 0o755 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "EEXIST") throw error
  })
  const stats = await Fs.lstat(folder)
  if (!stats.isDirectory() || stats.uid !== uid || (stats.mode & 0o022) !== 0) {
    throw new Error(`${folder} belongs to somebody else or is writable by others: remove it`)
  }
  await Fs.chmod(folder, 0o755)
  return folder
}

/**
 * A new folder that only the server's user can read, removed with the scope.
 *
 * @internal
 */
export const makeHome: Effect.Effect<string, EmbeddedPostgresError, Scope.Scope> = Effect.acquireRelease(
  attempt(
    "folder-failed",
    `could not make a folder below ${Os.tmpdir()}; set TMPDIR to a folder that every user may enter`,
    async () => {
      const folder = await Fs.mkdtemp(Path.join(Os.tmpdir(), "awa-postgres-"))
      if (serverUser !== undefined) await Fs.chown(folder, serverUser.uid, serverUser.gid)
      return folder
    }
  ),
  (folder) => Effect.promise(() => Fs.rm(folder, { recursive: true, force: true, maxRetries: 5 }).catch(() => {}))
)

/** @internal */
export const dataFolder = (home: string): string => Path.join(home, "data")

/** @internal */
export const logFile = (home: string): string => Path.join(home, "server.log")

/** @internal */
export const readLog = (home: string): Effect.Effect<string> =>
  Effect.promise(() => Fs.readFile(logFile(home), "utf8").catch(() => ""))
