/**
 * Keeps the running engine to what is stored, by this process or another one: at a notice of the state database, and by a look
 * every few seconds, because a notice can be lost. What could not be taken in is tried again a second later.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { StateFeed } from '../engine/state/state-feed.ts'
import { Bell } from '../engine/bell.ts'

const LOOK_EVERY_MS = 5_000
/** After a failure the configuration is read again after this. */
const RETRY_MS = 1_000
/** Edits often come one after the other, and one that is made here is taken in by its own request. */
const GATHER_MS = 50

type ConfigWatch = Readonly<{
  feed: Pick<StateFeed, 'watch'>
  /** differs when what is stored differs */
  stored: () => Promise<string>
  /** the same text for the configuration that has taken effect in this process */
  applied: () => string | undefined
  reload: () => Promise<void>
  onError: (error: unknown) => void
  lookEveryMs?: number
}>

/** Takes in what other processes change of the configuration, until it is disposed of. */
export function watchConfig({ feed, stored, applied, reload, onError, lookEveryMs = LOOK_EVERY_MS }: ConfigWatch): AsyncDisposable {
  const stop = new AbortController()
  const bell = new Bell()
  const unwatch = feed.watch(({ about }) => {
    if (about === 'resources' || about === 'everything') bell.ring()
  })
  async function run(): Promise<void> {
    while (!stop.signal.aborted) {
      try {
        if ((await stored()) !== applied()) await reload()
        await bell.wait(stop.signal, lookEveryMs)
        await sleep(Math.min(lookEveryMs, GATHER_MS), undefined, { signal: stop.signal })
      } catch (error) {
        if (stop.signal.aborted) return
        onError(error)
        await sleep(Math.min(lookEveryMs, RETRY_MS), undefined, { signal: stop.signal }).catch(() => undefined)
      }
    }
  }
  const running = run()
  return {
    [Symbol.asyncDispose]: async () => {
      unwatch()
      stop.abort()
      await running
    },
  }
}
