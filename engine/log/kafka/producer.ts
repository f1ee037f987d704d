/**
 * Appends of one run of a source. One append is open at a time; it is sent again, as it is, until the brokers have it in
 * all in-sync replicas or the deadline passes: each partition's records carry sequence numbers, so the brokers take a
 * repeated batch once. After a failure nothing is sent any more; the next run has a producer id of its own
 * (docs/rules.md, rule 4).
 *
 * The records of one partition are written in their order, and a batch of them whole or not at all. Over several partitions
 * an append that failed may be there in some: the next run appends the same again, and readers know it by its positions.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError, isRetryable, errorText } from '../../errors.ts'
import type { AppendRecord, TopicName } from '../log.ts'
import { compressPack, Pack } from '../pack.ts'
import { splitPack } from '../pack-parts.ts'
import { NO_WEIGHT, plus, readShares, weightOf, type Weight } from '../weight.ts'
import { Brokers } from './brokers.ts'
import type { KafkaConnection } from './connection.ts'
import type { ProducedMessage } from './kafkajs.ts'
import { patiently } from './patience.ts'
import { countedOf, counters, type Sizes } from './sizes.ts'
import type { Topics } from './topics.ts'
import { backOff } from '../../back-off.ts'

/** What a request carries at most over all partitions: brokers take 100 MB. */
const MAX_REQUEST_BYTES = 16 * 1024 * 1024
/** What a record and its batch cost beside the pack. */
const RECORD_OVERHEAD_BYTES = 256
const PAUSE = { firstMs: 20, maxMs: 1_000 }
const NO_TRANSACTION_MS = 60_000
const MAX_SEQUENCE = 0x7fff_ffff
const ALL_REPLICAS = -1

/** @property total what was counted into the partition so far */
type Sequence = { next: number; total: Weight }
type Of = Readonly<{
  connection: KafkaConnection
  topics: Topics
  sizes: Sizes
  /** the counters of the last record of a partition */
  lastTotal: (topic: TopicName, partition: number) => Promise<Weight>
  /** limit of one append */
  timeoutMs: number
  /** a partition has everything below `next` */
  ends: (topic: TopicName, partition: number, next: number) => void
}>
type Batch = {
  readonly topic: TopicName
  readonly partition: number
  readonly sequence: Sequence
  readonly messages: ProducedMessage[]
  bytes: number
  total: Weight
}

/** Appends for one run of a source. */
export class Producer {
  readonly #brokers: Brokers
  readonly #of: Of
  readonly #topics: Topics
  readonly #id: string
  readonly #epoch: number
  readonly #sequences = new Map<string, Sequence>()
  #closed = false

  private constructor(of: Of, brokers: Brokers, id: string, epoch: number) {
    this.#of = of
    this.#brokers = brokers
    this.#topics = of.topics
    this.#id = id
    this.#epoch = epoch
  }

  /** @throws EngineError LOG_UNREACHABLE, LOG_REFUSED */
  static async begin(of: Of): Promise<Producer> {
    const brokers = new Brokers(of.connection)
    try {
      const { producerId, producerEpoch } = await patiently(() =>
        brokers.any((broker) => broker.initProducerId({ transactionTimeout: NO_TRANSACTION_MS })),
      )
      return new Producer(of, brokers, producerId, producerEpoch)
    } catch (error) {
      brokers.close()
      throw error
    }
  }

