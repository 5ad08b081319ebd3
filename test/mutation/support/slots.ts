import type { Session } from "./world.js"

/** The steps of a slot's life, each a transaction of its own. */

const first = async <A>(session: Session, text: string, ...values: ReadonlyArray<unknown>): Promise<A> => {
  const [row] = await session.query<{ answer: A }>(text, ...values)
  if (row === undefined) throw new Error(`no answer: ${text}`)
  return row.answer
}

export const rotate = (session: Session, interval: number, now?: Date): Promise<boolean> =>
  first(session, "select awa.rotate($1, $2) as answer", interval, now)

export const publish = (session: Session): Promise<unknown> =>
  first(session, "select awa.publish_slot()::text as answer")

export const rotateLeases = (session: Session, interval: number): Promise<boolean> =>
  first(session, "select awa.rotate_leases($1, null) as answer", interval)

export const sealed = async (session: Session): Promise<ReadonlyArray<number>> =>
  (await session.query<{ slot: number }>("select slot from awa.sealed_slots()")).map(({ slot }) => slot)

export const count = (session: Session, slot: number): Promise<boolean> =>
  first(session, "select awa.count_slot($1::smallint) as answer", slot)

export const evict = (session: Session, slot: number, age: number, now?: Date): Promise<number> =>
  first(session, "select awa.evict($1::smallint, $2, 500, $3) as answer", slot, age, now)

/** `park`: for how many milliseconds the slot must have been sealed for its waiting rows to be parked. */
export const drain = (session: Session, slot: number, park: number, now?: Date): Promise<boolean> =>
  first(session, "select drained as answer from awa.drain_slot($1::smallint, $2, 100, $3)", slot, park, now)

export const free = (
  session: Session,
  slot: number,
  { now, retention, settle }: { readonly retention: number; readonly settle: number; readonly now?: Date }
): Promise<string> =>
  first(session, "select awa.free_slot($1::smallint, $2, $3, $4) as answer", slot, retention, settle, now)

/** All steps for all sealed slots, with no patience. Answers which slots were freed. */
export const turn = async (session: Session, park = 0): Promise<ReadonlyArray<number>> => {
  const freed: Array<number> = []
  await publish(session)
  for (const slot of await sealed(session)) {
    if (!(await count(session, slot)) || !(await drain(session, slot, park))) continue
    if (await free(session, slot, { retention: 0, settle: 0 }) === "freed") freed.push(slot)
  }
  return freed
}
