/**
 * The side of the application: it enqueues jobs, and keeps a record of how each of them must end.
 */
import { Database, type Job, type JobRow } from "awa"
import { Data, Effect } from "effect"
import type { Expected } from "./Audit.js"
import * as Jobs from "./Jobs.js"
import * as Ledger from "./Ledger.js"

/** How much there is to do. */
export interface Plan {
  readonly workers: number
  readonly newsletters: number
  readonly orders: number
  readonly reminders: number
  readonly reminderDelayMillis: number
  readonly charges: number
  readonly reservations: number
  readonly invoices: number
  readonly webhooks: number
  readonly videos: number
  /** A frame takes a tenth of a second. */
  readonly framesPerVideo: number
  /** Jobs in the transaction that rolls back. */
  readonly regretted: number
}

/** A few thousand jobs: less than half a minute. */
export const fullPlan: Plan = {
  workers: 3,
  newsletters: 3000,
  orders: 200,
  reminders: 200,
  reminderDelayMillis: 6000,
  charges: 400,
  reservations: 100,
  invoices: 100,
  webhooks: 40,
  videos: 8,
  framesPerVideo: 60,
  regretted: 500
}

export const shortPlan: Plan = {
  workers: 2,
  newsletters: 100,
  orders: 10,
  reminders: 10,
  reminderDelayMillis: 1000,
  charges: 10,
  reservations: 10,
  invoices: 10,
  webhooks: 4,
  videos: 5,
  framesPerVideo: 40,
  regretted: 50
}

const times = <A>(count: number, make: (index: number) => A): ReadonlyArray<A> =>
  Array.from({ length: count }, (_, index) => make(index))

const customer = (index: number) => `customer${index}@example.com`

/** An order and the e-mail that confirms it: both are stored, or neither. */
const placeOrder = (id: number) =>
  Database.transaction(Effect.gen(function*() {
    yield* Ledger.insertOrder({ id, customer: customer(id) })
    return yield* Jobs.ConfirmOrder.enqueue({ order: id, to: customer(id) })
  }))

const placeOrders = (plan: Plan) =>
  Effect.map(
    Effect.forEach(times(plan.orders, (n) => n), placeOrder, { concurrency: 4 }),
    (jobs) => jobs.map(({ id }) => expected(Jobs.ConfirmOrder, id))
  )

/** Jobs of one kind, all with one statement. */
const sendNewsletters = (plan: Plan) =>
  Effect.map(
    Jobs.SendNewsletter.enqueueMany(times(plan.newsletters, (n) => ({ to: customer(n) }))),
    (ids) => ids.map((id) => expected(Jobs.SendNewsletter, id))
  )

const scheduleReminders = (plan: Plan) =>
  Effect.map(
    Jobs.SendReminder.enqueueMany(
      times(plan.reminders, (n) => ({ to: customer(n) })),
      { delay: plan.reminderDelayMillis }
    ),
    (ids) => ids.map((id) => expected(Jobs.SendReminder, id, { delayMillis: plan.reminderDelayMillis }))
  )

const chargeCards = (plan: Plan) => {
  const payloads = times(plan.charges, (n) => ({ customer: customer(n), declines: 1 + n % 2 }))
  return Effect.map(
    Jobs.ChargeCard.enqueueMany(payloads),
    (ids) => ids.map((id, n) => expected(Jobs.ChargeCard, id, { decidedBy: 1 + payloads[n]!.declines }))
  )
}

const reserveItems = (plan: Plan) => {
  const payloads = times(plan.reservations, (n) => ({ item: `item ${n}`, soldOut: n % 2 === 0 }))
  return Effect.map(
    Jobs.ReserveItem.enqueueMany(payloads),
    (ids) => ids.map((id, n) => expected(Jobs.ReserveItem, id, payloads[n]!.soldOut ? { ends: "cancelled" } : {}))
  )
}

const importInvoices = (plan: Plan) => {
  const payloads = times(plan.invoices, (n) => ({ file: `invoice-${n}.pdf`, damaged: n % 2 === 0 }))
  return Effect.map(
    Jobs.ImportInvoice.enqueueMany(payloads),
    (ids) => ids.map((id, n) => expected(Jobs.ImportInvoice, id, payloads[n]!.damaged ? { ends: "failed" } : {}))
  )
}

const callWebhooks = (plan: Plan) =>
  Effect.map(
    Jobs.CallWebhook.enqueueMany(times(plan.webhooks, (n) => ({ url: `https://example.com/hooks/${n}` }))),
    (ids) => ids.map((id) => expected(Jobs.CallWebhook, id, { ends: "failed", decidedBy: 2 }))
  )

const renderVideos = (plan: Plan) =>
  Effect.map(
    Jobs.RenderVideo.enqueueMany(
      times(plan.videos, (n) => ({ title: `Video ${n + 1}`, frames: plan.framesPerVideo }))
    ),
    (ids) => ids.map((id) => expected(Jobs.RenderVideo, id))
  )

/** Unless something else is said, the first attempt of a job completes it. */
const expected = (job: Job.Any, id: JobRow.JobId, differently: Partial<Expected> = {}): Expected => ({
  id: String(id),
  kind: job.kind,
  maxAttempts: job.defaults.maxAttempts ?? 25,
  ends: "completed",
  decidedBy: 1,
  delayMillis: 0,
  ...differently
})

/** Everything there is to do. */
export const enqueue = (plan: Plan) =>
  Effect.map(
    Effect.all([
      placeOrders(plan),
      sendNewsletters(plan),
      scheduleReminders(plan),
      chargeCards(plan),
      reserveItems(plan),
      importInvoices(plan),
      callWebhooks(plan),
      renderVideos(plan)
    ]),
    (jobs) => jobs.flat()
  )

class SecondThoughts extends Data.TaggedError("SecondThoughts")<{ readonly ids: ReadonlyArray<JobRow.JobId> }> {}

/** An order and a batch of jobs in a transaction that fails at its end. Answers the ids the jobs had in there. */
export const enqueueAndRegret = (plan: Plan) =>
  Database.transaction(Effect.gen(function*() {
    yield* Ledger.insertOrder({ id: plan.orders, customer: customer(plan.orders) })
    const ids = yield* Jobs.SendNewsletter.enqueueMany(times(plan.regretted, (n) => ({ to: customer(n) })))
    return yield* new SecondThoughts({ ids })
  })).pipe(
    Effect.catchTag("SecondThoughts", ({ ids }) => Effect.succeed(ids.map(String)))
  )
