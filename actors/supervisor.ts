/**
 * The root of the actors: keeps every source and every sink alive, and ends them in order.
 *
 *   running ─stop─▶ stopping sources ─all stopped─▶ stopping sinks ─all stopped─▶ stopped
 *
 *  I1. A child that crashes doesn't touch its siblings: each has a supervised machine of its own.
 *  I2. No sink is stopped before every source has stopped: what was appended last can still be handed over or committed.
 *  I3. After `stop` nothing is supervised any more.
 */
import { assign, enqueueActions, setup, type ActorRefFrom } from 'xstate'
import { supervisedMachine, type Child } from './supervised.ts'

type Supervised = ActorRefFrom<typeof supervisedMachine>
type OnCrash = (child: Child, error: unknown) => void
type Events =
  | { type: 'supervise'; child: Child }
  | { type: 'dismiss'; key: string }
  | { type: 'stop' }
  | { type: `xstate.done.actor.${string}` }

/** Keeps all children alive, and stops the sources before the sinks. */
export const supervisorMachine = setup({
  types: {
    input: {} as { onCrash: OnCrash },
    context: {} as { children: ReadonlyMap<string, Supervised>; onCrash: OnCrash },
    events: {} as Events,
  },
  actors: { supervised: supervisedMachine },
  actions: {
    forgetStopped: assign({
      children: ({ context }) => new Map([...context.children].filter(([, child]) => child.getSnapshot().status === 'active')),
    }),
    stopSources: ({ context }) => stopKind(context.children, 'source'),
    stopSinks: ({ context }) => stopKind(context.children, 'sink'),
  },
  guards: {
    noSources: ({ context }) => count(context.children, 'source') === 0,
    noSinks: ({ context }) => count(context.children, 'sink') === 0,
  },
}).createMachine({
  context: ({ input }) => ({ children: new Map(), onCrash: input.onCrash }),
  initial: 'running',
  on: { 'xstate.done.actor.*': { actions: 'forgetStopped' } },
  states: {
    running: {
      on: {
        supervise: {
          guard: ({ context, event }) => !context.children.has(event.child.key),
          actions: assign({
            children: ({ context, event, spawn }) =>
              new Map(context.children).set(
                event.child.key,
                spawn('supervised', { id: event.child.key, input: { child: event.child, onCrash: context.onCrash } }),
              ),
          }),
        },
        dismiss: {
          actions: enqueueActions(({ context, event, enqueue }) => {
            const child = context.children.get(event.key)
            if (child) enqueue.sendTo(child, { type: 'stop' })
          }),
        },
        stop: 'stoppingSources',
      },
    },
    stoppingSources: { entry: 'stopSources', always: { guard: 'noSources', target: 'stoppingSinks' } },
    stoppingSinks: { entry: 'stopSinks', always: { guard: 'noSinks', target: 'stopped' } },
    stopped: { type: 'final' },
  },
})

const kindOf = (child: Supervised) => child.getSnapshot().context.child.kind
const count = (children: ReadonlyMap<string, Supervised>, kind: Child['kind']) =>
  [...children.values()].filter((child) => kindOf(child) === kind && child.getSnapshot().status === 'active').length

function stopKind(children: ReadonlyMap<string, Supervised>, kind: Child['kind']): void {
  for (const child of children.values()) if (kindOf(child) === kind) child.send({ type: 'stop' })
}
