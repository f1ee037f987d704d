/**
 * The figures of a process, in Prometheus form: those of contract 11.4 under their names (prefix `sequin_`), our own
 * (`tailrace_`), and Node's. Counting is an addition to a plain number, once a batch; prom-client sees the numbers only
 * when someone scrapes. A source or sink registers once, gets its meter to count with, and gives a callback that says how
 * things stand at the moment of a scrape. Disposing of the meter takes its lines out of the answer.
 */
import { Counter, Gauge, Histogram, Registry, collectDefaultMetrics, type MetricValueWithName } from 'prom-client'

/** Bounds in microseconds, of the contract. */
export const LATENCY_BUCKETS_US = [10, 100, 1e3, 1e4, 5e4, 1e5, 5e5, 1e6, 5e6, 1e7, 5e7] as const

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

export type EntityStatus = 'ok' | 'warn' | 'error' | 'paused'
const ENTITY_STATUSES: readonly EntityStatus[] = ['ok', 'warn', 'error', 'paused']

export type SinkLabels = Readonly<{ id: string; name: string }>
export type SourceLabels = Readonly<{ slotId: string; slotName: string; databaseId: string; databaseName: string }>

/** How a sink stands at a scrape; what is undefined has no line. */
export type SinkGauges = Readonly<{
  health: EntityStatus
  /** handed out, not acknowledged */
  inDelivery?: number
  /** read ahead and in the log, not finished */
  buffered?: number
  /** parked or backing off */
  inRedelivery?: number
  oldestMessageAgeMs?: number
  /** the read-ahead windows of its partitions, and their bound */
  windowBytes?: number
  windowLimitBytes?: number
  /** share of the time in which delivery was busy, 0–100 */
  deliverySaturationPercent?: number
  partitions?: readonly PartitionGauges[]
}>
export type PartitionGauges = Readonly<{
  partition: number
  /** records of the log above the lowest unfinished message */
  lagRecords?: number
  parkedMessages?: number
  windowBytes?: number
  logBytes?: number
}>

export type SourceGauges = Readonly<{
  /** this process streams it; false: another one does, or none */
  isOwner?: boolean
  slotHealth?: EntityStatus
  databaseHealth?: EntityStatus
  /** bytes of write-ahead log that Postgres keeps for the slot (restart lag) */
  slotSizeBytes?: number
  /** bytes from the confirmed position to the server's end of the log */
  confirmedLagBytes?: number
  bytesInFlight?: number
  ingestionSaturationPercent?: number
  processingSaturationPercent?: number
}>

/** Counts of one sink. Call each once a batch. */
export class SinkMeter implements Disposable {
  readonly internalLatency = new LatencyCounts()
  readonly deliveryLatency = { ok: new LatencyCounts(), error: new LatencyCounts() }
  attempts = 0
  successes = 0
  failures = 0
  bytesDelivered = 0
  readonly #forget: () => void
  constructor(forget: () => void) {
    this.#forget = forget
  }

  /** Messages handed to the destination (pull: to a client). */
  attempted(messages: number, bytes: number): void {
    this.attempts += messages
    this.bytesDelivered += bytes
  }

  /** @param latencyUs from handing out to the destination's answer (pull: to the ack), the same for all of the batch */
  delivered(messages: number, latencyUs: number): void {
    this.successes += messages
    this.deliveryLatency.ok.add(latencyUs, messages)
  }

  failed(messages: number, latencyUs: number): void {
    this.failures += messages
    this.deliveryLatency.error.add(latencyUs, messages)
  }

  /** @param latencyUs from the arrival in this process to the moment of handing out */
  waited(messages: number, latencyUs: number): void {
    this.internalLatency.add(latencyUs, messages)
  }

  [Symbol.dispose](): void {
    this.#forget()
  }
}

/** Counts of one source. */
export class SourceMeter implements Disposable {
  messages = 0
  bytes = 0
  latencyUs: number | undefined
  readonly #forget: () => void
  constructor(forget: () => void) {
    this.#forget = forget
  }

