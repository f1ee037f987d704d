/**
 * One child under supervision: started, watched, started again after a crash.
 *
 *   starting ─started─▶ running ─crash─▶ waiting ─back-off─▶ starting
 *      │ error ────────────────────────────▲ │
 *      └ stop: remembered    running ─stop─▶ stopping ─▶ stopped ◀─stop─ waiting
 *                            running ─ended by itself─▶ stopped
 *
 *  I1. At most one instance of the child lives: a new start begins only after the former one ended.
 *  I2. `attempt` returns to 0 only after the child ran STABLE_MS without a crash, so a child that dies at once keeps backing off.
 *  I3. A stop that comes while the child starts is not lost: what was started is stopped.
 *  I4. `lastError` stays visible after a restart, until the next crash replaces it.
 */
import { assign, fromPromise, setup } from 'xstate'
import { backOff } from '../engine/back-off.ts'

/** Stands for what runs: `ended` resolves when it ended on purpose and rejects when it crashed. */
export interface Running {
  readonly ended: Promise<void>
  stop(): Promise<void>
}
/** Describes a child that is kept alive: a source or a sink. */
export interface Child {
  /** names the actor in logs and in `GET /info` */
  readonly key: string
  readonly kind: 'source' | 'sink'
  start(): Promise<Running>
}
type Crash = Readonly<{ error: unknown; at: Date }>

const BACK_OFF = { firstMs: 250, maxMs: 30_000 }
const STABLE_MS = 60_000

type Context = { child: Child; running: Running | undefined; attempt: number; stopAsked: boolean; lastError: Crash | undefined }

function runningOf({ running }: Context): Running {
  if (!running) throw new TypeError('a child that has not started')
  return running
}

const errorIn = (event: object): unknown => ('error' in event ? event.error : undefined)

/** Keeps one child alive until it is stopped or ends by itself. */
export const supervisedMachine = setup({
  types: {
    input: {} as { child: Child; onCrash: (child: Child, error: unknown) => void },
    context: {} as Context & { onCrash: (child: Child, error: unknown) => void },
    events: {} as { type: 'stop' },
  },
  actors: {
    start: fromPromise<Running, Child>(({ input }) => input.start()),
    watch: fromPromise<void, Running>(({ input }) => input.ended),
    stop: fromPromise<void, Running>(({ input }) => input.stop()),
  },
  actions: {
    noteCrash: assign({
      running: undefined,
      attempt: ({ context }) => context.attempt + 1,
      lastError: ({ event }) => ({ error: errorIn(event), at: new Date() }),
    }),
    tellCrash: ({ context, event }) => context.onCrash(context.child, errorIn(event)),
  },
  delays: {
    backOff: ({ context }) => backOff(BACK_OFF, context.attempt),
    stable: STABLE_MS,
  },
  guards: { stopAsked: ({ context }) => context.stopAsked },
}).createMachine({
  context: ({ input }) => ({
    child: input.child,
    onCrash: input.onCrash,
    running: undefined,
    attempt: 0,
    stopAsked: false,
    lastError: undefined,
  }),
  initial: 'starting',
  states: {
    starting: {
      on: { stop: { actions: assign({ stopAsked: true }) } },
      invoke: {
        src: 'start',
        input: ({ context }) => context.child,
        onDone: [
          { guard: 'stopAsked', target: 'stopping', actions: assign({ running: ({ event }) => event.output }) },
          { target: 'running', actions: assign({ running: ({ event }) => event.output }) },
        ],
        onError: [
          { guard: 'stopAsked', target: 'stopped', actions: 'noteCrash' },
          { target: 'waiting', actions: ['noteCrash', 'tellCrash'] },
        ],
      },
    },
    running: {
      on: { stop: 'stopping' },
      after: { stable: { actions: assign({ attempt: 0 }) } },
      invoke: {
        src: 'watch',
        input: ({ context }) => runningOf(context),
        onDone: 'stopped',
        onError: { target: 'waiting', actions: ['noteCrash', 'tellCrash'] },
      },
    },
    waiting: { on: { stop: 'stopped' }, after: { backOff: 'starting' } },
    stopping: {
      invoke: {
        src: 'stop',
        input: ({ context }) => runningOf(context),
        onDone: 'stopped',
        onError: { target: 'stopped', actions: assign({ lastError: ({ event }) => ({ error: event.error, at: new Date() }) }) },
      },
    },
    stopped: { type: 'final' },
  },
})
