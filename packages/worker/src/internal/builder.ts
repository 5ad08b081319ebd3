import type { StorageEngine } from "@awa/model/StorageEngine"
import type * as Layer from "effect/Layer"
import * as Pipeable from "effect/Pipeable"
import type { Builder } from "../Awa.js"
import * as Settings from "./settings.js"

export const TypeId: unique symbol = Symbol.for("@awa/worker/Awa/Builder")

export type TypeId = typeof TypeId

const Parts: unique symbol = Symbol.for("@awa/worker/Awa/Parts")

/** What a builder collected. */
export interface Parts extends Settings.Options {
  /** `undefined`: queue storage. */
  readonly storage: Layer.Layer<StorageEngine, unknown, unknown> | undefined
}

const variance = {
  _E: (_: never) => _,
  _R: (_: never) => _,
  _Kinds: (_: never) => _
}

class Implementation extends Pipeable.Class() implements Builder<never, never> {
  readonly [TypeId] = variance
  readonly [Parts]: Parts
  constructor(parts: Parts) {
    super()
    this[Parts] = parts
  }
}

export const empty: Parts = { ...Settings.emptyOptions, storage: undefined }

export const make = (parts: Parts): Builder<never, never> => new Implementation(parts)

/** Every builder was made by `make`. */
export const partsOf = <E, R, Kinds extends string>(self: Builder<E, R, Kinds>): Parts =>
  (self as Builder<never, never> as Implementation)[Parts]

export const modify = <E, R, Kinds extends string>(
  self: Builder<E, R, Kinds>,
  f: (parts: Parts) => Parts
): Builder<never, never> => make(f(partsOf(self)))
