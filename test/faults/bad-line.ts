/** What the line to a destination goes through in a round of a fault test: all of it in two rounds. */
import { CALM, type NetProxy } from './net-proxy.ts'
import type { Random } from './random.ts'
import { pass } from '../waiting.ts'

/** Settles when the line is as it was; connections that fell silent stay so. */
export async function badLine(proxy: NetProxy, round: number, random: Random): Promise<void> {
  const wait = () => pass(random.int(100, 300), 'the line is bad for a while')
  if (round % 2 === 0) {
    proxy.reset()
    await wait()
    proxy.weather = { delayMs: 60, bytesPerSecond: Infinity }
    await wait()
    proxy.weather = { delayMs: 0, bytesPerSecond: 30_000 }
    await wait()
    proxy.weather = CALM
    proxy.reset() // in the middle of what was still on its way
  } else {
    proxy.fallSilent()
    await wait()
    proxy.heal()
    await wait()
    proxy.cut()
    await wait()
    proxy.heal()
  }
}
