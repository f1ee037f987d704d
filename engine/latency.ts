/** Distributions of latencies, counted a batch at a time and shown to Prometheus as histograms. */
import { Histogram, type MetricValueWithName } from 'prom-client'

/** Bounds in microseconds, of the contract. */
export const LATENCY_BUCKETS_US = [10, 100, 1e3, 1e4, 5e4, 1e5, 5e5, 1e6, 5e6, 1e7, 5e7] as const

type Labels = Record<string, string | number>

/** A latency distribution that takes many equal observations at once. */
export class LatencyCounts {
  /** one place a bucket, the last one for what is above all bounds */
  readonly #counts = new Float64Array(LATENCY_BUCKETS_US.length + 1)
  #sum = 0

  /** @param us microseconds; a clock that ran backwards counts as 0 */
  add(us: number, count = 1): void {
    const value = us > 0 ? us : 0
    let bucket = 0
    while (bucket < LATENCY_BUCKETS_US.length && value > (LATENCY_BUCKETS_US[bucket] as number)) bucket++
    this.#counts[bucket] = (this.#counts[bucket] as number) + count
    this.#sum += value * count
  }

  /** Counts up to each bound, the whole count, and the sum. */
  cumulative(): { upTo: number[]; count: number; sum: number } {
    let count = 0
    const upTo: number[] = []
    for (const part of this.#counts) upTo.push((count += part))
    return { upTo: upTo.slice(0, -1), count, sum: this.#sum }
  }
}

type HistogramConfig = Readonly<{ name: string; help: string; labelNames: string[] }>

/** A histogram to prom-client, whose counts are ours: its own takes one observation a call. */
export class LatencyHistogram extends Histogram {
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
      upTo.forEach((value, i) => add('_bucket', value, { le: LATENCY_BUCKETS_US[i] as number }))
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
