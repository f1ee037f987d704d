/**
 * The source of one database: owns the slot, streams, waits or gives up. The work is passed in.
 *
 *                                  ┌ streaming ───────────────────────────┐
 *   locking ─ours─▶ inspecting ─fit─▶ opening ─opened─▶ live ─stop─▶ draining ─drained, or too slow─┐
 *      ▲  └──────────────┴───────┬──┴ error ────────────────────────────────┘                       │
 *      │                         ├─ soon, later ─▶ waiting ─back-off─▶ locking                      ▼
 *      │                         └─ stop ─▶ failed ─retry─▶ locking           any other ─stop─▶ stopping ─▶ stopped
 *
 *  I1. At most one stream is open: only `streaming` invokes it, and leaving that state aborts its signal.
 *  I2. `attempt` returns to 0 only on progress (something became durable): a stream that dies at once keeps backing off.
 *  I3. An error stays in `failed` until a user asks for another try only where its code says so (courseAfter); any other is
 *      tried again, one that isn't known too: what stands still keeps the log of its server growing.
 *  I4. The lock is let go before waiting, failing or stopping, so another process may take over meanwhile.
 *  I5. A stop is honoured in every state; a stream gets DRAIN_MS to make durable what it holds.
 */
import { assign, fromPromise, setup } from 'xstate'
import { EngineError, ERRORS, errorText } from '../../engine/errors.ts'
import { courseAfter, type Course } from '../../engine/wal/connection/source-error.ts'
import { backOff } from '../../engine/back-off.ts'

/** The right to be the only process that streams a source. */
export interface HeldLock {
  release(): Promise<void>
}
/** The work of a source. `Plan` is what the inspection found and the stream needs; its shape is theirs. */
export interface SourceWork<Lock extends HeldLock = HeldLock, Plan = unknown> {
  acquireLock(signal: AbortSignal): Promise<Lock>
  inspect(lock: Lock, signal: AbortSignal): Promise<Plan>
  /** Streams until `drain` is aborted, then makes durable what it holds and resolves; `signal` ends it at once. */
  stream(input: StreamInput<Lock, Plan>, signal: AbortSignal): Promise<void>
}
/** Holds what one stream is given. `opened` is called when it streams, `progressed` when something became durable. */
export type StreamInput<Lock, Plan> = Readonly<{ lock: Lock; plan: Plan; drain: AbortSignal; opened: () => void; progressed: () => void }>
/** Tells why a source does not stream, and what it does about that: its course. */
export type SourceFailure = Readonly<{ code: string; message: string; remedy: string; course: Course; at: Date; error: unknown }>

const FIRST_MS = 200
const MAX_MS = { soon: 30_000, later: 180_000 } as const
/** A stream that is told to stop may take so long to make durable what it holds. */
export const DRAIN_MS = 8000

type Context = {
  work: SourceWork
  lock: HeldLock | undefined
  plan: unknown
  drain: AbortController
  attempt: number
  lastError: SourceFailure | undefined
}

function heldBy({ lock }: Context): HeldLock {
  if (!lock) throw new TypeError('a source without its lock')
  return lock
}

/** The error with which the work of a state has failed. */
const errorIn = (event: object): unknown => ('error' in event ? event.error : undefined)

function toFailure(error: unknown): SourceFailure {
  const code = error instanceof EngineError ? error.code : 'INTERNAL'
  const message = errorText(error)
  return { code, message, remedy: ERRORS[code].remedy, course: courseAfter(error), at: new Date(), error }
}

