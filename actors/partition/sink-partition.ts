/**
 * One partition of a sink. The work is passed in; what runs is an owned partition (owned-partition.ts).
 *
 *   takingOver ─ours─▶ running ─stop─▶ draining ─▶ stopped
 *      ▲   │ error        │ a loop fails; another has taken over, though the partition is given to us
 *      │   └────▶ waiting ◀┘
 *      └──back-off──┘        stop in takingOver, waiting ─▶ stopped · revoked in any state ─▶ stopped, at once
 *
 *  I1. At most one owner of ours works: a take-over begins only after every loop of the former one has ended, so a late
 *      commit can't overtake the new owner's.
 *  I2. Only while `running` (and until it has left it) is the partition announced; it is void before the state is left.
 *  I3. `attempt` returns to 0 only after STABLE_MS of running: a partition that fails at once keeps backing off.
 *  I4. Only `draining` writes the exact set of messages in flight: after any other end a restart presumes them.
 */
import { assign, fromPromise, setup } from 'xstate'
import { backOff } from '../../engine/back-off.ts'

/** Stands for a partition while this process owns it: its loops, and its end. */
export interface Owned {
  read(signal: AbortSignal): Promise<void>
  commit(signal: AbortSignal): Promise<void>
  deliver(signal: AbortSignal): Promise<void>
  tend(signal: AbortSignal): Promise<void>
  trim(signal: AbortSignal): Promise<void>
  drain(): Promise<void>
  close(cause: unknown): void
  /** settles when no loop works any more */
  ended(): Promise<void>
}

/** Does the work that the machine of a partition decides on. */
export interface PartitionWork<O extends Owned = Owned> {
  /** @param signal aborted when nobody waits for it any more: the partition may be another process's by then */
  takeOver(signal: AbortSignal): Promise<O>
  /** may hand out from now on, and may not any more */
  live(owned: O): void
  gone(owned: O): void
  failed(error: unknown): void
}

const BACK_OFF = { firstMs: 100, maxMs: 30_000 }
const STABLE_MS = 60_000

type Context = {
  work: PartitionWork
  owned: Owned | undefined
  attempt: number
  lastError: { error: unknown; at: Date } | undefined
}
type Events = { type: 'stop' } | { type: 'revoked' } | { type: 'fenced'; error: unknown }
type Loop = 'read' | 'commit' | 'deliver' | 'tend' | 'trim'
const loop = (name: Loop) => fromPromise<void, Owned>(({ input, signal }) => input[name](signal))
/** @throws TypeError: no state in which it is asked comes before a take-over */
function ownedOf({ context: { owned } }: { context: Context }): Owned {
  if (!owned) throw new TypeError('a partition that was not taken over is at work')
  return owned
}

/** Decides when a partition is taken over, works, waits and stops. */
export const sinkPartitionMachine = setup({
  types: {} as { input: { work: PartitionWork }; context: Context; events: Events },
  actors: {
    takeOver: fromPromise<Owned, { work: PartitionWork; former: Owned | undefined }>(async ({ input, signal }) => {
      await input.former?.ended()
      const owned = await input.work.takeOver(signal)
      if (signal.aborted) owned.close(new Error('stopped while taking over'))
      return owned
    }),
    read: loop('read'),
    commit: loop('commit'),
    deliver: loop('deliver'),
    tend: loop('tend'),
    trim: loop('trim'),
    drain: fromPromise<void, Owned>(({ input }) => input.drain()),
  },
  actions: {
    fail: assign(({ context, event }) => {
      const error = 'error' in event ? event.error : undefined
      context.owned?.close(error)
      context.work.failed(error)
      return { attempt: context.attempt + 1, lastError: { error, at: new Date() } }
    }),
    live: ({ context }) => context.work.live(ownedOf({ context })),
    gone: ({ context }) => context.work.gone(ownedOf({ context })),
    void: ({ context }) => context.owned?.close(new Error('the partition has moved')),
  },
  delays: {
    backOff: ({ context }) => backOff(BACK_OFF, context.attempt),
    stable: STABLE_MS,
  },
}).createMachine({
  id: 'sink-partition',
  context: ({ input }) => ({ work: input.work, owned: undefined, attempt: 0, lastError: undefined }),
  initial: 'takingOver',
  on: { revoked: { target: '.stopped', actions: 'void' } },
  states: {
    takingOver: {
      on: { stop: 'stopped' },
      invoke: {
        src: 'takeOver',
        input: ({ context }) => ({ work: context.work, former: context.owned }),
        onDone: { target: 'running', actions: assign({ owned: ({ event }) => event.output }) },
        onError: { target: 'waiting', actions: 'fail' },
      },
    },
    running: {
      entry: 'live',
      exit: 'gone',
      on: { stop: 'draining', fenced: { target: 'waiting', actions: 'fail' } },
      after: { stable: { actions: assign({ attempt: 0 }) } },
      invoke: [
        { src: 'read', input: ownedOf, onError: { target: 'waiting', actions: 'fail' } },
        { src: 'commit', input: ownedOf, onError: { target: 'waiting', actions: 'fail' } },
        { src: 'deliver', input: ownedOf, onError: { target: 'waiting', actions: 'fail' } },
        { src: 'tend', input: ownedOf, onError: { target: 'waiting', actions: 'fail' } },
        { src: 'trim', input: ownedOf, onError: { target: 'waiting', actions: 'fail' } },
      ],
    },
    waiting: { on: { stop: 'stopped' }, after: { backOff: 'takingOver' } },
    draining: {
      invoke: { src: 'drain', input: ownedOf, onDone: 'stopped', onError: { target: 'stopped', actions: 'fail' } },
    },
    stopped: { type: 'final' },
  },
})
