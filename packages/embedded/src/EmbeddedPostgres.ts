/**
 * A real PostgreSQL server out of the npm registry: its own data folder, its own port on the loopback interface, started in about
 * a second and gone with its scope. Several can run at once, also as root and from a folder that only root may enter.
 *
 * The server also ends when this process dies, whatever ends it.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import type * as Scope from "effect/Scope"
import * as Path from "node:path"
import * as Pg from "pg"
import { type EmbeddedPostgresError } from "./EmbeddedPostgresError.js"
import { prepare } from "./internal/binaries.js"
import { attempt, dataFolder, logFile, makeHome } from "./internal/folders.js"
import type { Guarded, Signal } from "./internal/guardian.js"
import { initialize, superuser } from "./internal/initdb.js"
import { freePort } from "./internal/port.js"
import { launch } from "./internal/server.js"

export {
  /**
   * @since 0.1.0
   * @category errors
   */
  EmbeddedPostgresError
} from "./EmbeddedPostgresError.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** Major version, 18 by default. The others need an npm alias, which the error names when it is missing. */
  readonly version?: 15 | 16 | 17 | 18 | undefined
  /** Port on 127.0.0.1; by default a free one. It stays the same when the server restarts. */
  readonly port?: number | undefined
  /** Whether commits survive a crash of the machine, `true` by default. Without it, several times faster, they still survive one of the server. */
  readonly fsync?: boolean | undefined
  /** Further settings, as in `postgresql.conf`. */
  readonly settings?: Readonly<Record<string, string | number | boolean>> | undefined
  /** How long a start may take, 60 seconds by default. */
  readonly startTimeout?: Duration.DurationInput | undefined
}

/**
 * How a server ends: `fast` rolls back what runs and closes cleanly; `immediate` is a crash that the next start recovers from.
 *
 * @since 0.1.0
 * @category models
 */
export type StopMode = "fast" | "immediate"

/**
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** Connection URL of the superuser for the database `postgres`. It holds the password. */
  readonly url: string
  /** The same for another database. */
  readonly urlOf: (database: string) => string
  readonly port: number
  readonly dataFolder: string
  readonly logFile: string
  /** Starts a stopped server; does nothing when it runs. */
  readonly start: Effect.Effect<void, EmbeddedPostgresError>
  /** Ends the server and waits for that; does nothing when it is stopped. `fast` by default. */
  readonly stop: (mode?: StopMode) => Effect.Effect<void>
  readonly restart: (mode?: StopMode) => Effect.Effect<void, EmbeddedPostgresError>
  /** Ends the server with SIGKILL. */
  readonly kill: Effect.Effect<void>
  /** Makes a database, by default an empty one, and answers its URL. */
  readonly createDatabase: (name: string, template?: string) => Effect.Effect<string, EmbeddedPostgresError>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class EmbeddedPostgres extends Context.Tag("@awa/embedded/EmbeddedPostgres")<EmbeddedPostgres, Service>() {}

