import type { StorageError } from "@awa/model/StorageEngine"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"

/**
 * The claims of this process whose answer is not here. A claim under way may be answered any moment; one whose answer
 * was lost may have taken jobs nobody here knows of.
 */
export class Claims {
  private readonly open = new Set<string>()
  private lostCount = 0

  /** Open while there is a claim whose answer was lost and whose jobs were not looked for. */
  readonly lost = Effect.unsafeMakeLatch(false)

  get hasLost(): boolean {
    return this.lostCount > 0
  }

  isOpen(nonce: string): boolean {
    return this.open.has(nonce)
  }

  begin(nonce: string): void {
    this.open.add(nonce)
  }

  /** The answer came, and the jobs in it are accounted for. */
  answered(nonce: string): void {
    this.open.delete(nonce)
  }

  /** No answer will come. */
  failed(nonce: string, cause: Cause.Cause<StorageError>): void {
    this.open.delete(nonce)
    if (wasRolledBack(cause)) return
    this.lostCount += 1
    this.lost.unsafeOpen()
  }

  forgetLost(): void {
    this.lostCount = 0
    this.lost.unsafeClose()
  }
}

/** An error of the server takes everything back, unless the connection ended with it. */
const wasRolledBack = (cause: Cause.Cause<StorageError>): boolean => {
  const failure = Cause.failureOrCause(cause)
  if (failure._tag === "Right") return false
  const error = failure.left
  switch (error._tag) {
    case "ConnectionFailed":
      return false
    case "DatabaseError":
      return error.sqlState !== null && !/^(08|57)/.test(error.sqlState)
    default:
      return true
  }
}
