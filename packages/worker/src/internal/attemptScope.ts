import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import type * as Exit from "effect/Exit"
import * as Pipeable from "effect/Pipeable"
import * as Scope from "effect/Scope"

/**
 * The scope a handler runs in, made when it first asks for something: most never do, and making and closing one for each
 * is a good part of what a short attempt costs.
 *
 * Stands for a scope of Effect's own, with what Effect's functions on scopes ask of one: `state`, `fork` and
 * `addFinalizer`.
 */
export class AttemptScope extends Pipeable.Class() implements Scope.Scope {
  readonly [Scope.ScopeTypeId]: Scope.ScopeTypeId = Scope.ScopeTypeId
  readonly strategy = ExecutionStrategy.sequential
  private made: Scope.CloseableScope | null = null
  private exit: Exit.Exit<unknown, unknown> | null = null

  get state(): unknown {
    return (this.own as unknown as { readonly state: unknown }).state
  }

  fork(strategy: ExecutionStrategy.ExecutionStrategy): Effect.Effect<Scope.CloseableScope> {
    return Scope.fork(this.own, strategy)
  }

  addFinalizer(finalizer: Scope.Scope.Finalizer): Effect.Effect<void> {
    return Scope.addFinalizerExit(this.own, finalizer)
  }

  /** Runs the finalizers there are. What is added later is closed at once. */
  close(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    this.exit = exit
    return this.made === null ? Effect.void : Scope.close(this.made, exit)
  }

  private get own(): Scope.CloseableScope {
    if (this.made === null) {
      this.made = Effect.runSync(Scope.make())
      if (this.exit !== null) Effect.runSync(Scope.close(this.made, this.exit))
    }
    return this.made
  }
}
