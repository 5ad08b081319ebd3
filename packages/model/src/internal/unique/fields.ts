import type * as Schema from "effect/Schema"
import * as AST from "effect/SchemaAST"

/**
 * The fields a stored payload may have, `null` where the schema does not say.
 *
 * @internal
 */
export const fieldsOf = (schema: Schema.Schema.All): ReadonlySet<string> | null => of(AST.encodedAST(schema.ast))

const of = (ast: AST.AST): ReadonlySet<string> | null => {
  switch (ast._tag) {
    case "TypeLiteral":
      return ast.indexSignatures.length > 0
        ? null
        : new Set(ast.propertySignatures.map(({ name }) => name).filter((name) => typeof name === "string"))
    case "Union": {
      const members = ast.types.map(of)
      return members.includes(null) ? null : new Set(members.flatMap((fields) => [...fields ?? []]))
    }
    case "Refinement":
      return of(ast.from)
    default:
      return null
  }
}
