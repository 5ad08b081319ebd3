import { sharedServer } from "./support/host.js"
import { begin, enqueue } from "./support/queue.js"
import { type Finding, rule } from "./support/rule.js"
import type { Patch } from "./support/shipped.js"
import type { Session } from "./support/world.js"

const server = sharedServer()

/** What a dispatcher does before it sleeps. A lock that somebody keeps stops it. */
const mark = async (session: Session): Promise<boolean> => {
  const [row] = await session.query<{ marked: boolean }>(
    "select pg_try_advisory_lock_shared(awa.lock_class('idle'), awa.lock_key('default')) as marked"
  )
  return row?.marked === true
}

const unlessMarked = async (session: Session, finding: Finding): Promise<ReadonlyArray<Finding>> =>
  await mark(session) ? [] : [finding]

const body = `language sql volatile
as $$
  select case
    when pg_try_advisory_lock(awa.lock_class('idle'), p_queue_key)
      then not pg_advisory_unlock(awa.lock_class('idle'), p_queue_key)
    else true
  end
$$;`

const insteadOfBody = (replace: string): ReadonlyArray<Patch> => [{ within: "awa.sleeps", find: body, replace }]

/** The statement is cancelled as soon as it can be after the lock was tried. */
rule(server, "a producer that is cancelled leaves no lock", {
  gates: [{ within: "awa.wake", find: "if awa.sleeps(", replace: "if test_gate.pass(awa.sleeps(" }, {
    within: "awa.wake",
    find: ") then",
    replace: ")) then"
  }],
  scenario: async (world) => {
    const producer = await world.gatedSession()
    const dispatcher = await world.session()
    await world.closeGate()
    const enqueueing = enqueue(producer).catch(() => [])
    await world.waitsOrEnds(producer, enqueueing)
    await dispatcher.query("select pg_cancel_backend($1)", producer.pid)
    await enqueueing
    return unlessMarked(dispatcher, "lock leaked")
  },
  mutants: {
    "try and unlock are two statements": {
      breaks: insteadOfBody(`language plpgsql
as $$
begin
  if not pg_try_advisory_lock(awa.lock_class('idle'), p_queue_key) then
    return true;
  end if;
  perform test_gate.pass();
  perform pg_advisory_unlock(awa.lock_class('idle'), p_queue_key);
  return false;
end
$$;`),
      shows: ["lock leaked"]
    }
  }
})

rule(server, "a producer's open transaction keeps no lock", {
  scenario: async (world) => {
    const producer = await world.session()
    await begin(producer)
    await enqueue(producer)
    return unlessMarked(await world.session(), "sleeper locked out")
  },
  mutants: {
    "a lock of the transaction": {
      breaks: insteadOfBody(`language sql volatile
as $$
  select not pg_try_advisory_xact_lock(awa.lock_class('idle'), p_queue_key)
$$;`),
      shows: ["sleeper locked out"]
    }
  }
})
