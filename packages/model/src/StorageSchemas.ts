/**
 * Where in a database the jobs live.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { InvalidSetting } from "./Errors.js"

/**
 * The names of two schemas, which may be one: `control` holds what all storage engines of a database share, `engine` the
 * jobs of one of them.
 *
 * @since 0.1.0
 * @category models
 */
export interface Schemas {
  readonly control: string
  readonly engine: string
}

/**
 * The schemas every operation of this library uses: `awa` for both unless `StorageSchemas.layer` says otherwise.
 *
 * @since 0.1.0
 * @category references
 */
export class StorageSchemas extends Context.Reference<StorageSchemas>()("@awa/model/StorageSchemas", {
  defaultValue: (): Schemas => ({ control: "awa", engine: "awa" })
}) {}

/**
 * Checks the names: lower-case letters, digits and underscores, at most 63 of them, none that PostgreSQL reserves. A
 * name that is left out is `awa`.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (names: Partial<Schemas>): Effect.Effect<Schemas, InvalidSetting> =>
  Effect.all({
    control: checked("schemas.control", names.control),
    engine: checked("schemas.engine", names.engine)
  })

/**
 * Uses other schemas than `awa`.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (names: Partial<Schemas>): Layer.Layer<StorageSchemas, InvalidSetting> =>
  Layer.effect(StorageSchemas, make(names))

const checked = (setting: string, name: string = "awa"): Effect.Effect<string, InvalidSetting> =>
  !/^[a-z_][a-z0-9_]{0,62}$/.test(name)
    ? new InvalidSetting({
      setting,
      value: name,
      reason: "use at most 63 lower-case letters, digits and underscores, not starting with a digit"
    })
    : /^(pg_|information_schema$)/.test(name)
    ? new InvalidSetting({ setting, value: name, reason: "PostgreSQL keeps this name for itself" })
    : Effect.succeed(name)
