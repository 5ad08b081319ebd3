/** @internal The statements of queue storage. Texts are constant per schema, so that connections prepare them once. */
import type { Schemas } from "../../StorageSchemas.js"
import { registerStatement } from "../statements.js"

/** @internal */
export const make = ({ engine }: Schemas) => {
  const schema = `"${engine}"`
  return {
    claim: registerStatement(
      `select coalesce(jobs, '[]') as jobs, floor(extract(epoch from claimed_at) * 1000)::float8 as claimed_at from ${schema}.claim($1::text, $2::int, $3::uuid, $4::bigint, $5::bigint, $6::boolean, $7::timestamptz, $8::bigint)`
    ),
    complete: registerStatement(
      `select ${schema}.complete($1::uuid, $2::jsonb, $3::jsonb, $4::timestamptz, $5::jsonb)::text as rejected`
    ),
    completeAndClaim: registerStatement(
      `call ${schema}.complete_and_claim($1::uuid, $2::jsonb, $3::jsonb, $4::jsonb, $5::text, $6::int, $7::bigint, $8::bigint, $9::boolean, $10::timestamptz, $11::bigint, null, null, null)`
    ),
    dlqCleanup: `select ${schema}.dlq_cleanup($1::bigint, $2::int, $3::timestamptz) as gone`,
    heartbeat: registerStatement(`select ${schema}.heartbeat($1::uuid, $2::jsonb, $3::timestamptz)::text as lost`),
    ownedAttempts: registerStatement(
      `select ${schema}.owned_attempts($1::uuid, $2::bigint, $3::bigint, $4::timestamptz)::text as owned`
    ),
    overrides: registerStatement(
      `select queue, overrides::text from ${schema}.queue_settings($1::text[]) where overrides <> '{}'`
    ),
    probe: registerStatement(`select ${schema}.probe($1::text[]) as queue`),
    cancelRequested: registerStatement(
      `select ${schema}.apply_cancel_requests($1::int, $2::timestamptz) as settled`
    ),
    promote: registerStatement(`select ${schema}.promote($1::int, $2::timestamptz) as promoted`),
    rescue: registerStatement(
      `select rescued::text, complete, settled::text, xid::text, xmin::text from ${schema}.rescue($1::text, $2::bigint, $3::bigint, $4::int, $5::timestamptz, $6::jsonb)`
    ),
    config:
      `select ${schema}.storage_setting('queue_slots') as queue_slots, ${schema}.storage_setting('lease_slots') as lease_slots, ${schema}.storage_setting('lease_claim_receipts') as receipts`,
    rotate: `select ${schema}.rotate($1::bigint, $2::timestamptz) as rotated`,
    publishSlot: `select ${schema}.publish_slot()`,
    rotateLeases: `select ${schema}.rotate_leases($1::bigint, $2::timestamptz) as rotated`,
    sealedSlots: `select slot from ${schema}.sealed_slots()`,
    countSlot: `select ${schema}.count_slot($1::smallint) as counted`,
    evict: `select ${schema}.evict($1::smallint, $2::bigint, $3::int, $4::timestamptz) as count`,
    drainSlot: `select lanes, drained from ${schema}.drain_slot($1::smallint, $2::bigint, $3::int, $4::timestamptz)`,
    keepHistory: `select ${schema}.keep_history($1::smallint, $2::bigint, $3::int, $4::timestamptz) as count`,
    freeSlot: `select ${schema}.free_slot($1::smallint, $2::bigint, $3::bigint, $4::timestamptz) as answer`,
    expire: `select ${schema}.expire($1::bigint, $2::bigint, $3::bigint, $4::int, $5::timestamptz) as count`,
    sweepUnique: registerStatement(
      `select released, encode(last, 'hex') as last from ${schema}.sweep_unique(decode($1::text, 'hex'), $2::int)`
    ),
    sequenceBehind: `select ${schema}.sequence_behind() as sequence`,
    status: registerStatement(
      `select system_identifier::text, epoch_identifier::text, cached_sequence from ${schema}.storage_status()`
    )
  } as const
}
