/**
 * Families of metrics as a registry of prom-client, which prints them in the text form of Prometheus. It is loaded only where there is
 * a port to scrape, or a collector: it and what it asks Node for take a tenth of a start.
 */
import { Counter, Gauge, Histogram, Registry, collectDefaultMetrics, type MetricValueWithName } from 'prom-client'
import { collectEventLoopLag, PROM_CLIENT } from './event-loop-lag.ts'
import { LATENCY_BUCKETS_US, type LatencyCounts } from './latency.ts'

/** Names of what a figure is of. */
export type Labels = Record<string, string | number>
/** Describes the figures of one name. @property samples asked at each scrape; a value that is undefined has no line */
export type Family = Readonly<{ name: string; help: string }> &
  (
    | Readonly<{ kind: 'gauge' | 'counter'; samples: () => readonly Sample[] }>
    | Readonly<{ kind: 'histogram'; labelNames: readonly string[]; samples: () => readonly LatencySample[] }>
  )
/** Holds one figure of a gauge or a counter, with its labels. */
export type Sample = readonly [labels: Labels, value: number | undefined]
/** A distribution of a histogram. */
export type LatencySample = readonly [labels: Labels, counts: LatencyCounts]

// prettier-ignore
const LABEL_NAMES = [
  'consumer_id', 'consumer_name', 'partition', 'replication_slot_id', 'slot_name', 'database_id', 'database_name', 'stream',
  'entity_type', 'entity_id', 'entity_name', 'status', 'version', 'code', 'node',
]

/** Makes a registry of families, which prom-client prints. @param ofProcess Node's own figures as well, measured from now on */
export function registryOf(families: readonly Family[], ofProcess: boolean): Registry {
  const register = new Registry()
  if (ofProcess) {
    collectDefaultMetrics({ register, ...PROM_CLIENT })
    collectEventLoopLag(register)
  }
  for (const family of families) register.registerMetric(metricOf(family))
  return register
}

function metricOf(family: Family): Counter | Gauge | Histogram {
  const { kind, name, help, samples } = family
  if (kind === 'histogram') return new LatencyHistogram({ name, help, labelNames: [...family.labelNames] }, samples)
  const config = { name, help, labelNames: LABEL_NAMES, registers: [] }
  if (kind === 'gauge')
    return new Gauge({
      ...config,
      collect() {
        this.reset()
        for (const [labels, value] of samples()) if (value !== undefined) this.set(labels, value)
      },
    })
  return new Counter({
    ...config,
    collect() {
      this.reset()
      for (const [labels, value] of samples()) if (value !== undefined) this.inc(labels, value)
    },
  })
}

type HistogramConfig = Readonly<{ name: string; help: string; labelNames: string[] }>

/** A histogram to prom-client, whose counts are ours: its own takes one observation a call. */
class LatencyHistogram extends Histogram {
  /** never observed: its answer is the frame (name, type) that ours is put into */
  readonly #frame: Histogram
  readonly #name: string
  readonly #samples: () => readonly (readonly [Labels, LatencyCounts])[]

  constructor(config: HistogramConfig, samples: () => readonly (readonly [Labels, LatencyCounts])[]) {
    const whole = { ...config, buckets: [...LATENCY_BUCKETS_US], registers: [] }
    super(whole)
    this.#frame = new Histogram(whole)
    this.#name = config.name
    this.#samples = samples
  }

  override async get() {
    const values: MetricValueWithName<string>[] = []
    for (const [labels, counts] of this.#samples()) {
      const { upTo, count, sum } = counts.cumulative()
      const add = (suffix: string, value: number, more: Labels = {}) =>
        values.push({ metricName: this.#name + suffix, labels: { ...labels, ...more }, value })
      for (const [i, le] of LATENCY_BUCKETS_US.entries()) add('_bucket', upTo[i] ?? 0, { le })
      add('_bucket', count, { le: '+Inf' })
      add('_sum', sum)
      add('_count', count)
    }
    return { ...(await this.#frame.get()), values }
  }

  /** what Registry.metrics() prefers to `get` when it is there */
  getForPromString() {
    return this.get()
  }
}