  /** Settles when every record is durable. @throws EngineError LOG_APPEND_TIMEOUT, LOG_RECORD_TOO_LARGE, LOG_REFUSED, LOG_TOPIC_UNKNOWN */
  async append(records: readonly AppendRecord[]): Promise<void> {
    const until = performance.now() + this.#of.timeoutMs
    for (const round of await this.#rounds(records)) await this.#send(round, until)
  }

  /** Sends records of another topic as they stand there, in batches that follow one another. @throws EngineError as `append` */
  async copy(topic: TopicName, partition: number, messages: readonly ProducedMessage[]): Promise<void> {
    const limit = await this.#topics.recordLimit(topic)
    const sequence = this.#sequence(`${topic}/${partition}`, NO_WEIGHT)
    let batch: Batch | undefined
    for (const message of messages) {
      const bytes = message.value.length + RECORD_OVERHEAD_BYTES
      if (batch && batch.bytes + bytes > limit) {
        await this.#send([batch], performance.now() + this.#of.timeoutMs)
        batch = undefined
      }
      const { weight, total } = countedOf(message.value, message.headers ?? {})
      batch ??= { topic, partition, sequence, messages: [], bytes: 0, total: NO_WEIGHT }
      sequence.total = batch.total = total ?? plus(sequence.total, weight)
      batch.messages.push({ ...message, headers: counters(batch.total) })
      batch.bytes += bytes
    }
    if (batch) await this.#send([batch], performance.now() + this.#of.timeoutMs)
  }

  /** Nothing is sent any more; what is open fails. */
  close(): void {
    this.#closed = true
    this.#brokers.close()
  }

  /** Batches that may be sent together: one for each partition, each no larger than its topic takes. */
  async #rounds(records: readonly AppendRecord[]): Promise<Batch[][]> {
    const rounds: { batches: Map<string, Batch>; bytes: number }[] = []
    const reached = new Map<string, number>()
    for (const { topic, partition, pack } of records) {
      const key = `${topic}/${partition}`
      const limit = await this.#topics.recordLimit(topic)
      const whole = compressPack(pack)
      const room = limit - RECORD_OVERHEAD_BYTES
      for (const value of whole.length > room ? splitPack(whole, room) : [whole]) {
        const bytes = value.length + RECORD_OVERHEAD_BYTES
        let at = reached.get(key) ?? 0
        const fits = () => {
          const round = rounds[at]
          const batch = round?.batches.get(key)
          return !round || (round.bytes + bytes <= MAX_REQUEST_BYTES && (batch?.bytes ?? 0) + bytes <= limit)
        }
        while (!fits()) at++
        reached.set(key, at)
        const round = (rounds[at] ??= { batches: new Map(), bytes: 0 })
        const sequence = this.#sequences.get(key) ?? this.#sequence(key, await this.#of.lastTotal(topic, partition))
        const batch = round.batches.get(key) ?? { topic, partition, sequence, messages: [], bytes: 0, total: NO_WEIGHT }
        round.batches.set(key, batch)
        batch.total = sequence.total = plus(sequence.total, weightOf(value.length, readShares(value)))
        batch.messages.push({ key: null, value, timestamp: timestampOf(pack), headers: counters(batch.total) })
        batch.bytes += bytes
        round.bytes += bytes
      }
    }
    return rounds.map(({ batches }) => [...batches.values()])
  }

