/**
 * The figures of a process, in Prometheus form: those of the Sequin API under their names (prefix `sequin_`), our own
 * (`tailrace_`), and Node's. Counting is an addition to a plain number, once a batch; prom-client sees the numbers only
 * when someone scrapes. A source or sink registers once, gets its meter to count with, and gives a callback that says how
 * things stand at the moment of a scrape. Disposing of the meter takes its lines out of the answer.
 */
import type { Registry } from 'prom-client'
import { MB } from './amounts.ts'
import type { Family, Labels, LatencySample, Sample } from './exposition.ts'
import { EngineError } from './errors.ts'
import { SinkMeter, SourceMeter } from './meters.ts'
import type { BackfillStatus, HealthStatus, PartitionStatus, SinkActorStatus, StreamStatus, SourceFigures, SlotState } from './status.ts'

type EntityStatus = 'ok' | 'warn' | 'error' | 'paused'
const BACKFILL_STATES: readonly BackfillStatus['state'][] = ['reading', 'queued', 'waiting', 'failing']
const ENTITY_STATUSES: readonly EntityStatus[] = ['ok', 'warn', 'error', 'paused']

type SinkLabels = Readonly<{ id: string; name: string }>
type SourceLabels = Readonly<{ slotId: string; slotName: string; databaseId: string; databaseName: string }>

/** Holds how a sink stands at a scrape. @property dropped messages that this process didn't take because the sink was full */
type SinkNow = Readonly<{ status: SinkActorStatus; health: HealthStatus; dropped: number; maxMemoryMb: number }>
/** Holds how a source stands at a scrape. @property streams of its database */
type SourceNow = Readonly<{
  /** of its machine; standby: another process has it, and says how it is */
  state: string
  figures: SourceFigures | undefined
  slot: Readonly<{ state: SlotState | undefined; error: unknown }>
  streams: readonly StreamStatus[]
  backfills: readonly BackfillStatus[]
}>

type SinkEntry = { labels: SinkLabels; meter: SinkMeter; ask: () => SinkNow | undefined; now?: SinkNow | undefined }
type SourceEntry = { labels: SourceLabels; meter: SourceMeter; ask: () => SourceNow | undefined; now?: SourceNow | undefined }
type PartitionEntry = Readonly<{ figures: PartitionStatus; node: string }>
type ReaderEntry = StreamStatus['readers'][number]
/** Holds all metrics as prom-client has them. */
export type Collected = Awaited<ReturnType<Registry['getMetricsAsJSON']>>
/** Names the tables of metrics; those of one table have the same labels. */
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

const asIs = (value: number): number => value

/** Adds up a figure of a sink over its partitions. */
const sumOf = ({ now }: SinkEntry, name: 'inFlight' | 'unfinished' | 'windowBytes'): number | undefined =>
  now?.status.partitions.reduce((sum, figures) => sum + (figures[name] ?? 0), 0)

/** Gives the figures of a source, where this process has the source. */
const ownOf = ({ now }: SourceEntry): SourceNow | undefined => (now?.state === 'standby' ? undefined : now)
const streamingOf = ({ now }: SourceEntry): SourceFigures | undefined => (now?.state === 'streaming' ? now.figures : undefined)
const lagOf = (figures: SourceFigures | undefined): number | undefined => figures && Number(figures.receivedLsn - figures.confirmedLsn)

const VERSION: Row<number> = ['gauge', 'tailrace_build_info', asIs, 'Always 1; the label says the version']