  /** @param latencyUs from the commit on the server (its clock) to the batch's arrival here */
  ingested(messages: number, bytes: number, latencyUs?: number): void {
    this.messages += messages
    this.bytes += bytes
    if (latencyUs !== undefined) this.latencyUs = latencyUs
  }

  [Symbol.dispose](): void {
    this.#forget()
  }
}

type SinkEntry = { labels: SinkLabels; meter: SinkMeter; gauges: () => SinkGauges | undefined; now?: SinkGauges | undefined }
type SourceEntry = { labels: SourceLabels; meter: SourceMeter; gauges: () => SourceGauges | undefined; now?: SourceGauges | undefined }
type Labels = Record<string, string | number>
type Sample = readonly [labels: Labels, value: number | undefined]

const consumerOf = ({ id, name }: SinkLabels): Labels => ({ consumer_id: id, consumer_name: name })
const slotOf = ({ slotId, slotName }: SourceLabels): Labels => ({ replication_slot_id: slotId, slot_name: slotName })
const databaseOf = (labels: SourceLabels): Labels => ({
  ...slotOf(labels),
  database_id: labels.databaseId,
  database_name: labels.databaseName,
})

export class Metrics {
  readonly #registry = new Registry()
  readonly #sinks = new Map<string, SinkEntry>()
  readonly #sources = new Map<string, SourceEntry>()
  readonly #errorAnswers = new Map<string, number>()

  readonly #node: string

