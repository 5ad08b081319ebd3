import effect from "@effect/eslint-plugin"
import tseslint from "typescript-eslint"

const sources = ["packages/{model,worker,awa,testing,embedded}/src/**/*.ts"]
const tests = ["packages/*/test/**/*.ts", "test/**/*.ts"]

/** Dependencies point one way. */
const mayImport = {
  "@awa/embedded": [],
  "@awa/model": [],
  "@awa/worker": ["@awa/model"],
  awa: ["@awa/model", "@awa/worker"],
  "@awa/testing": ["@awa/embedded", "@awa/model", "@awa/worker", "awa"]
}

const noInternals = {
  regex: "^(awa|@awa/[^/]+)/(internal|src|dist)/",
  message: "The inside of another package is its own business."
}

const importRules = ([name, allowed]) => ({
  files: [`packages/${name.replace("@awa/", "")}/src/**/*.ts`],
  rules: {
    "@typescript-eslint/no-restricted-imports": ["error", {
      paths: [{ name: "effect", message: "Import the module: import * as Effect from \"effect/Effect\"." }],
      patterns: [
        noInternals,
        ...Object.keys(mayImport).filter((other) => !allowed.includes(other)).map((other) => ({
          regex: `^${other}(/|$)`,
          message: `${name} does not depend on ${other}.`
        }))
      ]
    }]
  }
})

const testCall = "CallExpression[callee.type=/Identifier|MemberExpression/]"

export default tseslint.config(
  { ignores: ["**/node_modules/**", "**/dist/**", "**/*.generated.ts"] },
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  ...tseslint.configs.recommended,
  {
    plugins: { "@effect": effect },
    rules: {
      "@effect/dprint": ["error", {
        config: {
          indentWidth: 2,
          lineWidth: 120,
          operatorPosition: "maintain",
          semiColons: "asi",
          quoteStyle: "alwaysDouble",
          trailingCommas: "never",
          "arrowFunction.useParentheses": "force"
        }
      }],
      "@typescript-eslint/consistent-type-imports": ["error", { fixStyle: "inline-type-imports" }],
      "@typescript-eslint/array-type": ["error", { default: "generic", readonly: "generic" }],
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }],
      "@typescript-eslint/no-empty-object-type": "off",
      "@typescript-eslint/no-namespace": "off",
      "no-duplicate-imports": ["error", { allowSeparateTypeImports: true }],
      "object-shorthand": "error",
      "prefer-const": "error",
      eqeqeq: "error"
    }
  },
  {
    files: sources,
    rules: {
      "no-restricted-globals": ["error", "setTimeout", "setInterval", "setImmediate", "console"],
      "no-restricted-properties": [
        "error",
        { object: "Date", property: "now", message: "Use Clock or the database's time." },
        { object: "Math", property: "random", message: "Use Random." }
      ],
      "no-restricted-syntax": [
        "error",
        {
          selector: "NewExpression[callee.name='Date'][arguments.length=0]",
          message: "Use Clock or the database's time."
        },
        { selector: "TSAsExpression > TSAnyKeyword", message: "Say what makes the cast true, with a real type." }
      ],
      "@typescript-eslint/ban-ts-comment": ["error", { "ts-expect-error": true, "ts-ignore": true, "ts-nocheck": true }]
    }
  },
  ...Object.entries(mayImport).map(importRules),
  {
    files: [...tests, "packages/{bench,demo,tooling}/**/*.ts"],
    rules: {
      "@typescript-eslint/no-restricted-imports": ["error", { patterns: [noInternals] }]
    }
  },
  {
    files: tests,
    rules: {
      "no-restricted-syntax": [
        "error",
        {
          selector: "MemberExpression[property.name=/^(skip|skipIf|runIf|todo|only|fails|retry)$/]",
          message: "Every test runs, once, or does not exist."
        },
        {
          selector: `${testCall} IfStatement > ReturnStatement[argument=null].consequent`,
          message: "A test that returns early proves nothing."
        },
        {
          selector: "CallExpression[callee.object.name='Effect'][callee.property.name=/^(sleep|delay)$/]",
          message: "Await a signal or an observable."
        },
        { selector: "CallExpression[callee.name='setTimeout']", message: "Await a signal or an observable." }
      ]
    }
  },
  {
    files: ["**/*.tst.ts"],
    rules: { "@typescript-eslint/ban-ts-comment": "off" }
  }
)