// prettier-ignore
const SOURCE: readonly Row<SourceEntry>[] = [
  ['gauge', 'sequin_ingestion_latency_us', (s) => s.meter.latencyUs,
    "Microseconds from the oldest commit of the latest append, by the server's clock, to its being durable in the log"],
  ['counter', 'sequin_messages_ingested_count', (s) => s.meter.messages, 'Row changes received from the slot'],
  ['counter', 'sequin_bytes_ingested_total', (s) => s.meter.bytes, 'Their bytes, as Postgres sent them'],
  ['gauge', 'sequin_replication_slot_size', (s) => s.now?.slot.state?.retainedBytes,
    'Bytes of write-ahead log that Postgres keeps for the slot; asked every 10 s by the node that has the source', (s) => databaseOf(s.labels)],
  ['gauge', 'sequin_replication_slot_size_mb', (s) => s.now?.slot.state && s.now.slot.state.retainedBytes / MB, 'The same in MB', (s) => databaseOf(s.labels)],
  ['gauge', 'sequin_ingestion_saturation_percent', (s) => streamingOf(s)?.appendingPercent,
    'Share of the last 10 s in which an append to the log was open. Near 100 the log, and with it what is behind it, takes no more'],
  ['gauge', 'sequin_processing_saturation_percent', (s) => streamingOf(s)?.decodingPercent,
    "Share of the last 10 s that decoding and packing took of this process's one thread. Near 100 the core is full"],
  ['gauge', 'tailrace_slot_confirmed_lag_bytes', (s) => s.now?.slot.state?.confirmedBytes ?? lagOf(ownOf(s)?.figures),
    "Bytes from the slot's confirmed position to the server's end of the log; asked every 10 s by the node that has the source"],
  ['gauge', 'tailrace_slot_restart_lag_bytes', (s) => s.now?.slot.state?.retainedBytes,
    "As sequin_replication_slot_size: from the slot's restart position to the server's end of the log"],
  ['gauge', 'tailrace_slot_safe_wal_bytes', (s) => s.now?.slot.state?.safeWalBytes ?? undefined,
    'Bytes that the server may still write before the slot is lost; absent where max_slot_wal_keep_size sets no bound'],
  ['gauge', 'tailrace_slot_seconds_until_lost', (s) => s.now?.slot.state?.secondsUntilLost ?? undefined,
    'When they are written, at the rate of the last five minutes; absent while they do not become less'],
  ['gauge', 'tailrace_slot_oldest_transaction_seconds', (s) => s.now?.slot.state?.oldest?.seconds ?? undefined,
    'Age of the oldest open transaction of the server, which keeps the slot from moving on; absent where there is none, or its age is not shown to the user'],
  ['counter', 'tailrace_slot_spilled_transactions_count', (s) => s.now?.slot.state?.spilled.transactions,
    'Transactions that decoding wrote to the disk of the server, since they were larger than logical_decoding_work_mem'],
  ['counter', 'tailrace_slot_spilled_bytes_total', (s) => s.now?.slot.state?.spilled.bytes, 'Their bytes, again included'],
  ['gauge', 'tailrace_source_owner', (s) => s.now && Number(s.now.state === 'streaming'),
    '1: this node streams the source, 0: it stands by'],
  ['counter', 'tailrace_backfill_rows_read_count', (s) => s.meter.rowsRead, 'Rows that backfills have read from the source, again included'],
  ['counter', 'tailrace_backfill_rows_added_count', (s) => s.meter.rowsAdded,
    'Rows that backfills have added to streams, durable in the log; the others were left out, because a newer change of the row had come'],
  ['counter', 'tailrace_backfill_pages_count', (s) => s.meter.pages, 'Pages of backfills that are durable: a backfill goes on behind the last one'],
  ['gauge', 'tailrace_source_bytes_in_flight', (s) => ownOf(s)?.figures?.bytesInFlight, 'Bytes received and not yet durable in the log'],
]

/** The number of backfills of a source in each state. */
const BACKFILLS: Row<number> = [
  'gauge',
  'tailrace_backfills',
  asIs,
  'Active backfills of the source that this node streams, by what they are at: reading, queued behind others, waiting (for the sink, or to spare the source), failing (tried again)',
]

const APPENDED: Row<number> = ['counter', 'tailrace_stream_appended_bytes_total', asIs, 'Bytes that this node has appended to the stream']

// prettier-ignore
const STREAM: readonly Row<StreamStatus>[] = [
  ['gauge', 'tailrace_stream_kept_bytes', (stream) => stream.bytes, 'Bytes of the stream in the log'],
  ['gauge', 'tailrace_stream_readers', ({ readers }) => new Set(readers.map(({ sinkId }) => sinkId)).size, 'Sinks that read it, or may be replayed from it'],
]