  async #send(round: Batch[], until: number): Promise<void> {
    let left = round
    const sent = new Set<Batch>()
    for (let attempt = 1; ; attempt++) {
      const pauseMs = backOff(PAUSE, attempt)
      const ends = await Promise.allSettled(
        (await this.#byLeader(left)).map(({ node, batches }) => this.#produce(node, batches, until, sent)),
      )
      const failures = ends.flatMap((end): unknown[] => (end.status === 'rejected' ? [end.reason] : []))
      if (failures.length === 0) return
      left = left.filter((batch) => !sent.has(batch))
      const tooLarge = failures.find(isTooLarge)
      if (tooLarge !== undefined) this.#cutSmaller(left)
      const fatal = tooLarge ?? failures.find((error) => !isRetryable(error))
      if (fatal !== undefined) throw fatal
      for (const { topic } of left) this.#brokers.forget(this.#topics.nameOf(topic))
      if (this.#closed || performance.now() + pauseMs > until) throw this.#overdue(left, failures)
      await delay(pauseMs)
    }
  }

  /** The time is over. A topic that brokers have not known for so long was deleted, and is not only on its way to them. */
  #overdue(left: readonly Batch[], failures: readonly unknown[]): EngineError {
    const { timeoutMs } = this.#of
    const unknown = failures.find((error) => error instanceof EngineError && error.code === 'LOG_TOPIC_UNKNOWN')
    if (unknown === undefined) return timedOut(timeoutMs, failures[0])
    const names = [...new Set(left.map(({ topic }) => this.#topics.nameOf(topic)))].join(', ')
    const text = `the Kafka brokers have not known a topic for ${timeoutMs} ms, one of ${names}: was it deleted?`
    return new EngineError('LOG_TOPIC_UNKNOWN', text, { topics: names }, { cause: unknown })
  }

  /** A broker takes less than its configuration says, or than we may see of it: the next run makes smaller parts. */
  #cutSmaller(batches: readonly Batch[]): void {
    const largest = batches.reduce((a, b) => (b.bytes > a.bytes ? b : a))
    this.#topics.lowerLimit(largest.topic, Math.floor(largest.bytes / 2))
  }

  /** Batches by the broker they go to; those whose leader isn't known at the moment stand alone, and fail. */
  async #byLeader(batches: readonly Batch[]): Promise<{ node: number | Error; batches: Batch[] }[]> {
    const groups: { node: number | Error; batches: Batch[] }[] = []
    for (const batch of batches) {
      const node = await this.#brokers.leaderOf(this.#topics.nameOf(batch.topic), batch.partition).catch((error: Error) => error)
      const group = typeof node === 'number' ? groups.find((g) => g.node === node) : undefined
      if (group) group.batches.push(batch)
      else groups.push({ node, batches: [batch] })
    }
    return groups
  }

  async #produce(node: number | Error, batches: readonly Batch[], until: number, sent: Set<Batch>): Promise<void> {
    if (typeof node !== 'number') throw node
    const timeout = Math.ceil(until - performance.now())
    if (this.#closed || timeout <= 0) throw new EngineError('LOG_UNREACHABLE', 'the time limit of this append to Kafka has passed')
    const topics = new Map<string, { partition: number; firstSequence: number; messages: readonly ProducedMessage[] }[]>()
    for (const batch of batches) {
      const name = this.#topics.nameOf(batch.topic)
      const partitions = topics.get(name) ?? []
      topics.set(name, partitions)
      partitions.push({ partition: batch.partition, firstSequence: batch.sequence.next, messages: batch.messages })
    }
    const answer = await this.#brokers.node(node, (broker) =>
      broker.produce({
        acks: ALL_REPLICAS,
        timeout,
        producerId: this.#id,
        producerEpoch: this.#epoch,
        topicData: [...topics].map(([topic, partitions]) => ({ topic, partitions })),
      }),
    )
    for (const batch of batches) {
      const { sequence } = batch
      const last = sequence.next + batch.messages.length
      sequence.next = last > MAX_SEQUENCE ? last - MAX_SEQUENCE - 1 : last
      sent.add(batch)
      const found = answer.topics.find(({ topicName }) => topicName === this.#topics.nameOf(batch.topic))
      const base = found?.partitions.find(({ partition }) => partition === batch.partition)?.baseOffset
      if (base === undefined) continue
      const next = Number(base) + batch.messages.length
      this.#of.sizes.appended(batch.topic, batch.partition, next, batch.total)
      this.#of.ends(batch.topic, batch.partition, next)
    }
  }

  /** @param lastTotal what was counted into the partition before this run */
  #sequence(key: string, lastTotal: Weight): Sequence {
    const sequence = this.#sequences.get(key) ?? { next: 0, total: lastTotal }
    this.#sequences.set(key, sequence)
    return sequence
  }
}

/**
 * Gives the time of the latest commit in a pack, so that the brokers find a place in the log by time. It is never 0, which would
 * mean: now.
 */
export const timestampOf = (pack: Buffer): number => Math.max(1, Math.min(Math.floor(Pack.header(pack).maxCommitTimeUs / 1000), Date.now()))

const isTooLarge = (error: unknown): boolean => error instanceof EngineError && error.code === 'LOG_RECORD_TOO_LARGE'

const timedOut = (limitMs: number, cause: unknown) =>
  new EngineError('LOG_APPEND_TIMEOUT', `Kafka did not finish an append within ${limitMs} ms: ${errorText(cause)}`, {}, { cause })
