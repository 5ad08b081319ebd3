import { type Errors, type InsertOptions, Job, PartitionedQueue } from "@awa/model"
import { type Either, Schema } from "effect"
import { describe, expect, test } from "tstyche"

const Work = Job.make("work", { payload: Schema.Int })

describe("PartitionedQueue", () => {
  test("is made or refused", () => {
    expect(PartitionedQueue.make("q", 2)).type.toBe<
      Either.Either<PartitionedQueue.PartitionedQueue, Errors.InvalidPartitionedQueue>
    >()
    expect(PartitionedQueue.fromQueues(["a"])).type.toBe<
      Either.Either<PartitionedQueue.PartitionedQueue, Errors.InvalidPartitionedQueue>
    >()
    expect(PartitionedQueue.unsafeMake("q", 2)).type.toBe<PartitionedQueue.PartitionedQueue>()
    expect(PartitionedQueue.unsafeMake).type.not.toBeCallableWith("q", "2")
  })

  test("routes to options a job takes", () => {
    const queue = PartitionedQueue.unsafeMake("q", 2)
    expect(PartitionedQueue.routeByKey(queue, "k")).type.toBe<InsertOptions.InsertOptions>()
    expect(Work.enqueue).type.toBeCallableWith(1, PartitionedQueue.routeByKey(queue, "k", { priority: 1 }))
    expect(PartitionedQueue.routeByKey).type.not.toBeCallableWith(queue, 1)
    expect(PartitionedQueue.routeByIndex).type.not.toBeCallableWith(queue, "1")
  })

  test("an ordering key is text", () => {
    expect(Work.enqueue).type.toBeCallableWith(1, { orderingKey: "k" })
    expect(Work.enqueue).type.not.toBeCallableWith(1, { orderingKey: 1 })
  })
})
