/** @internal A short cut through schemas whose encoded and decoded forms are the same. */
import type * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import type * as Schema from "effect/Schema"
import * as AST from "effect/SchemaAST"

/**
 * Whether a value is certain to pass unchanged. `false` means "ask the schema", not "invalid".
 *
 * @internal
 */
export type Check = (value: unknown) => boolean

/**
 * For a schema made of structs, arrays, unions, literals, refinements and the JSON primitives alone, encoding and
 * decoding a plain value without excess properties do nothing but look at it. Looking costs a tenth of running the
 * schema. `null` for any other schema.
 *
 * @internal
 */
export const check = (schema: Schema.Schema.All): Check | null => checkOf(schema.ast)

/**
 * Lets plain values pass, and asks the schema about the others.
 *
 * @internal
 */
export const shortCut = <A, E, R>(
  plain: Check | null,
  ask: (value: unknown) => Effect.Effect<A, E, R>
): (value: unknown) => Effect.Effect<A, E, R> =>
  // A plain value is of the type on both sides of the schema.
  plain === null ? ask : (value) => plain(value) ? Either.right(value as A) : ask(value)

const checkOf = (ast: AST.AST): Check | null => {
  switch (ast._tag) {
    case "StringKeyword":
      return (value) => typeof value === "string"
    case "NumberKeyword":
      return (value) => typeof value === "number"
    case "BooleanKeyword":
      return (value) => typeof value === "boolean"
    case "UndefinedKeyword": // of an optional property: JSON has no such value
      return () => false
    case "Literal":
      return typeof ast.literal === "bigint" ? null : (value) => value === ast.literal
    case "Refinement":
      return refinement(ast)
    case "Union":
      return union(ast)
    case "TupleType":
      return array(ast)
    case "TypeLiteral":
      return struct(ast)
    default:
      return null
  }
}

const refinement = (ast: AST.Refinement): Check | null => {
  const from = checkOf(ast.from)
  return from === null ? null : (value) => from(value) && Option.isNone(ast.filter(value, AST.defaultParseOption, ast))
}

const union = (ast: AST.Union): Check | null => {
  const members = allOf(ast.types)
  return members === null ? null : (value) => members.some((member) => member(value))
}

const array = (ast: AST.TupleType): Check | null => {
  const [rest, ...more] = ast.rest
  if (rest === undefined || more.length > 0 || ast.elements.length > 0) return null
  const item = checkOf(rest.type)
  return item === null ? null : (value) => Array.isArray(value) && isDense(value, item)
}

const isDense = (values: ReadonlyArray<unknown>, item: Check): boolean => {
  for (let i = 0; i < values.length; i++) if (!item(values[i])) return false
  return true
}

const struct = (ast: AST.TypeLiteral): Check | null => {
  const signatures = ast.propertySignatures
  if (ast.indexSignatures.length > 0 || signatures.length === 0 || signatures.some(isUnusual)) return null
  const checks = allOf(signatures.map((signature) => signature.type))
  if (checks === null) return null
  const keys = signatures.map(({ name }) => name as string)
  const optional = signatures.map(({ isOptional }) => isOptional)
  return (value) => {
    if (!isPlainObject(value)) return false
    let known = 0
    for (let i = 0; i < keys.length; i++) {
      if (Object.hasOwn(value, keys[i]!)) {
        if (!checks[i]!(value[keys[i]!])) return false
        known += 1
      } else if (!optional[i]) {
        return false
      }
    }
    return Object.keys(value).length === known
  }
}

/** `toJSON` would be called where the schema would have copied the properties. */
const isUnusual = ({ name }: AST.PropertySignature): boolean => typeof name !== "string" || name === "toJSON"

const isPlainObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype

const allOf = (asts: ReadonlyArray<AST.AST>): ReadonlyArray<Check> | null => {
  const checks = asts.map(checkOf)
  return checks.every((one) => one !== null) ? checks as ReadonlyArray<Check> : null
}
