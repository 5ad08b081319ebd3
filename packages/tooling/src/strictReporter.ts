import { relative } from "node:path"
import type { Reporter, TestCase, TestModule, Vitest } from "vitest/node"

/**
 * Ends a run with one plain line of numbers, and fails it when a test was not run, or run more than once: a test that does not
 * always run proves nothing. A run that selects tests by name (`-t`) leaves the others out on purpose and is not judged.
 */
export default class StrictReporter implements Reporter {
  private byName = false

  onInit(vitest: Vitest): void {
    this.byName = vitest.config.testNamePattern !== undefined
  }

  onTestRunEnd(modules: ReadonlyArray<TestModule>, errors: ReadonlyArray<unknown>): void {
    const tests = modules.flatMap((module) => [...module.children.allTests()])
    const count = (state: string) => tests.filter((test) => test.result().state === state).length
    const broken = modules.filter((module) => module.state() === "failed" && module.errors().length > 0).length
    const complaints = this.byName ? [] : modules.flatMap(complaintsOf)
    const failed = count("failed") + broken + errors.length + complaints.length
    if (failed > 0) process.exitCode = 1
    // The other reporters have not printed their summary yet. A set-up that failed shows in the exit code alone.
    process.once("exit", (code) => {
      const summary = `${count("passed")} passed, ${code === 0 ? failed : Math.max(failed, 1)} failed`
      // A reporter of vitest prints.
      console.log([...complaints, summary].join("\n"))
    })
  }
}

const nameOf = (module: TestModule): string => relative(module.project.config.root, module.moduleId)

const complaintsOf = (module: TestModule): ReadonlyArray<string> => {
  const tests = [...module.children.allTests()]
  return tests.length === 0 && module.errors().length === 0
    ? [`${nameOf(module)}: has no tests`]
    : tests.flatMap((test) => complaint(test).map((text) => `${nameOf(module)} > ${test.fullName}: ${text}`))
}

const complaint = (test: TestCase): ReadonlyArray<string> => {
  if (test.result().state === "skipped") return [`was not run (${test.options.mode})`]
  if ((test.options.retry ?? 0) > 0) return ["may be retried"]
  if (test.options.fails === true) return ["is meant to fail"]
  return []
}
