import { assert, describe, it } from "@effect/vitest"
import { type Decision, Wakeup } from "../src/internal/wakeup.js"

const limit = 50

/** What a dispatcher does from a moment on, with nothing to claim, until it sleeps. Answers the gaps and the time. */
const untilAsleep = (wakeup: Wakeup, first: Decision, start: number) => {
  const gaps: Array<number> = []
  let now = start
  let decision = first
  while (decision._tag !== "sleep") {
    if (decision._tag === "probe") {
      gaps.push(decision.millis)
      now += decision.millis
      decision = wakeup.claimed(0, limit, now)
    } else if (decision._tag === "mark") {
      gaps.push(0)
      decision = wakeup.markedIdle("held", now)
    } else {
      assert.fail(`unexpected ${decision._tag}`)
    }
  }
  return { gaps, now }
}

describe("wake-up policy", () => {
  it("a full claim is followed by another at once", () => {
    const wakeup = new Wakeup()
    assert.deepStrictEqual(wakeup.claimed(limit, limit, 0), { _tag: "again" })
    assert.deepStrictEqual(wakeup.claimed(1, 1, 0), { _tag: "again" })
  })

  it("after a burst it probes unmarked at growing gaps for 20 ms, then marked for 60 ms, then sleeps", () => {
    const wakeup = new Wakeup()
    const { gaps, now } = untilAsleep(wakeup, wakeup.claimed(4, limit, 0), 0)
    assert.deepStrictEqual(gaps, [1, 2, 3, 5, 8, 8, 0, 2, 3, 5, 7, 10, 15, 20])
    assert.isAtLeast(now, 27 + 60)
    assert.isTrue(wakeup.marked)
  })

  it("an idle queue is marked before the first sleep", () => {
    const wakeup = new Wakeup()
    const decision = wakeup.claimed(0, limit, 0)
    assert.deepStrictEqual(decision, { _tag: "mark" })
    untilAsleep(wakeup, decision, 0)
    assert.isTrue(wakeup.marked)
  })

  it("jobs that come one by one keep the mark and need no probing", () => {
    const wakeup = new Wakeup()
    let { now } = untilAsleep(wakeup, wakeup.claimed(0, limit, 0), 0)
    for (let i = 0; i < 200; i++) {
      now += 5
      assert.deepStrictEqual(wakeup.claimed(1, limit, now), { _tag: "sleep" })
      assert.isTrue(wakeup.marked)
    }
  })

  it("a burst takes the mark away", () => {
    const wakeup = new Wakeup()
    const { now } = untilAsleep(wakeup, wakeup.claimed(0, limit, 0), 0)
    assert.deepStrictEqual(wakeup.claimed(5, limit, now), { _tag: "probe", millis: 1 })
    assert.isFalse(wakeup.marked)
  })

  it("so does a stream of small claims that is too fast to be notified one by one", () => {
    const wakeup = new Wakeup()
    let { now } = untilAsleep(wakeup, wakeup.claimed(0, limit, 0), 0)
    for (let i = 0; i < 10; i++) wakeup.claimed(1, limit, now += 1)
    assert.isFalse(wakeup.marked)
  })

  it("so do small full claims in a row: a backlog behind few slots", () => {
    const wakeup = new Wakeup()
    let { now } = untilAsleep(wakeup, wakeup.claimed(0, 1, 0), 0)
    for (let i = 0; i < 4; i++) assert.deepStrictEqual(wakeup.claimed(1, 1, now += 100), { _tag: "again" })
    assert.isFalse(wakeup.marked)
  })

  it("a job found while probing starts the gaps anew", () => {
    const wakeup = new Wakeup()
    wakeup.claimed(4, limit, 0)
    wakeup.claimed(0, limit, 1)
    wakeup.claimed(0, limit, 3)
    assert.deepStrictEqual(wakeup.claimed(1, limit, 6), { _tag: "probe", millis: 1 })
  })

  it("a contended mark is tried again soon, an unavailable one is left to the poll", () => {
    const wakeup = new Wakeup()
    wakeup.claimed(0, limit, 0)
    assert.deepStrictEqual(wakeup.markedIdle("contended", 0), { _tag: "probe", millis: 8 })
    assert.isFalse(wakeup.marked)
    assert.deepStrictEqual(wakeup.claimed(0, limit, 8), { _tag: "mark" })
    assert.deepStrictEqual(wakeup.markedIdle("unavailable", 8), { _tag: "sleep" })
  })

  it("after a reconnect it marks again", () => {
    const wakeup = new Wakeup()
    const { now } = untilAsleep(wakeup, wakeup.claimed(0, limit, 0), 0)
    wakeup.unmarked()
    assert.deepStrictEqual(wakeup.claimed(0, limit, now), { _tag: "mark" })
  })
})
