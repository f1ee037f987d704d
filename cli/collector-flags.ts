/**
 * Sets how V8 collects garbage in a service. Most of what it holds is outside of V8's heap: packs and bodies. As a rule every 64 MB of
 * that make V8 look through all it has, several times a second; with these it waits until heap and buffers together are two
 * and a half times what was left by the last look (measured: bench/README.md).
 */
import { setFlagsFromString } from 'node:v8'

/** The flags of V8 that a service runs with. */
export const COLLECTOR_FLAGS = ['--external-memory-accounted-in-global-limit', '--heap-growing-percent=150'] as const
/** The version of V8 that has these flags: another one may not know them, and would say so on the terminal at every start. */
export const THEIR_V8 = '13.6.'

/** Sets the flags, where this V8 knows them. */
export function setCollectorFlags(): void {
  if (process.versions.v8.startsWith(THEIR_V8)) for (const flag of COLLECTOR_FLAGS) setFlagsFromString(flag)
}
