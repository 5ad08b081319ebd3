/** @internal How queue storage is laid out: chosen when it is installed. */
import * as Effect from "effect/Effect"
import { InvalidSetting } from "../../Errors.js"
import type { QueueStorageConfig } from "../../QueueStorage.js"

/** @internal */
export type Layout = { readonly [K in keyof QueueStorageConfig]-?: NonNullable<QueueStorageConfig[K]> }

type Count = "queueSlotCount" | "leaseSlotCount"

/** @internal */
export const defaults: Layout = { queueSlotCount: 16, leaseSlotCount: 8, leaseClaimReceipts: true }

/** The ring turns with four: one open, one to empty, one whose history is kept, one to rotate into. */
const least: Readonly<Record<Count, number>> = { queueSlotCount: 4, leaseSlotCount: 2 }

/** Each slot is a handful of tables. */
const most = 64

/** @internal Fills in what is left out. */
export const make = (config: QueueStorageConfig = {}): Effect.Effect<Layout, InvalidSetting> =>
  Effect.all({
    queueSlotCount: checked("queueSlotCount", config.queueSlotCount),
    leaseSlotCount: checked("leaseSlotCount", config.leaseSlotCount),
    leaseClaimReceipts: checkedReceipts(config.leaseClaimReceipts)
  })

const checkedReceipts = (value: boolean = defaults.leaseClaimReceipts): Effect.Effect<boolean, InvalidSetting> =>
  typeof value === "boolean"
    ? Effect.succeed(value)
    : new InvalidSetting({ setting: "leaseClaimReceipts", value, reason: "must be true or false" })

const checked = (
  setting: Count,
  value: number = defaults[setting]
): Effect.Effect<number, InvalidSetting> =>
  Number.isInteger(value) && value >= least[setting] && value <= most
    ? Effect.succeed(value)
    : new InvalidSetting({ setting, value, reason: `must be a whole number from ${least[setting]} to ${most}` })
