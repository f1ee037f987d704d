/**
 * One sink: which of its partitions run here, and whether it hands out.
 *
 *   subscribing ─subscribed─▶ serving ─stop─▶ stopping ─all partitions stopped, or too long─▶ unsubscribing ─▶ stopped
 *        │ error               status: active ⇄ paused ⇄ disabled
 *        └─────▶ failed
 *
 *  I1. One partition actor for each assigned partition; a revoked one is void when the listener returns.
 *  I2. An edit restarts nothing: it reaches the sink as an event.
 *  I3. A partition that fails is restarted by its own machine and doesn't touch the others.
 *  I4. The subscription ends after every partition has drained, so that nobody else takes over before.
 */
import { assign, enqueueActions, fromPromise, setup, type ActorRefFrom } from 'xstate'
import { sinkPartitionMachine, type PartitionWork } from './sink-partition.ts'

export type PartitionActor = ActorRefFrom<typeof sinkPartitionMachine>
export type SinkStatus = 'active' | 'paused' | 'disabled'

export interface SinkWork {
  /** Tells which partitions are served here; the calls may come before it settles. */
  subscribe(listener: { assigned: (partition: number) => void; revoked: (partition: number) => void }): Promise<AsyncDisposable>
  partition(partition: number): PartitionWork
  /** handing out begins or ends */
  status(status: SinkStatus): void
}

type Context = {
  work: SinkWork
  status: SinkStatus
  partitions: ReadonlyMap<number, PartitionActor>
  subscription: AsyncDisposable | undefined
  lastError: { error: unknown; at: Date } | undefined
}
type Events =
  | { type: 'assigned'; partition: number }
  | { type: 'revoked'; partition: number }
  | { type: 'status'; status: SinkStatus }
  | { type: 'stop' }
  | { type: `xstate.done.actor.partition.${string}` }

/** A partition that can't write its last commit in this time is given up: a restart then presumes what was in flight. */
const DRAIN_MS = 10_000

export const sinkMachine = setup({
  types: { input: {} as { work: SinkWork; status: SinkStatus }, context: {} as Context, events: {} as Events },
  actors: {
    partition: sinkPartitionMachine,
    subscribe: fromPromise<AsyncDisposable, { work: SinkWork; send: (event: Events) => void }>(async ({ input, signal }) => {
      const subscription = await input.work.subscribe({
        assigned: (partition) => input.send({ type: 'assigned', partition }),
        revoked: (partition) => input.send({ type: 'revoked', partition }),
      })
      if (signal.aborted) await subscription[Symbol.asyncDispose]() // stopped meanwhile
      return subscription
    }),
    unsubscribe: fromPromise<void, AsyncDisposable | undefined>(async ({ input }) => input?.[Symbol.asyncDispose]()),
  },
  actions: {
    begin: assign({
      partitions: ({ context, event, spawn }) => {
        if (event.type !== 'assigned') return context.partitions
        const { partition } = event
        const actor = spawn('partition', { id: `partition.${partition}`, input: { work: context.work.partition(partition) } })
        return new Map(context.partitions).set(partition, actor)
      },
    }),
    forgetStopped: assign({
      partitions: ({ context }) => new Map([...context.partitions].filter(([, actor]) => actor.getSnapshot().status === 'active')),
    }),
    revoke: enqueueActions(({ context, event, enqueue }) => {
      const actor = event.type === 'revoked' ? context.partitions.get(event.partition) : undefined
      if (actor) enqueue.sendTo(actor, { type: 'revoked' })
    }),
    stopPartitions: enqueueActions(({ context, enqueue }) => {
      for (const actor of context.partitions.values()) enqueue.sendTo(actor, { type: 'stop' })
    }),
    revokePartitions: enqueueActions(({ context, enqueue }) => {
      for (const actor of context.partitions.values()) enqueue.sendTo(actor, { type: 'revoked' })
    }),
    keepStatus: assign({ status: ({ context, event }) => (event.type === 'status' ? event.status : context.status) }),
    tellStatus: ({ context }) => context.work.status(context.status),
    keepSubscription: assign({
      subscription: ({ context, event }) => ('output' in event ? (event.output as AsyncDisposable) : context.subscription),
    }),
    keepError: assign({ lastError: ({ event }) => ({ error: 'error' in event ? event.error : undefined, at: new Date() }) }),
  },
  guards: {
    isNew: ({ context, event }) => event.type === 'assigned' && !context.partitions.has(event.partition),
    noPartitions: ({ context }) => context.partitions.size === 0,
  },
  delays: { drain: DRAIN_MS },
}).createMachine({
  id: 'sink',
  context: ({ input }) => ({
    work: input.work,
    status: input.status,
    partitions: new Map(),
    subscription: undefined,
    lastError: undefined,
  }),
  initial: 'subscribing',
  on: {
    'xstate.done.actor.partition.*': { actions: 'forgetStopped' },
    revoked: { actions: 'revoke' },
    status: { actions: ['keepStatus', 'tellStatus'] },
  },
  states: {
    subscribing: {
      on: { assigned: { guard: 'isNew', actions: 'begin' }, stop: 'stopping' },
      invoke: {
        src: 'subscribe',
        input: ({ context, self }) => ({ work: context.work, send: (event: Events) => self.send(event) }),
        onDone: { target: 'serving', actions: 'keepSubscription' },
        onError: { target: 'failed', actions: 'keepError' },
      },
    },
    serving: { on: { assigned: { guard: 'isNew', actions: 'begin' }, stop: 'stopping' } },
    stopping: {
      entry: 'stopPartitions',
      always: { guard: 'noPartitions', target: 'unsubscribing' },
      after: { drain: { target: 'unsubscribing', actions: 'revokePartitions' } },
    },
    unsubscribing: {
      invoke: {
        src: 'unsubscribe',
        input: ({ context }) => context.subscription,
        onDone: 'stopped',
        onError: { target: 'stopped', actions: 'keepError' },
      },
    },
    failed: { entry: 'revokePartitions', type: 'final' },
    stopped: { type: 'final' },
  },
})
