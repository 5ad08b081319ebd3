/**
 * @since 0.1.0
 */
export * as Conformance from "./Conformance.js"

/**
 * @since 0.1.0
 */
export * as Jobs from "./Jobs.js"

/**
 * @since 0.1.0
 */
export * as TestDatabase from "./TestDatabase.js"

/**
 * @since 0.1.0
 */
export * as Wait from "./Wait.js"
