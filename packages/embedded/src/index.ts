/**
 * A real PostgreSQL for tests, demos and local development.
 *
 * @since 0.1.0
 */
export * as EmbeddedPostgres from "./EmbeddedPostgres.js"
export * as EmbeddedPostgresError from "./EmbeddedPostgresError.js"
