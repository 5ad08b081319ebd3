import * as Effect from "effect/Effect"
import { randomBytes } from "node:crypto"
import * as Fs from "node:fs/promises"
import * as Path from "node:path"
import { EmbeddedPostgresError } from "../EmbeddedPostgresError.js"
import { attempt, dataFolder, readLog, serverUser } from "./folders.js"
import { spawnGuarded } from "./guardian.js"

/** @internal */
export const superuser = "postgres"

/**
 * Makes a data folder below `home` and answers the password of its superuser.
 *
 * Everybody on the machine can reach the port, and a superuser can run programs: hence a password even here.
 *
 * @internal
 */
export const initialize = (binaries: string, home: string): Effect.Effect<string, EmbeddedPostgresError> =>
  Effect.gen(function*() {
    const password = randomBytes(16).toString("hex")
    const passwordFile = Path.join(home, "password")
    yield* writePassword(passwordFile, password)
    const program = yield* spawnGuarded(home, [
      Path.join(binaries, "bin", "initdb"),
      `--pgdata=${dataFolder(home)}`,
      `--username=${superuser}`,
      `--pwfile=${passwordFile}`,
      "--auth=scram-sha-256",
      "--encoding=UTF8",
      "--no-locale",
      "--no-sync"
    ])
    if ((yield* program.exitCode) === 0) return password
    return yield* new EmbeddedPostgresError({
      reason: "initdb-failed",
      message: `Embedded PostgreSQL: could not make a data folder. initdb said:\n${(yield* readLog(home)).trimEnd()}`
    })
  }).pipe(Effect.uninterruptible)

const writePassword = (file: string, password: string) =>
  attempt("folder-failed", "could not write to its new folder", async () => {
    await Fs.writeFile(file, password, { mode: 0o600 })
    if (serverUser !== undefined) await Fs.chown(file, serverUser.uid, serverUser.gid)
  })
