import { Conformance, TestDatabase } from "@awa/testing"
import { afterAll, describe, it } from "vitest"

Conformance.suite("queue storage", TestDatabase.layerQueueStorage(), { afterAll, describe, it })
