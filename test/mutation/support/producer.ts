import type { Chance } from "./chance.js"
import type { Job } from "./history.js"
import { enqueue, enqueueOne, later, rollback } from "./queue.js"
import type { Stage } from "./stage.js"
import type { Session } from "./world.js"

/** Transactions at all isolation levels, with several calls, savepoints and pauses, some prepared, some rolled back. */
export const produce = async (stage: Stage, number: number, chance: Chance): Promise<void> => {
  const session = await stage.world.session()
  while (stage.goesOn()) {
    stage.done.transactions++
    try {
      await transaction(stage, session, `${number}_${stage.done.transactions}`, chance)
    } catch (error) {
      if (!isConflict(error)) throw error
      stage.done.conflicts++
      await rollback(session)
    }
  }
}

const isConflict = (error: unknown): boolean =>
  error instanceof Error && "code" in error && (error.code === "40001" || error.code === "40P01")

const transaction = async (stage: Stage, session: Session, name: string, chance: Chance): Promise<void> => {
  const prepares = chance.happens(0.12)
  const end = chance.happens(0.8) ? "commit" : "rollback"
  await session.query(`begin isolation level ${chance.of(["read committed", "repeatable read", "serializable"])}`)
  if (chance.happens(0.5)) await session.query("insert into unrelated values (1)")
  if (prepares) await session.query("set local awa.wakeup = 'off'")
  const jobs = await calls(stage, session, chance)
  if (prepares) {
    stage.done.prepared++
    await session.query(`prepare transaction '${name}'`)
    await pause(stage, chance)
    await session.query(`${end} prepared '${name}'`)
  } else {
    await session.query(end)
  }
  if (end === "commit") stage.history.committed(jobs)
  else stage.done.rolledBack++
}

const pause = ({ claims }: Stage, chance: Chance): Promise<void> =>
  claims.pass(chance.happens(0.05) ? chance.upTo(400) : chance.upTo(8))

/** Answers the jobs that survive the savepoints. */
const calls = async (stage: Stage, session: Session, chance: Chance): Promise<ReadonlyArray<Job>> => {
  const jobs: Array<Job> = []
  for (let left = chance.upTo(3); left > 0; left--) {
    jobs.push(...(chance.happens(0.3) ? await inSavepoint(stage, session, chance) : await call(stage, session, chance)))
    await pause(stage, chance)
  }
  return jobs
}

const inSavepoint = async (stage: Stage, session: Session, chance: Chance): Promise<ReadonlyArray<Job>> => {
  const undone = chance.happens(0.4)
  await session.query("savepoint s")
  const jobs = await call(stage, session, chance)
  await session.query(undone ? "rollback to savepoint s" : "release savepoint s")
  return undone ? [] : jobs
}

const keys = [null, null, "a", "b", "c", "d"] as const

const call = async ({ history, shards }: Stage, session: Session, chance: Chance): Promise<ReadonlyArray<Job>> => {
  const calledAt = history.instant()
  if (chance.happens(0.2)) {
    return [{ id: await enqueueOne(session), lane: shards === 1 ? "2" : null, deferred: false, calledAt }]
  }
  const jobs = Array.from({ length: chance.happens(0.02) ? 300 : chance.upTo(20) }, () => ({
    priority: chance.upTo(4),
    key: chance.of(keys),
    deferred: chance.happens(0.1)
  }))
  const now = new Date()
  const soon = later(now, 20).toISOString()
  const ids = await enqueue(
    session,
    jobs.map(({ deferred, key, priority }) => ({ priority, ordering_key: key, run_at: deferred ? soon : null })),
    now
  )
  return jobs.map(({ deferred, key, priority }, index) => ({
    id: ids[index] ?? "",
    lane: shards === 1 ? `${priority}` : key === null ? null : `${priority} ${key}`,
    deferred,
    calledAt
  }))
}