/**
 * Starts a server that ends, together with its data, when the scope closes.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (options: Options = {}): Effect.Effect<Service, EmbeddedPostgresError, Scope.Scope> =>
  Effect.gen(function*() {
    const binaries = yield* prepare(options.version ?? 18)
    const home = yield* makeHome
    const password = yield* initialize(binaries, home)
    const current = yield* Ref.make(Option.none<Guarded>())
    const oneAtATime = yield* Effect.makeSemaphore(1)

    const launchOn = (port: number) =>
      Effect.flatMap(
        launch({
          home,
          command: commandLine(binaries, home, port, options),
          timeout: options.startTimeout ?? "60 seconds"
        }),
        (running) => Ref.set(current, Option.some(running))
      ).pipe(Effect.uninterruptible)

    const end = (signal: Signal) =>
      Effect.flatMap(
        Ref.getAndSet(current, Option.none()),
        Option.match({ onNone: () => Effect.void, onSome: (running) => endServer(running, signal) })
      ).pipe(Effect.uninterruptible)

    yield* Effect.addFinalizer(() => end("QUIT"))
    const port = yield* firstStart(launchOn, options.port)

    const start = Effect.flatMap(isRunning(current), (running) => running ? Effect.void : launchOn(port))
    const stop = (mode: StopMode = "fast") => end(mode === "fast" ? "INT" : "QUIT")
    const urlOf = (database: string) => `postgres://${superuser}:${password}@127.0.0.1:${port}/${encodeURI(database)}`
    const url = urlOf("postgres")
    return {
      url,
      urlOf,
      port,
      dataFolder: dataFolder(home),
      logFile: logFile(home),
      start: oneAtATime.withPermits(1)(start),
      stop: (mode) => oneAtATime.withPermits(1)(stop(mode)),
      restart: (mode) => oneAtATime.withPermits(1)(Effect.zipRight(stop(mode), start)),
      kill: oneAtATime.withPermits(1)(end("KILL")),
      createDatabase: (name, template) =>
        Effect.as(createDatabase(url, name, template, options.fsync ?? true), urlOf(name))
    }
  })

/**
 * @since 0.1.0
 * @category layers
 */
export const layer = (options?: Options): Layer.Layer<EmbeddedPostgres, EmbeddedPostgresError> =>
  Layer.scoped(EmbeddedPostgres, make(options))

/** Another program may take a free port before the server does: then there is a next one. */
const firstStart = (
  launchOn: (port: number) => Effect.Effect<void, EmbeddedPostgresError>,
  chosen: number | undefined
): Effect.Effect<number, EmbeddedPostgresError> =>
  chosen !== undefined
    ? Effect.as(launchOn(chosen), chosen)
    : Effect.tap(freePort, launchOn).pipe(
      Effect.retry({ while: (error) => error.reason === "port-taken", times: 10 })
    )

const isRunning = (current: Ref.Ref<Option.Option<Guarded>>): Effect.Effect<boolean> =>
  Effect.flatMap(
    Ref.get(current),
    Option.match({ onNone: () => Effect.succeed(false), onSome: (running) => running.isAlive })
  )

const endServer = (running: Guarded, signal: Signal): Effect.Effect<void> =>
  Effect.zipRight(running.signal(signal), running.exitCode).pipe(
    Effect.interruptible,
    Effect.timeoutTo({ duration: "30 seconds", onTimeout: () => false, onSuccess: () => true }),
    Effect.flatMap((ended) => ended ? Effect.void : Effect.zipRight(running.signal("KILL"), running.exitCode)),
    Effect.withClock(Clock.make())
  )

const commandLine = (
  binaries: string,
  home: string,
  port: number,
  options: Options
): ReadonlyArray<string> => {
  const settings = {
    ...(options.fsync === false ? { fsync: false, full_page_writes: false } : {}),
    log_timezone: "UTC",
    timezone: "UTC",
    ...options.settings,
    listen_addresses: "127.0.0.1",
    port,
    unix_socket_directories: ""
  }
  return [
    Path.join(binaries, "bin", "postgres"),
    "-D",
    dataFolder(home),
    ...Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${String(value)}`])
  ]
}

const createDatabase = (url: string, name: string, template: string | undefined, fsync: boolean) =>
  attempt("query-failed", `could not create the database ${name}`, async () => {
    const client = new Pg.Client({ connectionString: url })
    await client.connect()
    try {
      const source = template === undefined ? "" : ` template ${Pg.escapeIdentifier(template)}`
      // Copying files needs a checkpoint, which is only cheap when nothing has to reach the disk.
      const strategy = fsync ? "wal_log" : "file_copy"
      await client.query(`create database ${Pg.escapeIdentifier(name)}${source} strategy ${strategy}`)
    } finally {
      await client.end()
    }
  })
