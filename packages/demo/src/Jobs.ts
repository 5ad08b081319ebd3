/**
 * The jobs of a small shop, defined once for those who enqueue them and those who run them.
 */
import { Job } from "awa"
import { Schema } from "effect"

export const SendNewsletter = Job.make("send_newsletter", {
  payload: { to: Schema.String },
  queue: "mail",
  priority: 3
})

export const ConfirmOrder = Job.make("confirm_order", {
  payload: { order: Schema.Int, to: Schema.String },
  queue: "mail",
  priority: 1
})

export const SendReminder = Job.make("send_reminder", {
  payload: { to: Schema.String },
  queue: "mail"
})

/** The bank declines the card so many times before it accepts it. */
export const ChargeCard = Job.make("charge_card", {
  payload: { customer: Schema.String, declines: Schema.Int },
  queue: "shop"
})

export const ReserveItem = Job.make("reserve_item", {
  payload: { item: Schema.String, soldOut: Schema.Boolean },
  queue: "shop"
})

export const ImportInvoice = Job.make("import_invoice", {
  payload: { file: Schema.String, damaged: Schema.Boolean },
  queue: "shop"
})

/** The other side never answers. */
export const CallWebhook = Job.make("call_webhook", {
  payload: { url: Schema.String },
  queue: "shop",
  maxAttempts: 2
})

export const RenderVideo = Job.make("render_video", {
  payload: { title: Schema.String, frames: Schema.Int },
  queue: "video"
})
