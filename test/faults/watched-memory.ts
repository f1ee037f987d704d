/** The private memory of a service while it works. */
import assert from 'node:assert/strict'
import type { Service } from './service.ts'

const SAMPLE_EVERY_MS = 50

/** Reads the private memory all the time, across restarts. */
export function watchMemory(service: Service): { assertBelow: (limitKb: number) => Promise<void> } {
  const look = () => void service.rssAnonKb().catch(() => {}) // between two processes
  const looking = setInterval(look, SAMPLE_EVERY_MS).unref()
  return {
    assertBelow: async (limitKb) => {
      clearInterval(looking)
      assert.ok(service.peakRssAnonKb > 0, 'memory was never read')
      assert.ok(service.peakRssAnonKb < limitKb, `private memory reached ${mb(service.peakRssAnonKb * 1024)} MB`)
    },
  }
}

export const mb = (bytes: number): number => Math.round(bytes / 1024 / 1024)
