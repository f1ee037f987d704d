/**
 * The figures of a process, in Prometheus form: those of contract 11.4 under their names (prefix `sequin_`), our own
 * (`tailrace_`), and Node's. Counting is an addition to a plain number, once a batch; prom-client sees the numbers only
 * when someone scrapes. A source or sink registers once, gets its meter to count with, and gives a callback that says how
 * things stand at the moment of a scrape. Disposing of the meter takes its lines out of the answer.
 */
import type { Registry } from 'prom-client'
import type { Family, Labels, LatencySample, Sample } from './exposition.ts'
import { SinkMeter, SourceMeter } from './meters.ts'

type EntityStatus = 'ok' | 'warn' | 'error' | 'paused'
const ENTITY_STATUSES: readonly EntityStatus[] = ['ok', 'warn', 'error', 'paused']

type SinkLabels = Readonly<{ id: string; name: string }>
type SourceLabels = Readonly<{ slotId: string; slotName: string; databaseId: string; databaseName: string }>

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
type PartitionGauges = Readonly<{
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
type StreamGauges = Readonly<{
  topic: string
  keptBytes: number
  /** generations of sinks: a sink may have several */
  readers: readonly Readonly<SinkLabels & { backlogBytes: number; othersBytes: number; heldBytes: number }>[]
}>

type SinkEntry = { labels: SinkLabels; meter: SinkMeter; gauges: () => SinkGauges | undefined; now?: SinkGauges | undefined }
type SourceEntry = { labels: SourceLabels; meter: SourceMeter; gauges: () => SourceGauges | undefined; now?: SourceGauges | undefined }
type PartitionEntry = Readonly<{ gauges: PartitionGauges; node: string }>
type ReaderGauges = StreamGauges['readers'][number]
/** What is described together, under the same labels. */
export type Subject = 'source' | 'stream' | 'sink' | 'partition' | 'process'
/** One family of metrics about things of type T; `labels` are those it has beside the common ones of its table. */
type Row<T> = readonly [
  kind: 'gauge' | 'counter',
  name: string,
  value: (thing: T) => number | undefined,
  help: string,
  labels?: (thing: T) => Labels,
]
/** Things to measure, each with the labels of its lines. */
type Labelled<T> = readonly (readonly [labels: Labels, thing: T])[]

const consumerOf = ({ id, name }: SinkLabels): Labels => ({ consumer_id: id, consumer_name: name })
const slotOf = ({ slotId, slotName }: SourceLabels): Labels => ({ replication_slot_id: slotId, slot_name: slotName })
const databaseOf = ({ databaseId, databaseName }: SourceLabels): Labels => ({ database_id: databaseId, database_name: databaseName })
const perMb = (bytes: number | undefined): number | undefined => (bytes === undefined ? undefined : bytes / 1_048_576)
const percent = (part: number | undefined, whole: number | undefined): number | undefined =>
  part === undefined || !whole ? undefined : (100 * part) / whole

const asIs = (value: number): number => value

const VERSION: Row<number> = ['gauge', 'tailrace_build_info', asIs, 'Always 1; the label says the version']

// prettier-ignore
const SOURCE: readonly Row<SourceEntry>[] = [
  ['gauge', 'sequin_ingestion_latency_us', (s) => s.meter.latencyUs,
    "Microseconds from the oldest commit of the latest append, by the server's clock, to its being durable in the log"],
  ['counter', 'sequin_messages_ingested_count', (s) => s.meter.messages, 'Row changes received from the slot'],
  ['counter', 'sequin_bytes_ingested_total', (s) => s.meter.bytes, 'Their bytes, as Postgres sent them'],
  ['gauge', 'sequin_replication_slot_size', (s) => s.now?.slotSizeBytes,
    'Bytes of write-ahead log that Postgres keeps for the slot; asked every 10 s by the node that has the source', (s) => databaseOf(s.labels)],
  ['gauge', 'sequin_replication_slot_size_mb', (s) => perMb(s.now?.slotSizeBytes), 'The same in MB', (s) => databaseOf(s.labels)],
  ['gauge', 'sequin_ingestion_saturation_percent', (s) => s.now?.ingestionSaturationPercent,
    'Share of the last 10 s in which an append to the log was open. Near 100 the log, and with it what is behind it, takes no more'],
  ['gauge', 'sequin_processing_saturation_percent', (s) => s.now?.processingSaturationPercent,
    "Share of the last 10 s that decoding and packing took of this process's one thread. Near 100 the core is full"],
  ['gauge', 'tailrace_slot_confirmed_lag_bytes', (s) => s.now?.confirmedLagBytes,
    'Bytes from the confirmed position to the last one the server has told of'],
  ['gauge', 'tailrace_slot_restart_lag_bytes', (s) => s.now?.slotSizeBytes,
    "As sequin_replication_slot_size: from the slot's restart position to the server's end of the log"],
  ['gauge', 'tailrace_source_owner', (s) => (s.now?.isOwner === undefined ? undefined : Number(s.now.isOwner)),
    '1: this node streams the source, 0: it stands by'],
  ['gauge', 'tailrace_source_bytes_in_flight', (s) => s.now?.bytesInFlight, 'Bytes received and not yet durable in the log'],
]

const APPENDED: Row<number> = ['counter', 'tailrace_stream_appended_bytes_total', asIs, 'Bytes that this node has appended to the stream']

// prettier-ignore
const STREAM: readonly Row<StreamGauges>[] = [
  ['gauge', 'tailrace_stream_kept_bytes', (stream) => stream.keptBytes, 'Bytes of the stream in the log'],
  ['gauge', 'tailrace_stream_readers', ({ readers }) => new Set(readers.map(({ id }) => id)).size, 'Sinks that read it, or may be replayed from it'],
]

/** Adds up a figure over the generations of one sink, each of which reads the stream by itself. */
const sumOf = (readers: readonly ReaderGauges[], bytes: 'backlogBytes' | 'othersBytes' | 'heldBytes'): number =>
  readers.reduce((sum, reader) => sum + reader[bytes], 0)

// prettier-ignore
const READER: readonly Row<readonly ReaderGauges[]>[] = [
  ['gauge', 'tailrace_reader_backlog_bytes', (readers) => sumOf(readers, 'backlogBytes'),
    "The sink's backlog in this stream, parked messages included"],
  ['gauge', 'tailrace_reader_others_bytes', (readers) => sumOf(readers, 'othersBytes'),
    "Bytes of messages in this stream that are not the sink's own (its actions leave them out) and that it has not passed by yet; bounded by max_backlog_mb, as the backlog is"],
  ['gauge', 'tailrace_reader_held_bytes', (readers) => sumOf(readers, 'heldBytes'),
    'Bytes that stay in the log for this sink, which is the last one of its stream, although others need them no more: for its backlog or for its replay_window'],
]

// prettier-ignore
const SINK: readonly Row<SinkEntry>[] = [
  ['counter', 'sequin_message_deliver_attempt_count', (s) => s.meter.attempts,
    'Deliveries: messages handed to the destination, again included'],
  ['counter', 'sequin_message_deliver_success_count', (s) => s.meter.successes,
    'Messages that the destination took (pull: acknowledged, however late)'],
  ['counter', 'sequin_message_deliver_failure_count', (s) => s.meter.failures,
    'Deliveries that came to nothing (pull: the visibility time passed without an ack, a nack, or an answer that could not be written)'],
  ['counter', 'tailrace_messages_discarded_count', (s) => s.meter.discarded,
    'Messages given up, on record: max_retry_count reached, larger than MAX_MESSAGE_MB, or by hand'],
  ['counter', 'tailrace_messages_forgotten_count', (s) => s.meter.forgotten,
    'Messages that a sink held as under way although no request had them: sent again, and a defect to be reported'],
  ['counter', 'tailrace_messages_dropped_count', (s) => s.now?.dropped,
    'Messages not taken because the backlog was full (load_shedding_policy discard_on_full)'],
  ['counter', 'sequin_bytes_delivered_total', (s) => s.meter.bytesDelivered, 'Bytes handed to the destination'],
  ['gauge', 'sequin_messages_in_delivery', (s) => s.now?.inDelivery,
    'Messages with the destination: handed out, and neither acknowledged nor back'],
  ['gauge', 'sequin_messages_buffered', (s) => s.now?.buffered,
    'Messages read ahead from the log and not finished, parked ones included; what lies unread in the log is not counted'],
  ['gauge', 'sequin_messages_in_redelivery', (s) => s.now?.inRedelivery,
    'Messages that were delivered, came back, and wait for another delivery'],
  ['gauge', 'sequin_oldest_message_age_ms', (s) => s.now?.oldestMessageAgeMs,
    'Time since the commit of the oldest message that is not finished; 0: there is none'],
  ['gauge', 'sequin_buffer_memory_utilization_mb', (s) => perMb(s.now?.windowBytes),
    'MB between the lowest unfinished message and the read head'],
  ['gauge', 'sequin_buffer_memory_utilization_percent', (s) => percent(s.now?.windowBytes, s.now?.windowLimitBytes),
    'The same as a share of max_memory_mb'],
  ['gauge', 'sequin_delivery_saturation_percent', (s) => s.now?.deliverySaturationPercent,
    'Share of the last 10 s in which messages lay ready and waited for the destination (pull: for a client to ask, or for acks below max_ack_pending)'],
]

// prettier-ignore
const PARTITION: readonly Row<PartitionEntry>[] = [
  ['gauge', 'tailrace_partition_owner', () => 1, '1 for each partition that this node serves', ({ node }) => ({ node })],
  ['gauge', 'tailrace_partition_lag_records', ({ gauges }) => gauges.lagRecords, 'Records of the log from the lowest unfinished message on'],
  ['gauge', 'tailrace_partition_parked_messages', ({ gauges }) => gauges.parkedMessages, 'Messages that wait outside the log'],
  ['gauge', 'tailrace_partition_window_bytes', ({ gauges }) => gauges.windowBytes, 'Bytes from the lowest unfinished message to the read head'],
  ['gauge', 'tailrace_partition_log_bytes', ({ gauges }) => gauges.logBytes, 'Bytes of the partition in the log, what is kept to be replayed included'],
  ['gauge', 'tailrace_partition_kept_bytes', ({ gauges }) => gauges.keptBytes, 'Of these, bytes that are finished and kept for replay_window'],
  ['gauge', 'tailrace_partition_kept_messages', ({ gauges }) => gauges.keptMessages, 'About how many finished messages are kept'],
  ['counter', 'tailrace_partition_delivered_count', ({ gauges }) => gauges.delivered,
    'Messages of the partition handed out since this node took it over; its rate is that of the partition'],
]

type LatencyRow = readonly [
  name: string,
  labelNames: readonly string[],
  samples: (meter: SinkMeter) => readonly LatencySample[],
  help: string,
]
// prettier-ignore
const LATENCIES: readonly LatencyRow[] = [
  ['sequin_internal_latency_us', [], (meter) => [[{}, meter.internalLatency]],
    "Microseconds from the commit, by the server's clock, to handing out"],
  ['sequin_delivery_latency_us', ['success'], ({ deliveryLatency: { ok, error } }) => [[{ success: 'ok' }, ok], [{ success: 'error' }, error]],
    "Microseconds from handing out to the destination's answer (pull: ok to the ack, error to the nack or the end of the visibility time)"],
]

const HEALTH: Row<number> = ['gauge', 'sequin_entity_health', asIs, '1 for the status an entity has, 0 for the others']

const ERROR_ANSWERS: Row<number> = ['counter', 'tailrace_error_answers_count', asIs, 'Requests answered with an error, by its code']

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
    this.#add('process', [VERSION], () => [[{ version }, 1]])
    this.#add('source', SOURCE, () => [...this.#sources.values()].map((source) => [slotOf(source.labels), source]))
    this.#add('stream', [APPENDED], () => this.#appended())
    this.#add('stream', STREAM, () => this.#streams())
    this.#add('stream', READER, () => this.#readers())
    this.#add('sink', SINK, () => [...this.#sinks.values()].map((sink) => [consumerOf(sink.labels), sink]))
    this.#addLatencies()
    this.#add('partition', PARTITION, () => this.#partitions())
    this.#add('process', [HEALTH], () => this.#entityHealth())
    this.#add('process', [ERROR_ANSWERS], () => [...this.#errorAnswers].map(([code, count]) => [{ code }, count]))
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

  /** Describes one family for each row: a line for each thing, by its value at the scrape. */
  #add<T>(of: Subject, rows: readonly Row<T>[], things: () => Labelled<T>): void {
    for (const [kind, name, value, help, own] of rows) {
      const sample = ([labels, thing]: Labelled<T>[number]): Sample => [own ? { ...labels, ...own(thing) } : labels, value(thing)]
      this.#families.push({ of, kind, name, help, samples: () => things().map(sample) })
    }
  }

  #addLatencies(): void {
    for (const [name, labelNames, samples, help] of LATENCIES)
      this.#families.push({
        of: 'sink',
        kind: 'histogram',
        name,
        help,
        labelNames: ['consumer_id', 'consumer_name', ...labelNames],
        samples: () =>
          [...this.#sinks.values()].flatMap((sink) =>
            samples(sink.meter).map(([labels, counts]) => [{ ...consumerOf(sink.labels), ...labels }, counts] as const),
          ),
      })
  }

  #appended(): Labelled<number> {
    return [...this.#sources.values()].flatMap(({ labels, meter }) =>
      [...meter.appendedBytes].map(([stream, bytes]) => [{ stream, ...databaseOf(labels) }, bytes] as const),
    )
  }

  #streams(): Labelled<StreamGauges> {
    return [...this.#sources.values()].flatMap(({ labels, now }) =>
      (now?.streams ?? []).map((stream) => [{ stream: stream.topic, ...databaseOf(labels) }, stream] as const),
    )
  }

  #readers(): Labelled<readonly ReaderGauges[]> {
    return this.#streams().flatMap(([labels, stream]) =>
      [...Map.groupBy(stream.readers, ({ id }) => id).values()].map(
        (readers) => [{ ...labels, ...consumerOf(readers[0] as SinkLabels) }, readers] as const,
      ),
    )
  }

  #partitions(): Labelled<PartitionEntry> {
    return [...this.#sinks.values()].flatMap(({ labels, now }) =>
      (now?.partitions ?? []).map(
        (gauges) =>
          [
            { ...consumerOf(labels), partition: gauges.partition },
            { gauges, node: this.#node },
          ] as const,
      ),
    )
  }

  #entityHealth(): Labelled<number> {
    const samples: (readonly [Labels, number])[] = []
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
}

function askOrNothing<T>(ask: () => T | undefined): T | undefined {
  try {
    return ask()
  } catch {
    return undefined
  }
}
