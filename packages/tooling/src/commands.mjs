const tsc = "node_modules/typescript/bin/tsc"
const vitest = "node_modules/vitest/vitest.mjs"
const eslint = "node_modules/eslint/bin/eslint.js"

/** Runs a TypeScript file on the sources of the packages. */
const fromSources = ["--conditions=awa-source", "--import", "tsx"]
const build = [tsc, "-b", "tsconfig.build.json"]

/**
 * What each root command runs, as arguments for Node, one after the other.
 *
 * @type {Record<string, (args: ReadonlyArray<string>) => ReadonlyArray<ReadonlyArray<string>>>}
 */
export const commands = {
  demo: (args) => [[...fromSources, "packages/demo/src/main.ts", ...args]],
  test: (args) => [[vitest, "run", ...args]],
  check: () => [["packages/tooling/src/check.mjs"]],
  conformance: (args) => [["packages/tooling/src/conformance.mjs", ...args]],
  bench: (args) => [build, ["packages/bench/dist/bench.js", ...args]],
  stress: (args) =>
    args[0] === "programs"
      ? [[...fromSources, "test/programs/stress.ts", ...args.slice(1)]]
      : [build, ["packages/bench/dist/stress.js", ...args]],
  build: () => [build],
  lint: (args) => [[eslint, ...(args.length === 0 ? ["."] : args)]],
  format: (args) => [[eslint, "--fix", ...(args.length === 0 ? ["."] : args)]],
  generate: () => [["packages/tooling/src/embed-migrations.mjs"]]
}
