/**
 * Measures how late the event loop comes to what is due. prom-client has Node look every 10 ms, which wakes a process that has
 * nothing to do a hundred times a second: more than all its other work takes. Ten times a second say the same of a loop that is
 * busy.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { Gauge, type Registry } from 'prom-client'

const EVERY_MS = 100
/** For prom-client's own histogram, which can't be left out. */
const NEVER_MS = 2 ** 31 - 1
/** Settings of prom-client's own figures. */
export const PROM_CLIENT = { eventLoopMonitoringPrecision: NEVER_MS } as const

const HELP = [
  ['min', 'The minimum recorded event loop delay.'],
  ['max', 'The maximum recorded event loop delay.'],
  ['mean', 'The mean of the recorded event loop delays.'],
  ['stddev', 'The standard deviation of the recorded event loop delays.'],
  ['p50', 'The 50th percentile of the recorded event loop delays.'],
  ['p90', 'The 90th percentile of the recorded event loop delays.'],
  ['p99', 'The 99th percentile of the recorded event loop delays.'],
] as const

/** Collects how late the event loop was since the last scrape, under the names of prom-client's own figures. */
export function collectEventLoopLag(register: Registry): void {
  const histogram = monitorEventLoopDelay({ resolution: EVERY_MS })
  histogram.enable()
  const gauges = new Map<(typeof HELP)[number][0], Gauge>()
  const collect = () => {
    const late = (ns: number) => Math.max(0, ns / 1e9 - EVERY_MS / 1e3) // it counts from one look to the next
    const { count, min, max, mean, stddev } = histogram
    const [p50, p90, p99] = [late(histogram.percentile(50)), late(histogram.percentile(90)), late(histogram.percentile(99))]
    const figures = { min: late(min), max: late(max), mean: late(mean), stddev: stddev / 1e9, p50, p90, p99 }
    for (const [figure, gauge] of gauges) gauge.set(count === 0 ? 0 : figures[figure])
    histogram.reset()
  }
  for (const [figure, help] of HELP) {
    const name = `nodejs_eventloop_lag_${figure}_seconds`
    register.removeSingleMetric(name)
    gauges.set(figure, new Gauge({ name, help, registers: [register], ...(gauges.size === 0 && { collect }) }))
  }
}
