import { availableParallelism } from "node:os"
import { defineConfig } from "vitest/config"

// Packages of the workspace are read from their sources, without a build.
const conditions = ["awa-source", "module", "node", "development|production"]

export default defineConfig({
  resolve: { conditions },
  ssr: { resolve: { conditions } },
  test: {
    include: ["packages/*/test/**/*.test.ts", "test/**/*.test.ts"],
    globalSetup: ["./packages/tooling/src/vitestGlobalSetup.ts"],
    reporters: ["default", "./packages/tooling/src/strictReporter.ts"],
    pool: "forks",
    // Tests wait for the database more than they compute.
    maxWorkers: Math.max(2, availableParallelism()),
    minWorkers: 1,
    allowOnly: false,
    testTimeout: 120_000,
    hookTimeout: 60_000
  }
})