/** Adds up a figure over the generations of one sink, each of which reads the stream by itself. */
const bytesOf = (readers: readonly ReaderEntry[], bytes: 'backlogBytes' | 'othersBytes' | 'heldBytes'): number =>
  readers.reduce((sum, reader) => sum + reader[bytes], 0)

// prettier-ignore
const READER: readonly Row<readonly ReaderEntry[]>[] = [
  ['gauge', 'tailrace_reader_backlog_bytes', (readers) => bytesOf(readers, 'backlogBytes'),
    "The sink's backlog in this stream, parked messages included"],
  ['gauge', 'tailrace_reader_others_bytes', (readers) => bytesOf(readers, 'othersBytes'),
    "Bytes of messages in this stream that are not the sink's own (its actions leave them out) and that it has not passed by yet; bounded by max_backlog_mb, as the backlog is"],
  ['gauge', 'tailrace_reader_held_bytes', (readers) => bytesOf(readers, 'heldBytes'),
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
  ['gauge', 'sequin_messages_in_delivery', (s) => sumOf(s, 'inFlight'),
    'Messages with the destination: handed out, and neither acknowledged nor back'],
  ['gauge', 'sequin_messages_buffered', (s) => sumOf(s, 'unfinished'),
    'Messages read ahead from the log and not finished, parked ones included; what lies unread in the log is not counted'],
  ['gauge', 'sequin_messages_in_redelivery', (s) => s.now && Math.max(0, s.now.status.details.ackPending - (sumOf(s, 'inFlight') ?? 0)),
    'Messages that were delivered, came back, and wait for another delivery'],
  ['gauge', 'sequin_oldest_message_age_ms', (s) => s.now && Math.max(0, ...s.now.status.partitions.map(({ oldestMs = 0 }) => oldestMs)),
    'Time since the commit of the oldest message that is not finished; 0: there is none'],
  ['gauge', 'sequin_buffer_memory_utilization_mb', (s) => s.now && (sumOf(s, 'windowBytes') ?? 0) / MB,
    'MB between the lowest unfinished message and the read head'],
  ['gauge', 'sequin_buffer_memory_utilization_percent', (s) => s.now && (100 * (sumOf(s, 'windowBytes') ?? 0)) / (s.now.maxMemoryMb * MB),
    'The same as a share of max_memory_mb'],
  ['gauge', 'sequin_delivery_saturation_percent', (s) => s.now?.status.details.readyPercent,
    'Share of the last 10 s in which messages lay ready and waited for the destination (pull: for a client to ask, or for acks below max_ack_pending)'],
]

// prettier-ignore
const PARTITION: readonly Row<PartitionEntry>[] = [
  ['gauge', 'tailrace_partition_owner', () => 1, '1 for each partition that this node serves', ({ node }) => ({ node })],
  ['gauge', 'tailrace_partition_lag_records', ({ figures }) => figures.lag ?? 0, 'Records of the log from the lowest unfinished message on'],
  ['gauge', 'tailrace_partition_parked_messages', ({ figures }) => figures.parked ?? 0, 'Messages that wait outside the log'],
  ['gauge', 'tailrace_partition_window_bytes', ({ figures }) => figures.windowBytes ?? 0, 'Bytes from the lowest unfinished message to the read head'],
  ['gauge', 'tailrace_partition_log_bytes', ({ figures }) => figures.logBytes ?? 0, 'Bytes of the partition in the log, what is kept to be replayed included'],
  ['gauge', 'tailrace_partition_kept_bytes', ({ figures }) => figures.keptBytes ?? 0, 'Of these, bytes that are finished and kept for replay_window'],
  ['gauge', 'tailrace_partition_kept_messages', ({ figures }) => figures.keptMessages ?? 0, 'About how many finished messages are kept'],
  ['counter', 'tailrace_partition_delivered_count', ({ figures }) => figures.delivered ?? 0,
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

/** All figures of a process; sources and sinks register here to be counted and asked. */
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
    this.#add('source', [BACKFILLS], () => this.#backfills())
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

  /** A sink of the same id that is still registered is replaced. @param ask called at each scrape; undefined: not known now */
  sink(labels: SinkLabels, ask: () => SinkNow | undefined): SinkMeter {
    const entry: SinkEntry = {
      labels,
      ask,
      meter: new SinkMeter(() => this.#sinks.get(labels.id) === entry && this.#sinks.delete(labels.id)),
    }
    this.#sinks.set(labels.id, entry)
    return entry.meter
  }

  source(labels: SourceLabels, ask: () => SourceNow | undefined): SourceMeter {
    const entry: SourceEntry = {
      labels,
      ask,
      meter: new SourceMeter(() => this.#sources.get(labels.slotId) === entry && this.#sources.delete(labels.slotId)),
    }
    this.#sources.set(labels.slotId, entry)
    return entry.meter
  }

  errorAnswered(code: string): void {
    this.#errorAnswers.set(code, (this.#errorAnswers.get(code) ?? 0) + 1)
  }

  /** @returns the whole answer to a scrape; a callback that throws leaves out its own lines only */
  async text(): Promise<string> {
    return (await this.#asked()).metrics()
  }

  /** @returns the same as data, family by family */
  async collected(): Promise<Collected> {
    return (await this.#asked()).getMetricsAsJSON()
  }

  async #asked(): Promise<Registry> {
    const registry = await this.#exposed()
    for (const entry of this.#sinks.values()) entry.now = askOrNothing(entry.ask)
    for (const entry of this.#sources.values()) entry.now = askOrNothing(entry.ask)
    return registry
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

  #backfills(): Labelled<number> {
    return [...this.#sources.values()].flatMap((source) =>
      BACKFILL_STATES.map((state) => {
        const count = ownOf(source)?.backfills.filter((backfill) => backfill.state === state).length ?? 0
        return [{ ...slotOf(source.labels), status: state }, count] as const
      }),
    )
  }

  #streams(): Labelled<StreamStatus> {
    return [...this.#sources.values()].flatMap((source) =>
      (ownOf(source)?.streams ?? []).map((stream) => [{ stream: stream.topic, ...databaseOf(source.labels) }, stream] as const),
    )
  }

  #readers(): Labelled<readonly ReaderEntry[]> {
    return this.#streams().flatMap(([labels, stream]) =>
      [...Map.groupBy(stream.readers, ({ sinkId }) => sinkId)].map(
        ([id, readers]) => [{ ...labels, ...consumerOf({ id, name: readers[0]?.sink ?? '' }) }, readers] as const,
      ),
    )
  }

  #partitions(): Labelled<PartitionEntry> {
    return [...this.#sinks.values()].flatMap(({ labels, now }) =>
      (now?.status.partitions ?? []).map(
        (figures) =>
          [
            { ...consumerOf(labels), partition: figures.partition },
            { figures, node: this.#node },
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
    for (const { labels, now } of this.#sinks.values()) add('sink', labels.id, labels.name, now && STATUS_OF[now.health])
    for (const source of this.#sources.values()) {
      const { databaseId, databaseName, slotId, slotName } = source.labels
      const now = ownOf(source)
      add('database', databaseId, databaseName, now && databaseStatus(now))
      add('replication_slot', slotId, slotName, now && (now.state === 'failed' ? 'error' : now.state === 'waiting' ? 'warn' : 'ok'))
    }
    return samples
  }
}

const STATUS_OF: Readonly<Record<HealthStatus, EntityStatus>> = {
  healthy: 'ok',
  initializing: 'ok',
  warning: 'warn',
  error: 'error',
  paused: 'paused',
}

/** A database without the slot answers as well. @returns undefined: it was not asked yet */
function databaseStatus({ slot: { state, error } }: SourceNow): EntityStatus | undefined {
  if (state) return 'ok'
  if (!error) return undefined
  return error instanceof EngineError && error.code === 'SLOT_MISSING' ? 'ok' : 'error'
}

function askOrNothing<T>(ask: () => T | undefined): T | undefined {
  try {
    return ask()
  } catch {
    return undefined
  }
}
