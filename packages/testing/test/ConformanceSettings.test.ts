import { Conformance, TestDatabase } from "@awa/testing"
import { afterAll, describe, it } from "vitest"

/** What a role or a database may have been given, for an application that is older than the queue. */
const settings = {
  array_nulls: "off",
  bytea_output: "escape",
  DateStyle: "SQL,DMY",
  default_transaction_deferrable: "on",
  extra_float_digits: "0",
  from_collapse_limit: "1",
  geqo: "off",
  IntervalStyle: "sql_standard",
  join_collapse_limit: "1",
  plan_cache_mode: "force_custom_plan",
  quote_all_identifiers: "on",
  row_security: "off",
  search_path: "nowhere",
  standard_conforming_strings: "off",
  TimeZone: "Pacific/Chatham",
  transform_null_equals: "on",
  xmloption: "document"
}

// With a template of its own, so that the migrations run under them, too.
const queueStorage = { queueSlotCount: 5, leaseSlotCount: 3 }

const url = new URL(process.env["AWA_TEST_ADMIN_URL"]!)
url.searchParams.set("options", Object.entries(settings).map(([name, value]) => `-c ${name}=${value}`).join(" "))

Conformance.suite(
  "queue storage under other settings",
  TestDatabase.layerQueueStorage({ adminUrl: url.href, queueStorage }),
  {
    afterAll,
    describe,
    it
  }
)
