/**
 * The ways in which tests wait: until something is so, until enough has come in answers that wait by themselves, and for time itself.
 * The linter refuses timers in all other files here
 * but two: file-limit.ts, which ends what hangs, and the scripted engine, whose receives end in their time.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { CalmClock } from './services/calm-clock.ts'

/** What takes longer on the slowest machine never comes. A test that hangs is ended much later (run.ts). */
const WITHIN_MS = 60_000
/** Between two looks lies a tenth of the time that was waited so far, in these bounds. */
const LEAST_MS = 1
const MOST_MS = 50

export type WaitOptions = Readonly<{
  /** only where a minute is too short, or where the time itself is what is promised */
  withinMs?: number
  /** measures that time; without it all time counts */
  clock?: CalmClock
  /** the service that is waited for: the end of its log is shown when the time is over */
  service?: Readonly<{ failure: (what: string) => Error }>
}>

type Truthy<T> = Exclude<T, false | 0 | 0n | '' | null | undefined>

/**
 * Asks until the answer is truthy. What the condition throws ends the wait.
 * @param what is waited for, for the error; a function, where what was seen last is to be shown
 * @returns that answer
 * @throws Error the time was over
 */
export async function until<T>(
  what: string | (() => string | Promise<string>),
  condition: () => T,
  { withinMs = WITHIN_MS, clock, service }: WaitOptions = {},
): Promise<Truthy<Awaited<T>>> {
  const begun = clock?.now()
  const begunMs = performance.now()
  for (;;) {
    const answer = await condition()
    if (answer) return answer as Truthy<typeof answer>
    const waitedMs = performance.now() - begunMs
    if ((clock && begun ? clock.since(begun) : waitedMs) > withinMs) {
      const message = `not within ${withinMs} ms: ${typeof what === 'string' ? what : await what()}`
      throw service?.failure(message) ?? new Error(message)
    }
    await sleep(Math.min(MOST_MS, Math.max(LEAST_MS, waitedMs / 10)))
  }
}

/**
 * Asks again at once until enough has come, where each answer waits by itself for something to come, as that of a `receive` does.
 * @param what is gathered, for the error
 * @param next asks once, and is told what has come so far; what it throws ends the wait
 * @param enough how many, or whether it is enough
 * @returns all that came, in order
 * @throws Error the time was over
 */
export async function gather<T>(
  what: string,
  next: (came: readonly T[]) => Promise<readonly T[]>,
  enough: number | ((came: readonly T[]) => boolean),
  { withinMs = WITHIN_MS, service }: Omit<WaitOptions, 'clock'> = {},
): Promise<T[]> {
  const isEnough = typeof enough === 'number' ? () => came.length >= enough : () => enough(came)
  const came: T[] = []
  const begunMs = performance.now()
  while (!isEnough()) {
    if (performance.now() - begunMs > withinMs) {
      const message = `not within ${withinMs} ms: ${what}, of which ${came.length} came`
      throw service?.failure(message) ?? new Error(message)
    }
    came.push(...(await next(came)))
  }
  return came
}

/**
 * Lets real time pass, where nothing tells that it was enough: a fault that lasts, a peer whose clock runs, a pace.
 * @param _why it must be time, for whoever reads the test
 * @param signal ends it early
 */
export async function pass(ms: number, _why: string, signal?: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch((error: unknown) => {
    if (!signal?.aborted) throw error
  })
}
