/**
 * The figures of a process, in Prometheus form: those of contract 11.4 under their names (prefix `sequin_`), our own
 * (`tailrace_`), and Node's. Counting is an addition to a plain number, once a batch; prom-client sees the numbers only
 * when someone scrapes. A source or sink registers once, gets its meter to count with, and gives a callback that says how
 * things stand at the moment of a scrape. Disposing of the meter takes its lines out of the answer.
 */
import type { Registry } from 'prom-client'
import type { Family, Labels, LatencySample, Sample } from './exposition.ts'
import { SinkMeter, SourceMeter } from './meters.ts'

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
  /** messages that this process didn't take because the sink was full */
  dropped?: number
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
  keptBytes?: number
  keptMessages?: number
  /** messages handed out since this process took the partition over */
  delivered?: number
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
  streams?: readonly StreamGauges[]
}>
export type StreamGauges = Readonly<{
  topic: string
  keptBytes: number
  /** generations of sinks: a sink may have several */
  readers: readonly Readonly<SinkLabels & { backlogBytes: number; othersBytes: number; heldBytes: number }>[]
}>

type SinkEntry = { labels: SinkLabels; meter: SinkMeter; gauges: () => SinkGauges | undefined; now?: SinkGauges | undefined }
type SourceEntry = { labels: SourceLabels; meter: SourceMeter; gauges: () => SourceGauges | undefined; now?: SourceGauges | undefined }
/** What is described together, under the same labels. */
export type Subject = 'source' | 'stream' | 'sink' | 'partition' | 'process'
type Described = Readonly<{ kind: 'gauge' | 'counter'; name: string; help: string; of: Subject }>

const consumerOf = ({ id, name }: SinkLabels): Labels => ({ consumer_id: id, consumer_name: name })
const slotOf = ({ slotId, slotName }: SourceLabels): Labels => ({ replication_slot_id: slotId, slot_name: slotName })
const databaseOf = (labels: SourceLabels): Labels => ({
  ...slotOf(labels),
  database_id: labels.databaseId,
  database_name: labels.databaseName,
})

export class Metrics {
  readonly #sinks = new Map<string, SinkEntry>()
  readonly #sources = new Map<string, SourceEntry>()
  readonly #errorAnswers = new Map<string, number>()
  readonly #families: (Family & Readonly<{ of: Subject }>)[] = []
  readonly #ofProcess: boolean
  #registry: Promise<Registry> | undefined
  readonly #node: string

  /** @param node names this process among those of a cluster */
  constructor({ version, node = '', processMetrics = true }: { version: string; node?: string; processMetrics?: boolean }) {
    this.#node = node
    this.#ofProcess = processMetrics
    const build = { kind: 'gauge', name: 'tailrace_build_info', help: 'Always 1; the label says the version', of: 'process' } as const
    this.#describe(build, () => [[{ version }, 1]])
    this.#describeSources()
    this.#describeStreams()
    this.#describeSinks()
    this.#describePartitions()
    const health = {
      kind: 'gauge',
      name: 'sequin_entity_health',
      help: '1 for the status an entity has, 0 for the others',
      of: 'process',
    } as const
    this.#describe(health, () => this.#entityHealth())
    const errors = {
      kind: 'counter',
      name: 'tailrace_error_answers_count',
      help: 'Requests answered with an error, by its code',
      of: 'process',
    } as const
    this.#describe(errors, () => [...this.#errorAnswers].map(([code, count]) => [{ code }, count] as const))
  }

  /** Everything that is measured, Node's own figures aside. */
  get families(): readonly Readonly<{ kind: Family['kind']; name: string; help: string; of: Subject }>[] {
    return this.#families
  }