  /** @param node names this process among those of a cluster */
  constructor({ version, node = '', processMetrics = true }: { version: string; node?: string; processMetrics?: boolean }) {
    this.#node = node
    if (processMetrics) collectDefaultMetrics({ register: this.#registry })
    this.#describe('gauge', 'tailrace_build_info', 'Always 1; the label says the version', () => [[{ version }, 1]])
    this.#describeSources()
    this.#describeSinks()
    this.#describePartitions()
    this.#describe('gauge', 'sequin_entity_health', '1 for the status an entity has, 0 for the others', () => this.#entityHealth())
    this.#describe('counter', 'tailrace_error_answers_count', 'Requests answered with an error, by its code', () =>
      [...this.#errorAnswers].map(([code, count]) => [{ code }, count] as const),
    )
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  /** A sink of the same id that is still registered is replaced. @param gauges asked at each scrape; undefined: not known now */
  sink(labels: SinkLabels, gauges: () => SinkGauges | undefined): SinkMeter {
    const entry: SinkEntry = {
      labels,
      gauges,
      meter: new SinkMeter(() => this.#sinks.get(labels.id) === entry && this.#sinks.delete(labels.id)),
    }
    this.#sinks.set(labels.id, entry)
    return entry.meter
  }

  source(labels: SourceLabels, gauges: () => SourceGauges | undefined): SourceMeter {
    const entry: SourceEntry = {
      labels,
      gauges,
      meter: new SourceMeter(() => this.#sources.get(labels.slotId) === entry && this.#sources.delete(labels.slotId)),
    }
    this.#sources.set(labels.slotId, entry)
    return entry.meter
  }

  errorAnswered(code: string): void {
    this.#errorAnswers.set(code, (this.#errorAnswers.get(code) ?? 0) + 1)
  }

  /** @returns the whole answer to a scrape; a gauge callback that throws leaves out its own lines only */
  async text(): Promise<string> {
    for (const entry of this.#sinks.values()) entry.now = askOrNothing(entry.gauges)
    for (const entry of this.#sources.values()) entry.now = askOrNothing(entry.gauges)
    return this.#registry.metrics()
  }

  #describeSources(): void {
    const of = (labels: (l: SourceLabels) => Labels, value: (entry: SourceEntry) => number | undefined) => () =>
      [...this.#sources.values()].map((entry) => [labels(entry.labels), value(entry)] as const)
    const gauge = (name: string, help: string, value: (entry: SourceEntry) => number | undefined, labels = slotOf) =>
      this.#describe('gauge', name, help, of(labels, value))
    const counter = (name: string, help: string, value: (entry: SourceEntry) => number) =>
      this.#describe('counter', name, help, of(slotOf, value))
    gauge('sequin_ingestion_latency_us', 'Commit on the server to arrival here, latest batch', (s) => s.meter.latencyUs)
    counter('sequin_messages_ingested_count', 'Changes received from the slot', (s) => s.meter.messages)
    counter('sequin_bytes_ingested_total', 'Bytes received from the slot', (s) => s.meter.bytes)
    gauge('sequin_replication_slot_size', 'Bytes of write-ahead log kept for the slot', (s) => s.now?.slotSizeBytes, databaseOf)
    gauge('sequin_replication_slot_size_mb', 'The same in MB', (s) => perMb(s.now?.slotSizeBytes), databaseOf)
    gauge('sequin_ingestion_saturation_percent', 'Share of the time in which reading was busy', (s) => s.now?.ingestionSaturationPercent)
    gauge('sequin_processing_saturation_percent', 'Share of the time in which decoding was busy', (s) => s.now?.processingSaturationPercent)
    gauge('tailrace_slot_confirmed_lag_bytes', "Confirmed position to the server's end of the log", (s) => s.now?.confirmedLagBytes)
    gauge('tailrace_slot_restart_lag_bytes', "Slot's restart position to the server's end of the log", (s) => s.now?.slotSizeBytes)
    gauge('tailrace_source_owner', '1: this node streams the source, 0: it stands by', (s) =>
      s.now?.isOwner === undefined ? undefined : Number(s.now.isOwner),
    )
    gauge('tailrace_source_bytes_in_flight', 'Bytes received and not yet durable in the log', (s) => s.now?.bytesInFlight)
  }

  #describeSinks(): void {
    const of = (value: (entry: SinkEntry) => number | undefined) => () =>
      [...this.#sinks.values()].map((entry) => [consumerOf(entry.labels), value(entry)] as const)
    const gauge = (name: string, help: string, value: (entry: SinkEntry) => number | undefined) =>
      this.#describe('gauge', name, help, of(value))
    const counter = (name: string, help: string, value: (entry: SinkEntry) => number) => this.#describe('counter', name, help, of(value))
    counter('sequin_message_deliver_attempt_count', 'Messages handed to the destination', (s) => s.meter.attempts)
    counter('sequin_message_deliver_success_count', 'Messages the destination took (pull: acknowledged)', (s) => s.meter.successes)
    counter(
      'sequin_message_deliver_failure_count',
      'Messages the destination refused (pull: nack or visibility lapsed)',
      (s) => s.meter.failures,
    )
    counter('sequin_bytes_delivered_total', 'Bytes handed to the destination', (s) => s.meter.bytesDelivered)
    gauge('sequin_messages_in_delivery', 'Messages handed out and not acknowledged', (s) => s.now?.inDelivery)
    gauge('sequin_messages_buffered', 'Messages not finished', (s) => s.now?.buffered)
    gauge('sequin_messages_in_redelivery', 'Messages that wait to be tried again', (s) => s.now?.inRedelivery)
    gauge('sequin_oldest_message_age_ms', 'Age of the oldest message not finished', (s) => s.now?.oldestMessageAgeMs)
    gauge('sequin_buffer_memory_utilization_mb', 'Read-ahead window in use', (s) => perMb(s.now?.windowBytes))
    gauge('sequin_buffer_memory_utilization_percent', 'The same as a share of its bound', (s) =>
      percent(s.now?.windowBytes, s.now?.windowLimitBytes),
    )
    gauge('sequin_delivery_saturation_percent', 'Share of the time in which delivery was busy', (s) => s.now?.deliverySaturationPercent)
    this.#describeLatency('sequin_internal_latency_us', 'Arrival in the process to handing out', [], (s) => [[{}, s.meter.internalLatency]])
    this.#describeLatency('sequin_delivery_latency_us', "Handing out to the destination's answer", ['success'], (s) => [
      [{ success: 'ok' }, s.meter.deliveryLatency.ok],
      [{ success: 'error' }, s.meter.deliveryLatency.error],
    ])
  }

  #describePartitions(): void {
    const gauge = (name: string, help: string, value: (partition: PartitionGauges) => number | undefined) =>
      this.#describe('gauge', name, help, () =>
        [...this.#sinks.values()].flatMap(({ labels, now }) =>
          (now?.partitions ?? []).map(
            (partition) => [{ ...consumerOf(labels), partition: partition.partition }, value(partition)] as const,
          ),
        ),
      )
    this.#describe('gauge', 'tailrace_partition_owner', '1 for each partition that this node serves', () =>
      [...this.#sinks.values()].flatMap(({ labels, now }) =>
        (now?.partitions ?? []).map(({ partition }) => [{ ...consumerOf(labels), partition, node: this.#node }, 1] as const),
      ),
    )
    gauge('tailrace_partition_lag_records', 'Records of the log from the lowest unfinished message on', (p) => p.lagRecords)
    gauge('tailrace_partition_parked_messages', 'Messages that wait outside the log', (p) => p.parkedMessages)
    gauge('tailrace_partition_window_bytes', 'Bytes from the lowest unfinished message to the read head', (p) => p.windowBytes)
    gauge('tailrace_partition_log_bytes', 'Bytes of the partition in the log', (p) => p.logBytes)
  }

  #entityHealth(): Sample[] {
    const samples: Sample[] = []
    const add = (type: string, id: string, name: string, now: EntityStatus | undefined) => {
      if (now === undefined) return
      for (const status of ENTITY_STATUSES)
        samples.push([{ entity_type: type, entity_id: id, entity_name: name, status }, status === now ? 1 : 0])
    }
    for (const { labels, now } of this.#sinks.values()) add('sink', labels.id, labels.name, now?.health)
    for (const { labels, now } of this.#sources.values()) {
      add('database', labels.databaseId, labels.databaseName, now?.databaseHealth)
      add('replication_slot', labels.slotId, labels.slotName, now?.slotHealth)
    }
    return samples
  }

  #describe(kind: 'gauge' | 'counter', name: string, help: string, samples: () => readonly Sample[]): void {
    const labelNames = LABEL_NAMES
    if (kind === 'gauge') {
      new Gauge({
        name,
        help,
        labelNames,
        registers: [this.#registry],
        collect() {
          this.reset()
          for (const [labels, value] of samples()) if (value !== undefined) this.set(labels, value)
        },
      })
    } else {
      new Counter({
        name,
        help,
        labelNames,
        registers: [this.#registry],
        collect() {
          this.reset()
          for (const [labels, value] of samples()) if (value !== undefined) this.inc(labels, value)
        },
      })
    }
  }

  #describeLatency(
    name: string,
    help: string,
    labelNames: string[],
    of: (entry: SinkEntry) => readonly (readonly [Labels, LatencyCounts])[],
  ): void {
    const samples = () =>
      [...this.#sinks.values()].flatMap((entry) =>
        of(entry).map(([labels, counts]) => [{ ...consumerOf(entry.labels), ...labels }, counts] as const),
      )
    this.#registry.registerMetric(
      new LatencyHistogram({ name, help, labelNames: ['consumer_id', 'consumer_name', ...labelNames] }, samples),
    )
  }
}

const LABEL_NAMES = [
  ...['consumer_id', 'consumer_name', 'partition', 'replication_slot_id', 'slot_name', 'database_id', 'database_name'],
  ...['entity_type', 'entity_id', 'entity_name', 'status', 'version', 'code', 'node'],
]

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

function askOrNothing<T>(ask: () => T | undefined): T | undefined {
  try {
    return ask()
  } catch {
    return undefined
  }
}

const perMb = (bytes: number | undefined): number | undefined => (bytes === undefined ? undefined : bytes / 1_048_576)
const percent = (part: number | undefined, whole: number | undefined): number | undefined =>
  part === undefined || !whole ? undefined : (100 * part) / whole
