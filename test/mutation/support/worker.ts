import { randomUUID } from "node:crypto"
import type { Chance } from "./chance.js"
import {
  type Attempt,
  begin,
  claim,
  complete,
  type End,
  heartbeat,
  hours,
  later,
  minutes,
  promote,
  rescue,
  rollback
} from "./queue.js"
import * as Slots from "./slots.js"
import type { Stage } from "./stage.js"
import type { Session } from "./world.js"

/** Claims, and ends attempts in every way that brings the job back; leaves some alone, as one that has died. */
export const work = async (stage: Stage, chance: Chance): Promise<void> => {
  const { claims, done, history, producing, world } = stage
  const session = await world.session()
  const owner = randomUUID()
  const take = async (now?: Date): Promise<ReadonlyArray<Attempt>> => {
    const attempts = await claim(session, {
      limit: chance.happens(0.2) ? 1 : chance.upTo(40),
      owner,
      nonce: chance.upTo(1_000_000),
      now,
      ...(chance.happens(0.7) ? { aging: chance.upTo(100) } : undefined)
    })
    claims.tick()
    return attempts
  }
  while (producing()) {
    if (chance.happens(0.1)) {
      done.claimsRolledBack++
      await begin(session)
      await take()
      await rollback(session)
    }
    if (chance.happens(0.05)) {
      const attempts = history.claimed(await take(later(new Date(), -hours(1))))
      history.unsuccessful(attempts)
      done.abandoned += attempts.length
    }
    await finish(stage, session, owner, history.claimed(await take()), chance)
  }
}

/** Ends attempts, and now and then says so twice. */
const finish = async (
  { history, wrong }: Stage,
  session: Session,
  owner: string,
  attempts: ReadonlyArray<Attempt>,
  chance: Chance
): Promise<void> => {
  if (chance.happens(0.2)) wrong.takenForDead += await heartbeat(session, attempts, undefined, owner)
  const completed: Array<Attempt> = []
  const ended: Array<Attempt & End> = []
  for (const attempt of attempts) {
    if (chance.happens(0.8)) completed.push(attempt)
    else ended.push({ ...attempt, act: chance.of(["retry", "return"]), delay_ms: chance.of([0, 10]) })
  }
  history.unsuccessful(ended)
  wrong.notAccepted += (await complete(session, completed, { ended, owner })).length
  if (chance.happens(0.1)) {
    const verdicts = await complete(session, completed, { ended, owner })
    wrong.notRepeated += attempts.length - verdicts.filter((verdict) => verdict === "repeated").length
  }
}

/** Promotes, rescues, and lets the ring of slots turn. */
export const maintain = async (stage: Stage): Promise<void> => {
  const { claims, done, producing, turning, world } = stage
  const session = await world.session()
  for (let round = 1; producing(); round++) {
    await promote(session, new Date())
    if (turning || round % 10 === 0) {
      done.slots += Number(await Slots.rotate(session, 1))
      await Slots.publish(session)
    }
    if (turning) await turn(session, stage)
    // Now and then what a dead worker has left is evicted first.
    if (!turning || round % 5 === 0) await rescue(session, minutes(30), new Date())
    await claims.pass(5)
  }
}

/** One pass over the sealed slots. */
const turn = async (session: Session, { done }: Stage): Promise<void> => {
  await Slots.rotateLeases(session, 1)
  for (const slot of await Slots.sealed(session)) {
    if (!(await Slots.count(session, slot))) continue
    done.evicted = (done.evicted ?? 0) + await Slots.evict(session, slot, minutes(30))
    if (!(await Slots.drain(session, slot, hours(9)))) continue
    if (await Slots.free(session, slot, { retention: 300, settle: 0 }) === "freed") done.freed = (done.freed ?? 0) + 1
  }
}

/** Looks at all jobs: each is there once, and stays there. */
export const observe = async ({ claims, done, producing, turning, world, wrong }: Stage): Promise<void> => {
  const session = await world.session()
  for (let before = 0; producing();) {
    const [seen] = await session.query<{ all: number; different: number }>(
      "select count(*)::int as all, count(distinct id)::int as different from awa.jobs"
    )
    if (seen === undefined) throw new Error("no counts")
    if (seen.all > seen.different) wrong.listedTwice++
    if (seen.all < before && !turning) wrong.vanished++
    before = seen.all
    done.looks++
    await claims.pass(100)
  }
}

/** Does what is left when all have gone. */
export const drain = async ({ history, wrong }: Stage, session: Session): Promise<void> => {
  await rescue(session, minutes(30), new Date())
  for (let idle = 0; idle < 2;) {
    await promote(session, later(new Date(), hours(1)))
    const attempts = history.claimed(await claim(session, { limit: 1000 }))
    wrong.notAccepted += (await complete(session, attempts)).length
    idle = attempts.length > 0 ? 0 : idle + 1
  }
}
