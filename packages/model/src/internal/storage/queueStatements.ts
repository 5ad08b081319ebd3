/** @internal The statements of queue storage. Texts are constant per schema, so that connections prepare them once. */
import type { Schemas } from "../../StorageSchemas.js"
import { registerStatement } from "../statements.js"

/** @internal */
export const make = ({ engine }: Schemas) => {
  const schema = `"${engine}"`
  return {
    claim: registerStatement(
      `select jobs, claimed_at, deadline_at from ${schema}.claim($1::text, $2::int, $3::uuid, $4::bigint, $5::bigint, $6::boolean, $7::timestamptz)`
    ),
    complete: registerStatement(
      `select ${schema}.complete($1::uuid, $2::jsonb, $3::jsonb, $4::timestamptz)::text as rejected`
    ),
    heartbeat: registerStatement(`select ${schema}.heartbeat($1::uuid, $2::jsonb, $3::timestamptz)::text as lost`),
    ownedAttempts: registerStatement(
      `select ${schema}.owned_attempts($1::uuid, $2::bigint, $3::bigint, $4::timestamptz)::text as owned`
    ),
    probe: registerStatement(`select ${schema}.probe($1::text[]) as queue`),
    promote: registerStatement(`select ${schema}.promote($1::int, $2::timestamptz) as promoted`),
    rescue: registerStatement(
      `select rescued::text, complete, settled::text, xid::text, xmin::text from ${schema}.rescue($1::text, $2::bigint, $3::bigint, $4::int, $5::timestamptz)`
    ),
    sequenceBehind: `select ${schema}.sequence_behind() as sequence`,
    status: registerStatement(
      `select system_identifier::text, epoch_identifier::text, cached_sequence from ${schema}.storage_status()`
    )
  } as const
}
