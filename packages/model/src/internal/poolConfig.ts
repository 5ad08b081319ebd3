/**
 * From the options of `Database` to those of node-postgres, checked.
 */
import type * as PgClient from "@effect/sql-pg/PgClient"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Pg from "pg"
import { parseIntoClientConfig } from "pg-connection-string"
import type { Options } from "../Database.js"
import { InvalidSetting } from "../Errors.js"
import * as pgErrors from "./pgErrors.js"

/** @internal */
export const make = (options: Options): Effect.Effect<Pg.PoolConfig, InvalidSetting> =>
  Effect.gen(function*() {
    const max = yield* count("maxConnections", options.maxConnections, 1)
    const min = yield* count("minConnections", options.minConnections, 0)
    const port = yield* count("port", options.port, 1)
    const lifetime = yield* millis("connectionTTL", options.connectionTTL)
    const explicit: Pg.PoolConfig = {
      host: options.host,
      port,
      database: options.database,
      user: options.username,
      password: typeof options.password === "function" ? options.password : secret(options.password),
      ssl: options.ssl,
      // A type of node-postgres that allows no answer; a stream is always there.
      ...(options.stream === undefined ? {} : { stream: options.stream }),
      max,
      min,
      connectionTimeoutMillis: (yield* millis("connectTimeout", options.connectTimeout)) ?? 5000,
      idleTimeoutMillis: yield* millis("idleTimeout", options.idleTimeout),
      maxLifetimeSeconds: lifetime === undefined ? undefined : Math.ceil(lifetime / 1000),
      application_name: options.applicationName,
      types: options.types,
      onConnect: options.onConnect,
      keepAlive: true
    }
    const parsed = yield* parseUrl(secret(options.url))
    const config = { application_name: "awa", ...given(parsed), ...given(explicit) }
    // What contradicts itself is found when node-postgres makes a client.
    yield* Effect.try({ try: () => new Pg.Client(config), catch: (error) => invalidUrl(pgErrors.describe(error)) })
    return config
  })

/**
 * The configuration a `PgClient` shows.
 *
 * @internal
 */
export const toClientConfig = (config: Pg.PoolConfig, options: Options): PgClient.PgClientConfig => {
  // A client opens its stream when it is made, and this one is never closed.
  const { stream: _, ...plain } = config
  const { database, host, port, user } = new Pg.Client(plain)
  return {
    ...options,
    url: options.url === undefined ? undefined : Redacted.make(secret(options.url)),
    host,
    port,
    database,
    username: user,
    password: typeof config.password === "string" ? Redacted.make(config.password) : undefined,
    ssl: config.ssl,
    applicationName: config.application_name
  }
}

function secret(value: Redacted.Redacted | string): string
function secret(value: Redacted.Redacted | string | undefined): string | undefined
function secret(value: Redacted.Redacted | string | undefined): string | undefined {
  return Redacted.isRedacted(value) ? Redacted.value(value) : value
}

const given = <A extends object>(options: A): A =>
  // Removes members; what remains has the type it had.
  Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined && value !== "")) as A

const invalidUrl = (reason: string): InvalidSetting =>
  new InvalidSetting({ setting: "url", value: "<redacted>", reason })

/** The parser's own failure may quote the URL, and with it the password. */
const parseUrl = (url: string | undefined): Effect.Effect<Pg.ClientConfig, InvalidSetting> =>
  url === undefined
    ? Effect.succeed({})
    : !/^postgres(ql)?:\/\//.test(url)
    ? invalidUrl("must begin with postgres:// or postgresql://")
    : Effect.try({
      try: () => parseIntoClientConfig(url),
      catch: () => invalidUrl("cannot be read: use postgres://user:password@host:port/database, percent-encoded")
    })

const count = (
  setting: string,
  value: number | undefined,
  min: number
): Effect.Effect<number | undefined, InvalidSetting> =>
  value === undefined || Number.isInteger(value) && value >= min && value <= 65_535
    ? Effect.succeed(value)
    : new InvalidSetting({ setting, value, reason: `must be a whole number from ${min} to 65535` })

/** Timers of Node take a signed 32-bit number of milliseconds; zero would mean "no limit". */
const maxMillis = 2 ** 31 - 1

const millis = (
  setting: string,
  value: Duration.DurationInput | undefined
): Effect.Effect<number | undefined, InvalidSetting> => {
  if (value === undefined) return Effect.succeed(undefined)
  const time = Duration.toMillis(Option.getOrElse(Duration.decodeUnknown(value), () => Duration.zero))
  return time >= 1 && time <= maxMillis
    ? Effect.succeed(Math.ceil(time))
    : new InvalidSetting({ setting, value, reason: "must be a duration from 1 millisecond to 24 days" })
}
