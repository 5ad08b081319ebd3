// NUL and lone surrogates, which PostgreSQL's text cannot hold.
const unstorable = /\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

/**
 * A text as PostgreSQL can store it.
 *
 * @internal
 */
export const storable = (text: string): string => text.replace(unstorable, "\ufffd")
