import {
  change,
  claim,
  commit,
  complete,
  enqueue,
  hours,
  later,
  type Ledger,
  promote,
  rescue,
  transaction
} from "../../mutation/support/queue.js"
import { rotate, turn } from "../../mutation/support/slots.js"
import type { Session, World } from "../../mutation/support/world.js"

/** Every job and what is known of it, in the order of their ids. */
export const jobsOf = (session: Session): Promise<ReadonlyArray<object>> =>
  session.query(
    "select id, state::text, queue, priority, attempt, run_lease, args::text, errors::text from awa.jobs order by id"
  )

/** What every attempt in the log is: whoever runs one of these again runs a job that has ended. */
export const finishedOf = async (session: Session): Promise<ReadonlySet<string>> => {
  const rows = await session.query<{ id: string }>(
    "select id from awa.jobs where state in ('completed', 'failed', 'cancelled')"
  )
  return new Set(rows.map(({ id }) => id))
}

/** Jobs that failed, dead letters among them, were cancelled, moved or have a unique key. */
const others = async (session: Session, ledger: Ledger): Promise<void> => {
  const [failed, dead] = ledger.claimed(await claim(session, { limit: 2 }))
  await complete(session, [], { ended: [{ ...failed!, act: "fail" }, { ...dead!, act: "fail" }] })
  await session.query("select from awa.dlq_move($1, null, null, 'set aside', null, 1, null)", dead!.job)
  const [cancelled, moved, ...kept] = await enqueue(session, 3)
  await change(session, [cancelled!], { op: "cancel", reason: "not wanted" })
  await change(session, [moved!], { op: "priority", priority: 4 })
  const [row] = await session.query<{ ids: string }>(
    "select ids from awa.enqueue_unique(jsonb_build_array($1::jsonb), true)",
    JSON.stringify({ kind: "k", unique: { key: cancelled!.padStart(32, "0"), states: "11101001" } })
  )
  ledger.waiting([moved!, ...kept, row!.ids])
}

/**
 * Leaves a queue with jobs of every state, over several slots: some wait, some run, some have ended in every way, some were
 * committed behind the cursor that had passed them.
 */
export const live = async (world: World, ledger: Ledger): Promise<void> => {
  const session = await world.session()
  for (let slot = 0; slot < 3; slot++) {
    ledger.waiting(await enqueue(session, Array.from({ length: 30 }, (_, n) => ({ priority: 1 + n % 4, args: { n } }))))
    const attempts = ledger.claimed(await claim(session, { limit: 20 }))
    const retried = attempts.slice(14, 16)
    const returned = attempts.slice(16, 18)
    await complete(session, attempts.slice(0, 14), {
      ended: [
        ...retried.map((attempt) => ({ ...attempt, act: "retry" as const, delay_ms: 60_000 })),
        ...returned.map((attempt) => ({ ...attempt, act: "return" as const }))
      ]
    })
    // The last two run on, and their worker will not be there any more.
    for (const { job, lease } of [...retried, ...returned, ...attempts.slice(18)]) {
      ledger.waiting([job], Number(lease) + 1)
    }
    ledger.waiting(await enqueue(session, [{ run_at: "2100-01-01T00:00:00Z" }]))
    await others(session, ledger)
    if (slot < 2) {
      await rotate(session, 0)
      await turn(session)
    }
  }
  const slow = await transaction(world)
  ledger.waiting(await enqueue(slow, 5))
  ledger.waiting(await enqueue(session))
  await complete(session, ledger.claimed(await claim(session, { limit: 1000 })))
  await commit(slow)
  ledger.waiting(await enqueue(session, 10))
}

/** Claims and completes up to `limit` jobs; answers those of `finished` that were handed out again. */
export const work = async (
  session: Session,
  ledger: Ledger,
  finished: ReadonlySet<string>,
  limit = 1000
): Promise<{ readonly done: number; readonly again: ReadonlyArray<string> }> => {
  const attempts = ledger.claimed(await claim(session, { limit, nonce: 2 }))
  const refused = await complete(session, attempts)
  if (refused.length > 0) throw new Error(`${refused.length} completions were refused`)
  return { done: attempts.length, again: attempts.map(({ job }) => job).filter((job) => finished.has(job)) }
}

/** Works everything that there is, rescued and promoted jobs included; answers what had ended before. */
export const finish = async (
  session: Session,
  ledger: Ledger,
  finished: ReadonlySet<string>
): Promise<ReadonlyArray<string>> => {
  const all: Array<string> = []
  const drain = async (): Promise<void> => {
    for (let left = 1; left > 0;) {
      const { again, done } = await work(session, ledger, finished)
      all.push(...again)
      left = done
    }
  }
  await drain()
  await rescue(session, 0, later(new Date(), hours(1)))
  await promote(session, new Date("2101-01-01"))
  await drain()
  return all
}
