/**
 * One sink: which generation of it is served, which of its partitions run here, and whether it hands out.
 *
 *   choosing ─chosen─▶ subscribing ─subscribed─▶ serving ─all of it drained─▶ leaving ─all partitions stopped─▶ parting
 *    ▲ ▲  │ error           │ error                 │ stop                                                         │
 *    │ │  ▼                 ▼                       ▼                                                              │
 *    │ waiting            failed                 stopping ─all stopped, or too long─▶ unsubscribing ─▶ stopped     │
 *    └───────────────────────────────────────────────────────────────────────────────────────────────────────────┘
 *   choosing ─there is none─▶ idle ─look; now and then─▶ choosing
 *   serving: begins with asking
 *            delivering ─every partition here drained─▶ asking ─not all of them elsewhere─▶ watching ─another one, or after a while─▶ asking
 *            delivering ─look; none is here, now and then─▶ asking ─no other generation follows─▶ delivering
 *   serving ─hold─▶ holding ─all partitions stopped─▶ held ─resume, or too long─▶ resuming ─the same generation─▶ serving
 *                      └─too long─▶ resuming                                          └─another one─▶ parting
 *   status: active ⇄ paused ⇄ disabled, in any state
 *
 *  I1. One partition actor for each assigned partition; a revoked one is void when the listener returns. Before all are
 *      spread over the processes anew there is time to stop them cleanly.
 *  I2. An edit restarts nothing: it reaches the sink as an event.
 *  I3. A partition that fails is restarted by its own machine and doesn't touch the others.
 *  I4. The subscription ends after every partition has stopped, so that no other process takes over before.
 *  I5. Another generation is chosen only when every partition of the served one is recorded as drained, wherever it ran, and
 *      none of its actors is left here: what they hold of it is written down before it goes to the next.
 *  I6. Who has no partition of it goes on with the others all the same, and so does who was given one that others have
 *      left already, or left again for an earlier generation.
 *  I7. Until then the partitions stay: what is parked is delivered, and acks count.
 *  I8. While `held` no partition is at work here, and what each knew is written down: a replay may change where they go on.
 */
import { assign, enqueueActions, fromPromise, setup, waitFor, type ActorRefFrom } from 'xstate'
import type { GenerationState } from '../../engine/dispatch/generations.ts'
import { sinkPartitionMachine, type PartitionWork } from '../partition/sink-partition.ts'
import { backOff } from '../../engine/back-off.ts'

type PartitionActor = ActorRefFrom<typeof sinkPartitionMachine>
/** The status that users may give a sink. */
export type SinkStatus = 'active' | 'paused' | 'disabled'

/** Names the generation that is served: the machine keeps it, and knows only its name. */
export type Served = Readonly<{ generation: number; topic: string }>

/** Does the work that the machine of a sink decides on. */
export interface SinkWork {
  /** The generation to serve now; undefined: there is none yet. */
  choose(): Promise<Served | undefined>
  stateOf(served: Served): Promise<GenerationState>
  /** Tells which partitions are served here; the calls may come before it settles. */
  subscribe(
    served: Served,
    listener: {
      assigned: (partition: number) => void
      revoked: (partition: number) => void
      /** settles when every partition here has stopped cleanly */
      handOver: () => Promise<void>
    },
  ): Promise<AsyncDisposable>
  partition(served: Served, partition: number): PartitionWork
  /** handing out begins or ends */
  status(status: SinkStatus): void
}

type Context = {
  work: SinkWork
  status: SinkStatus
  served: Served | undefined
  partitions: ReadonlyMap<number, PartitionActor>
  /** the partitions to serve; while the sink is held none of them has an actor */
  assigned: ReadonlySet<number>
  /** the partitions that met the end of the served generation */
  drained: ReadonlySet<number>
  attempt: number
  subscription: AsyncDisposable | undefined
  lastError: { error: unknown; at: Date } | undefined
}
type Events =
  | { type: 'assigned'; partition: number }
  | { type: 'revoked'; partition: number }
  /** the partitions are about to be spread over the processes anew */
  | { type: 'handOver' }
  /** recorded as drained */
  | { type: 'drained'; generation: number; partition: number }
  | { type: 'status'; status: SinkStatus }
  /** another generation may be the one to serve: the sink was edited, or a partition of this one has failed */
  | { type: 'look' }
  /** stop every partition for a replay, and begin again after it */
  | { type: 'hold' }
  | { type: 'resume' }
  | { type: 'stop' }
  | { type: `xstate.done.actor.partition.${string}` }

/** A partition that can't write its last commit in this time is given up: a restart then presumes what was in flight. */
const DRAIN_MS = 10_000
/** Who holds the sink for longer than this has gone: other processes may need theirs to drain meanwhile. */
const HOLD_MS = 10_000
/** The machine asks so often whether other processes have drained their partitions. */
const WATCH_MS = 1_000
/**
 * A process that serves no partition asks so often whether another generation follows: an edit says so at once, but its notice may
 * be lost.
 */