  /** Gets ready for scrapes; Node's own figures are measured from then on. @returns the content type of an answer */
  async open(): Promise<string> {
    return (await this.#exposed()).contentType
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
    const registry = await this.#exposed()
    for (const entry of this.#sinks.values()) entry.now = askOrNothing(entry.gauges)
    for (const entry of this.#sources.values()) entry.now = askOrNothing(entry.gauges)
    return registry.metrics()
  }

  #exposed(): Promise<Registry> {
    return (this.#registry ??= import('./exposition.ts').then(({ registryOf }) => registryOf(this.#families, this.#ofProcess)))
  }

  #describeSources(): void {
    const of = (labels: (l: SourceLabels) => Labels, value: (entry: SourceEntry) => number | undefined) => () =>
      [...this.#sources.values()].map((entry) => [labels(entry.labels), value(entry)] as const)
    const gauge = (name: string, help: string, value: (entry: SourceEntry) => number | undefined, labels = slotOf) =>
      this.#describe({ kind: 'gauge', name, help, of: 'source' }, of(labels, value))
    const counter = (name: string, help: string, value: (entry: SourceEntry) => number) =>
      this.#describe({ kind: 'counter', name, help, of: 'source' }, of(slotOf, value))
    gauge(
      'sequin_ingestion_latency_us',
      "Microseconds from the oldest commit of the latest append, by the server's clock, to its being durable in the log",
      (s) => s.meter.latencyUs,
    )
    counter('sequin_messages_ingested_count', 'Row changes received from the slot', (s) => s.meter.messages)
    counter('sequin_bytes_ingested_total', 'Their bytes, as Postgres sent them', (s) => s.meter.bytes)
    gauge(
      'sequin_replication_slot_size',
      'Bytes of write-ahead log that Postgres keeps for the slot; asked every 10 s by the node that has the source',
      (s) => s.now?.slotSizeBytes,
      databaseOf,
    )
    gauge('sequin_replication_slot_size_mb', 'The same in MB', (s) => perMb(s.now?.slotSizeBytes), databaseOf)
    gauge(
      'sequin_ingestion_saturation_percent',
      'Share of the last 10 s in which an append to the log was open. Near 100 the log, and with it what is behind it, takes no more',
      (s) => s.now?.ingestionSaturationPercent,
    )
    gauge(
      'sequin_processing_saturation_percent',
      "Share of the last 10 s that decoding and packing took of this process's one thread. Near 100 the core is full",
      (s) => s.now?.processingSaturationPercent,
    )
    gauge(
      'tailrace_slot_confirmed_lag_bytes',
      'Bytes from the confirmed position to the last one the server has told of',
      (s) => s.now?.confirmedLagBytes,
    )
    gauge(
      'tailrace_slot_restart_lag_bytes',
      "As sequin_replication_slot_size: from the slot's restart position to the server's end of the log",
      (s) => s.now?.slotSizeBytes,
    )
    gauge('tailrace_source_owner', '1: this node streams the source, 0: it stands by', (s) =>
      s.now?.isOwner === undefined ? undefined : Number(s.now.isOwner),
    )
    gauge('tailrace_source_bytes_in_flight', 'Bytes received and not yet durable in the log', (s) => s.now?.bytesInFlight)
  }

  #describeStreams(): void {
    const of = (stream: string, { labels }: SourceEntry): Labels => ({
      ...{ stream, database_id: labels.databaseId, database_name: labels.databaseName },
    })
    const describe = (kind: 'gauge' | 'counter', name: string, help: string, samples: (entry: SourceEntry) => readonly Sample[]) =>
      this.#describe({ kind, name, help, of: 'stream' }, () => [...this.#sources.values()].flatMap(samples))
    const streamGauge = (name: string, help: string, value: (stream: StreamGauges) => number) =>
      describe('gauge', name, help, (s) => (s.now?.streams ?? []).map((stream) => [of(stream.topic, s), value(stream)]))
    const readerGauge = (name: string, help: string, value: (reader: StreamGauges['readers'][number]) => number) =>
      describe('gauge', name, help, (s) =>
        (s.now?.streams ?? []).flatMap((stream) =>
          [...Map.groupBy(stream.readers, ({ id }) => id).values()].map(
            (readers) =>
              [
                { ...of(stream.topic, s), ...consumerOf(readers[0] as SinkLabels) },
                readers.reduce((sum, reader) => sum + value(reader), 0),
              ] as const,
          ),
        ),
      )
    describe('counter', 'tailrace_stream_appended_bytes_total', 'Bytes that this node has appended to the stream', (s) =>
      [...s.meter.appendedBytes].map(([topic, bytes]) => [of(topic, s), bytes]),
    )
    streamGauge('tailrace_stream_kept_bytes', 'Bytes of the stream in the log', ({ keptBytes }) => keptBytes)
    streamGauge('tailrace_stream_readers', 'Sinks that read it, or may be replayed from it', ({ readers }) => new Set(readers.map(({ id }) => id)).size) // prettier-ignore
    readerGauge('tailrace_reader_backlog_bytes', "The sink's backlog in this stream, parked messages included", (reader) => reader.backlogBytes) // prettier-ignore
    readerGauge(
      'tailrace_reader_others_bytes',
      "Bytes of messages in this stream that are not the sink's own (its actions leave them out) and that it has not passed by yet; bounded by max_backlog_mb, as the backlog is",
      (reader) => reader.othersBytes,
    )
    readerGauge(
      'tailrace_reader_held_bytes',
      'Bytes that stay in the log for this sink, which is the last one of its stream, although others need them no more: for its backlog or for its replay_window',
      (reader) => reader.heldBytes,
    )
  }

  #describeSinks(): void {
    const of = (value: (entry: SinkEntry) => number | undefined) => () =>
      [...this.#sinks.values()].map((entry) => [consumerOf(entry.labels), value(entry)] as const)
    const gauge = (name: string, help: string, value: (entry: SinkEntry) => number | undefined) =>
      this.#describe({ kind: 'gauge', name, help, of: 'sink' }, of(value))
    const counter = (name: string, help: string, value: (entry: SinkEntry) => number | undefined) =>
      this.#describe({ kind: 'counter', name, help, of: 'sink' }, of(value))
    counter(
      'sequin_message_deliver_attempt_count',
      'Deliveries: messages handed to the destination, again included',
      (s) => s.meter.attempts,
    )
    counter(
      'sequin_message_deliver_success_count',
      'Messages that the destination took (pull: acknowledged, however late)',
      (s) => s.meter.successes,
    )
    counter(
      'sequin_message_deliver_failure_count',
      'Deliveries that came to nothing (pull: the visibility time passed without an ack, a nack, or an answer that could not be written)',
      (s) => s.meter.failures,
    )
    counter(
      'tailrace_messages_discarded_count',
      'Messages given up, on record: max_retry_count reached, larger than MAX_MESSAGE_MB, or by hand',
      (s) => s.meter.discarded,
    )
    counter(
      'tailrace_messages_forgotten_count',
      'Messages that a sink held as under way although no request had them: sent again, and a defect to be reported',
      (s) => s.meter.forgotten,
    )
    counter(
      'tailrace_messages_dropped_count',
      'Messages not taken because the backlog was full (load_shedding_policy discard_on_full)',
      (s) => s.now?.dropped,
    )
    counter('sequin_bytes_delivered_total', 'Bytes handed to the destination', (s) => s.meter.bytesDelivered)
    gauge(
      'sequin_messages_in_delivery',
      'Messages with the destination: handed out, and neither acknowledged nor back',
      (s) => s.now?.inDelivery,
    )
    gauge(
      'sequin_messages_buffered',
      'Messages read ahead from the log and not finished, parked ones included; what lies unread in the log is not counted',
      (s) => s.now?.buffered,
    )
    gauge(
      'sequin_messages_in_redelivery',
      'Messages that were delivered, came back, and wait for another delivery',
      (s) => s.now?.inRedelivery,
    )
    gauge(
      'sequin_oldest_message_age_ms',
      'Time since the commit of the oldest message that is not finished; 0: there is none',
      (s) => s.now?.oldestMessageAgeMs,
    )
    gauge('sequin_buffer_memory_utilization_mb', 'MB between the lowest unfinished message and the read head', (s) =>
      perMb(s.now?.windowBytes),
    )
    gauge('sequin_buffer_memory_utilization_percent', 'The same as a share of max_memory_mb', (s) =>
      percent(s.now?.windowBytes, s.now?.windowLimitBytes),
    )
    gauge(
      'sequin_delivery_saturation_percent',
      'Share of the last 10 s in which messages lay ready and waited for the destination (pull: for a client to ask, or for acks below max_ack_pending)',
      (s) => s.now?.deliverySaturationPercent,
    )
    this.#describeLatency('sequin_internal_latency_us', "Microseconds from the commit, by the server's clock, to handing out", [], (s) => [
      [{}, s.meter.internalLatency],
    ])
    this.#describeLatency(
      'sequin_delivery_latency_us',
      "Microseconds from handing out to the destination's answer (pull: ok to the ack, error to the nack or the end of the visibility time)",
      ['success'],
      (s) => [
        [{ success: 'ok' }, s.meter.deliveryLatency.ok],
        [{ success: 'error' }, s.meter.deliveryLatency.error],
      ],
    )
  }

  #describePartitions(): void {
    type Value = (partition: PartitionGauges) => number | undefined
    const describe = (kind: 'gauge' | 'counter', name: string, help: string, value: Value) =>
      this.#describe({ kind, name, help, of: 'partition' }, () =>
        [...this.#sinks.values()].flatMap(({ labels, now }) =>
          (now?.partitions ?? []).map(
            (partition) => [{ ...consumerOf(labels), partition: partition.partition }, value(partition)] as const,
          ),
        ),
      )
    const gauge = (name: string, help: string, value: Value) => describe('gauge', name, help, value)
    const owner = {
      kind: 'gauge',
      name: 'tailrace_partition_owner',
      help: '1 for each partition that this node serves',
      of: 'partition',
    } as const
    this.#describe(owner, () =>
      [...this.#sinks.values()].flatMap(({ labels, now }) =>
        (now?.partitions ?? []).map(({ partition }) => [{ ...consumerOf(labels), partition, node: this.#node }, 1] as const),
      ),
    )
    gauge('tailrace_partition_lag_records', 'Records of the log from the lowest unfinished message on', (p) => p.lagRecords)
    gauge('tailrace_partition_parked_messages', 'Messages that wait outside the log', (p) => p.parkedMessages)
    gauge('tailrace_partition_window_bytes', 'Bytes from the lowest unfinished message to the read head', (p) => p.windowBytes)
    gauge('tailrace_partition_log_bytes', 'Bytes of the partition in the log, what is kept to be replayed included', (p) => p.logBytes)
    gauge('tailrace_partition_kept_bytes', 'Of these, bytes that are finished and kept for replay_window', (p) => p.keptBytes)
    gauge('tailrace_partition_kept_messages', 'About how many finished messages are kept', (p) => p.keptMessages)
    describe(
      'counter',
      'tailrace_partition_delivered_count',
      'Messages of the partition handed out since this node took it over; its rate is that of the partition',
      (p) => p.delivered,
    )
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

  #describe(family: Described, samples: () => readonly Sample[]): void {
    this.#families.push({ ...family, samples })
  }

  #describeLatency(name: string, help: string, labelNames: readonly string[], of: (entry: SinkEntry) => readonly LatencySample[]): void {
    this.#families.push({
      ...{ kind: 'histogram', name, help, of: 'sink', labelNames: ['consumer_id', 'consumer_name', ...labelNames] },
      samples: () =>
        [...this.#sinks.values()].flatMap((entry) =>
          of(entry).map(([labels, counts]) => [{ ...consumerOf(entry.labels), ...labels }, counts] as const),
        ),
    })
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
