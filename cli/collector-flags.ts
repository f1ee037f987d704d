/**
 * Sets how V8 collects garbage in a service. Most of what it holds is outside of V8's heap: packs and bodies. As a rule every 64 MB of
 * that make V8 look through all it has, several times a second; with these it waits until heap and buffers together are two
 * and a half times what was left by the last look (measured: bench/README.md).
 *
 * Young objects have a room of their own. V8 doubles it under load up to 128 MB, and looks it through when one half is full: until then
 * also what dead objects hold outside stays, of large rows a hundred MB. Here that room is bounded.
 */
import { PerformanceObserver } from 'node:perf_hooks'
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8'

/** The flags of V8 that a service runs with. */
export const COLLECTOR_FLAGS = ['--external-memory-accounted-in-global-limit', '--heap-growing-percent=150'] as const
/** By how much the room for young objects grows at once: V8 has no other way to bound it in a process that runs. */
const GROWTH_FLAG = '--semi-space-growth-factor'
/** The version of V8 that has these flags: another one may not know them, and would say so on the terminal at every start. */
export const THEIR_V8 = '13.6.'
/** All flags that are set. */
export const KNOWN_FLAGS = [...COLLECTOR_FLAGS, GROWTH_FLAG] as const
/** The room for young objects, both halves. */
const YOUNG_BYTES = 32 * 1024 * 1024

/** Sets the flags, where this V8 knows them. */
export function setCollectorFlags(): void {
  if (!process.versions.v8.startsWith(THEIR_V8)) return
  for (const flag of COLLECTOR_FLAGS) setFlagsFromString(flag)
  boundYoungObjects()
}

/** Lets the room for young objects grow to its bound, and again when V8 has made it smaller meanwhile, as it does where little happens. */
function boundYoungObjects(): void {
  let growth = 2
  const collections = new PerformanceObserver(() => {
    const { space_size: bytes = 0 } = getHeapSpaceStatistics().find(({ space_name: name }) => name === 'new_space') ?? {}
    const next = bytes >= YOUNG_BYTES ? 1 : 2
    if (next !== growth) setFlagsFromString(`${GROWTH_FLAG}=${next}`)
    growth = next
  })
  collections.observe({ entryTypes: ['gc'] })
}