const LOOK_MS = 15_000
const BACK_OFF = { firstMs: 100, maxMs: 30_000 }
/** Whether a source in another process has met the mark of the first generation is asked after this, and later now and then. */
const IDLE = { firstMs: 500, maxMs: 5_000 }
/** the longest that a timer takes */
const NEVER_MS = 2 ** 31 - 1
/** @throws TypeError: no state in which it is asked comes before the choice of a generation */
function servedBy({ served }: Context): Served {
  if (!served) throw new TypeError('a sink without a generation is at work')
  return served
}
const isAllDrained = ({ partitions, drained }: Context): boolean =>
  partitions.size > 0 && [...partitions.keys()].every((p) => drained.has(p))

const KEEP_SERVED = { type: 'keepServed', params: ({ event }: { event: { output: Served | undefined } }) => event.output } as const

/** Decides which generation and which partitions of a sink are served here, and when another generation follows. */
export const sinkMachine = setup({
  types: {} as { input: { work: SinkWork; status: SinkStatus }; context: Context; events: Events },
  actors: {
    partition: sinkPartitionMachine,
    choose: fromPromise<Served | undefined, SinkWork>(({ input }) => input.choose()),
    stateOf: fromPromise<GenerationState, { work: SinkWork; served: Served }>(({ input }) => input.work.stateOf(input.served)),
    subscribe: fromPromise<AsyncDisposable, { work: SinkWork; served: Served; send: (event: Events) => void; empty: () => Promise<void> }>(
      async ({ input, signal }) => {
        const subscription = await input.work.subscribe(input.served, {
          assigned: (partition) => input.send({ type: 'assigned', partition }),
          revoked: (partition) => input.send({ type: 'revoked', partition }),
          handOver: () => {
            input.send({ type: 'handOver' })
            return input.empty()
          },
        })
        if (signal.aborted) await subscription[Symbol.asyncDispose]() // stopped meanwhile
        return subscription
      },
    ),
    unsubscribe: fromPromise<void, AsyncDisposable | undefined>(async ({ input }) => input?.[Symbol.asyncDispose]()),
  },
  actions: {
    begin: assign({
      partitions: ({ context, event, spawn }) => {
        const partitions = new Map(context.partitions)
        for (const partition of event.type === 'assigned' ? [event.partition] : context.assigned) {
          if (partitions.has(partition)) continue
          const work = context.work.partition(servedBy(context), partition)
          partitions.set(partition, spawn('partition', { id: `partition.${partition}`, input: { work } }))
        }
        return partitions
      },
    }),
    keepAssigned: assign({
      assigned: ({ context, event }) => (event.type === 'assigned' ? new Set(context.assigned).add(event.partition) : context.assigned),
    }),
    forgetRevoked: assign({
      assigned: ({ context, event }) =>
        event.type === 'revoked' ? new Set([...context.assigned].filter((partition) => partition !== event.partition)) : context.assigned,
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
    keepDrained: assign({
      drained: ({ context, event }) => (event.type === 'drained' ? new Set(context.drained).add(event.partition) : context.drained),
    }),
    keepServed: assign({
      served: (_, found: Served | undefined) => found,
      drained: () => new Set<number>(),
      attempt: () => 0,
    }),
    keepStatus: assign({ status: ({ context, event }) => (event.type === 'status' ? event.status : context.status) }),
    tellStatus: ({ context }) => context.work.status(context.status),
    keepSubscription: assign({
      subscription: (_, subscription: AsyncDisposable) => subscription,
    }),
    keepError: assign({ lastError: ({ event }) => ({ error: 'error' in event ? event.error : undefined, at: new Date() }) }),
  },
  guards: {
    isNew: ({ context, event }) => event.type === 'assigned' && !context.partitions.has(event.partition),
    noPartitions: ({ context }) => context.partitions.size === 0,
    isServed: ({ context, event }) => event.type === 'drained' && event.generation === context.served?.generation,
    isServedStill: ({ context }, found: Served | undefined) =>
      found?.generation === context.served?.generation && found?.topic === context.served?.topic,
    allDrained: ({ context }) => isAllDrained(context),
  },
  delays: {
    drain: DRAIN_MS,
    watch: ({ context }) => (context.status === 'disabled' ? LOOK_MS : WATCH_MS),
    look: ({ context }) => (context.partitions.size === 0 ? LOOK_MS : NEVER_MS), // there may be hundreds of sinks
    hold: HOLD_MS,
    idle: ({ context }) => (context.status === 'disabled' ? LOOK_MS : backOff(IDLE, context.attempt)),
    backOff: ({ context }) => backOff(BACK_OFF, context.attempt),
  },
}).createMachine({
  id: 'sink',
  context: ({ input }) => ({
    work: input.work,
    status: input.status,
    served: undefined,
    partitions: new Map(),
    assigned: new Set(),
    drained: new Set(),
    attempt: 0,
    subscription: undefined,
    lastError: undefined,
  }),
  initial: 'choosing',
  on: {
    'xstate.done.actor.partition.*': { actions: 'forgetStopped' },
    assigned: { actions: 'keepAssigned' },
    revoked: { actions: ['forgetRevoked', 'revoke'] },
    handOver: { actions: 'stopPartitions' },
    drained: { guard: 'isServed', actions: 'keepDrained' },
    status: { actions: ['keepStatus', 'tellStatus'] },
  },
  states: {
    choosing: {
      on: { stop: 'stopped' },
      invoke: {
        src: 'choose',
        input: ({ context }) => context.work,
        onDone: [{ guard: ({ event }) => event.output !== undefined, target: 'subscribing', actions: KEEP_SERVED }, { target: 'idle' }],
        onError: { target: 'waiting', actions: ['keepError', assign({ attempt: ({ context }) => context.attempt + 1 })] },
      },
    },
    waiting: { on: { stop: 'stopped' }, after: { backOff: 'choosing' } },
    idle: {
      entry: assign({ attempt: ({ context }) => context.attempt + 1 }),
      on: { look: 'choosing', stop: 'stopped' },
      after: { idle: 'choosing' },
    },
    subscribing: {
      on: { assigned: { guard: 'isNew', actions: ['keepAssigned', 'begin'] }, stop: 'stopping' },
      invoke: {
        src: 'subscribe',
        input: ({ context, self }) => ({
          work: context.work,
          served: servedBy(context),
          send: (event: Events) => self.send(event),
          empty: async () => void (await waitFor(self, (now) => (now.context as Context).partitions.size === 0, { timeout: Infinity })),
        }),
        onDone: { target: 'serving', actions: { type: 'keepSubscription', params: ({ event }) => event.output } },
        onError: { target: 'failed', actions: 'keepError' },
      },
    },
    serving: {
      on: {
        assigned: { guard: 'isNew', actions: ['keepAssigned', 'begin'] },
        hold: 'holding',
        stop: 'stopping',
      },
      initial: 'asking', // events of the time before were not taken
      states: {
        delivering: {
          always: { guard: 'allDrained', target: 'asking' },
          on: {
            look: 'asking',
            'xstate.done.actor.partition.*': { target: 'delivering', reenter: true, actions: 'forgetStopped' }, // none may be left
          },
          after: {
            look: [
              { guard: 'noPartitions', target: 'asking' },
              { target: 'delivering', reenter: true },
            ],
          },
        },
        asking: {
          on: { drained: { guard: 'isServed', target: 'asking', reenter: true, actions: 'keepDrained' } }, // the answer may be of before
          invoke: {
            src: 'stateOf',
            input: ({ context }) => ({ work: context.work, served: servedBy(context) }),
            onDone: [
              { guard: ({ event }) => event.output === 'drained', target: '#sink.leaving' },
              { guard: ({ context, event }) => event.output === 'open' && !isAllDrained(context), target: 'delivering' },
              { target: 'watching' },
            ],
            onError: { target: 'watching', actions: 'keepError' },
          },
        },
        watching: {
          on: {
            look: 'asking',
            drained: { guard: 'isServed', target: 'asking', actions: 'keepDrained' }, // the next one waits for the last of them
          },
          after: { watch: [{ guard: 'noPartitions', target: 'asking' }, { target: 'delivering' }] },
        },
      },
    },
    holding: {
      entry: 'stopPartitions',
      on: { resume: 'resuming', stop: 'stopping' },
      always: { guard: 'noPartitions', target: 'held' },
      after: { drain: { target: 'resuming', actions: 'revokePartitions' } },
    },
    held: { on: { resume: 'resuming', stop: 'unsubscribing' }, after: { hold: 'resuming' } },
    resuming: {
      on: { stop: 'stopping' },
      initial: 'emptying',
      states: {
        emptying: { always: { guard: 'noPartitions', target: 'choosing' }, after: { drain: { actions: 'revokePartitions' } } },
        choosing: {
          invoke: {
            src: 'choose',
            input: ({ context }) => context.work,
            onDone: [
              {
                guard: { type: 'isServedStill', params: ({ event }) => event.output },
                target: '#sink.serving',
                actions: [KEEP_SERVED, 'begin'],
              },
              { target: '#sink.parting' },
            ],
            onError: { target: 'waiting', actions: ['keepError', assign({ attempt: ({ context }) => context.attempt + 1 })] },
          },
        },
        waiting: { after: { backOff: 'choosing' } },
      },
    },
    leaving: {
      entry: 'stopPartitions',
      on: { stop: 'stopping' },
      always: { guard: 'noPartitions', target: 'parting' },
      after: { drain: { target: 'parting', actions: 'revokePartitions' } },
    },
    parting: {
      on: { stop: 'unsubscribing' },
      invoke: {
        src: 'unsubscribe',
        input: ({ context }) => context.subscription,
        onDone: 'choosing',
        onError: { target: 'choosing', actions: 'keepError' },
      },
    },
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
