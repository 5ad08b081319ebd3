import type { QueueOverrides } from "@awa/model/StorageEngine"
import * as Duration from "effect/Duration"
import type { Queue } from "./settings.js"

/** The settings of a queue as they hold now: those it was built with, but for what an operator overrides. */
export class LiveQueue implements Queue {
  private overrides: Omit<QueueOverrides, "queue" | "refused"> = {}

  constructor(private readonly base: Queue) {}

  get name(): string {
    return this.base.name
  }

  get maxWorkers(): number {
    return this.base.maxWorkers
  }

  get priorityAging(): Duration.Duration | null {
    return this.base.priorityAging
  }

  get dlq(): boolean | null {
    return this.base.dlq
  }

  get pollInterval(): Duration.Duration {
    return this.overrides.pollInterval ?? this.base.pollInterval
  }

  get claimBatchSize(): number {
    return this.overrides.claimBatchSize ?? this.base.claimBatchSize
  }

  /** Where there is no deadline none can be imposed: its jobs are made to run for long. */
  get deadline(): Duration.Duration | null {
    return this.base.deadline === null ? null : this.overrides.deadline ?? this.base.deadline
  }

  /** Takes over what is overridden now; answers whether that is something else than before. */
  override({ claimBatchSize, deadline, pollInterval }: Omit<QueueOverrides, "queue" | "refused">): boolean {
    const before = this.overrides
    this.overrides = {
      ...(claimBatchSize === undefined ? undefined : { claimBatchSize }),
      ...(deadline === undefined ? undefined : { deadline }),
      ...(pollInterval === undefined ? undefined : { pollInterval })
    }
    return before.claimBatchSize !== claimBatchSize || !isSame(before.deadline, deadline) ||
      !isSame(before.pollInterval, pollInterval)
  }
}

const isSame = (one: Duration.Duration | undefined, other: Duration.Duration | undefined): boolean =>
  one === undefined || other === undefined ? one === other : Duration.equals(one, other)
