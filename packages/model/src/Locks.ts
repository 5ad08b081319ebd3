/**
 * The names by which processes meet in the database: advisory locks and notification channels. All are derived from the
 * storage schema, so that two installations in one database, and the application's own locks, never touch.
 *
 * The SQL side of each is in `migrations/0010_queue_storage_tables.sql` and `0011_queue_storage_enqueue.sql`.
 *
 * @since 0.1.0
 */
import { createHash } from "node:crypto"
import { lockKey } from "./internal/lockKey.js"

/**
 * The two integers of `pg_advisory_lock(int, int)`.
 *
 * @since 0.1.0
 * @category models
 */
export type LockId = readonly [lockClass: number, key: number]

const md5 = (text: string): Buffer => createHash("md5").update(text).digest()

const lockClass = (schema: string, purpose: string): number => lockKey(`awa:${schema}:${purpose}`)

/**
 * Held in share mode by a dispatcher that sleeps until it is notified of work in `queue`: a producer that cannot take
 * it sends a notification.
 *
 * @since 0.1.0
 * @category locks
 */
export const idleLock = (schema: string, queue: string): LockId => [lockClass(schema, "idle"), lockKey(queue)]

/**
 * Held by the one process that maintains a schema.
 *
 * @since 0.1.0
 * @category locks
 */
export const maintenanceLock = (schema: string): LockId => [lockClass(schema, "maintenance"), 0]

/**
 * Held, within its transaction, by a process that migrates a control schema.
 *
 * @since 0.1.0
 * @category locks
 */
export const migrationLock = (schema: string): LockId => [lockClass(schema, "migration"), 0]

/**
 * The channel that tells of work in `queue`: 36 bytes, whatever the lengths of the names.
 *
 * @since 0.1.0
 * @category channels
 */
export const wakeChannel = (schema: string, queue: string): string => `awa:${md5(`${schema}:${queue}`).toString("hex")}`

/**
 * The channel that tells workers which of their attempts an operator ended. No queue's name can collide with it.
 *
 * @since 0.1.0
 * @category channels
 */
export const abortedChannel = (schema: string): string => `awa:aborted:${md5(schema).toString("hex")}`