/** Decides when the source of a database locks, inspects, streams, waits and gives up. */
export const sourceMachine = setup({
  types: {
    input: {} as { work: SourceWork },
    context: {} as Context,
    events: {} as { type: 'stop' } | { type: 'retry' } | { type: 'opened' } | { type: 'progress' },
  },
  actors: {
    acquireLock: fromPromise<HeldLock, SourceWork>(async ({ input, signal }) => {
      const lock = await input.acquireLock(signal)
      if (!signal.aborted) return lock
      await lock.release() // the machine has left the state that wanted it
      throw new EngineError('STOPPING', 'stopped')
    }),
    inspect: fromPromise<unknown, Context>(({ input, signal }) => input.work.inspect(heldBy(input), signal)),
    stream: fromPromise<void, Readonly<{ work: SourceWork; stream: StreamInput<HeldLock, unknown> }>>(({ input, signal }) =>
      input.work.stream(input.stream, signal),
    ),
    release: fromPromise<void, HeldLock | undefined>(async ({ input }) => input?.release()),
  },
  actions: {
    release: ({ context }) => void context.lock?.release().catch(() => undefined),
    forgetLock: assign({ lock: undefined, plan: undefined }),
    noteFailure: assign({ lastError: ({ event }) => toFailure(errorIn(event)) }),
  },
  guards: {
    mayTryAgain: ({ event }) => courseAfter(errorIn(event)) !== 'stop',
    isDraining: ({ context }) => context.drain.signal.aborted,
  },
  delays: {
    backOff: ({ context: { attempt, lastError } }) =>
      backOff({ firstMs: FIRST_MS, maxMs: MAX_MS[lastError?.course === 'later' ? 'later' : 'soon'] }, attempt),
    drain: DRAIN_MS,
  },
}).createMachine({
  id: 'source',
  context: ({ input }) => ({
    work: input.work,
    lock: undefined,
    plan: undefined,
    drain: new AbortController(),
    attempt: 0,
    lastError: undefined,
  }),
  initial: 'locking',
  on: { stop: '.stopping' },
  states: {
    locking: {
      invoke: {
        src: 'acquireLock',
        input: ({ context }) => context.work,
        onDone: { target: 'inspecting', actions: assign({ lock: ({ event }) => event.output }) },
        onError: [
          { guard: 'mayTryAgain', target: 'waiting', actions: 'noteFailure' },
          { target: 'failed', actions: 'noteFailure' },
        ],
      },
    },
    inspecting: {
      invoke: {
        src: 'inspect',
        input: ({ context }) => context,
        onDone: { target: 'streaming', actions: assign({ plan: ({ event }) => event.output }) },
        onError: [
          { guard: 'mayTryAgain', target: 'waiting', actions: 'noteFailure' },
          { target: 'failed', actions: 'noteFailure' },
        ],
      },
    },
    streaming: {
      entry: assign({ drain: () => new AbortController() }),
      invoke: {
        src: 'stream',
        input: ({ context, self }) => ({
          work: context.work,
          stream: {
            lock: heldBy(context),
            plan: context.plan,
            drain: context.drain.signal,
            opened: () => self.send({ type: 'opened' }),
            progressed: () => self.send({ type: 'progress' }),
          },
        }),
        onDone: 'stopping',
        onError: [
          { guard: 'isDraining', target: 'stopping', actions: 'noteFailure' },
          { guard: 'mayTryAgain', target: 'waiting', actions: 'noteFailure' },
          { target: 'failed', actions: 'noteFailure' },
        ],
      },
      on: { progress: { actions: assign({ attempt: 0 }) } },
      initial: 'opening',
      states: {
        opening: { on: { opened: 'live', stop: 'draining' } },
        live: { on: { stop: 'draining' } },
        draining: { entry: ({ context }) => context.drain.abort(), on: { stop: {} }, after: { drain: '#source.stopping' } },
      },
    },
    waiting: {
      entry: ['release', 'forgetLock', assign({ attempt: ({ context }) => context.attempt + 1 })],
      on: { retry: 'locking' },
      after: { backOff: 'locking' },
    },
    failed: { entry: ['release', 'forgetLock'], on: { retry: { target: 'locking', actions: assign({ attempt: 0 }) } } },
    stopping: {
      on: { stop: {} },
      invoke: { src: 'release', input: ({ context }) => context.lock, onDone: 'stopped', onError: 'stopped' },
    },
    stopped: { type: 'final', entry: 'forgetLock' },
  },
})
