/**
 * Gathers messages into packs, one open pack for each partition, between two appends. A pack closes when it is full,
 * when history or routing changes (both stand in its header), or when an append takes everything there is.
 */
import type { AppendRecord, Reached, TopicName } from '../log/log.ts'
import { encodeMarker, PackBuilder } from '../log/pack-builder.ts'
import type { Position } from '../position.ts'
import type { Append } from './append-loop.ts'

/** The header fields that all packs of a stretch of the stream share. */
type PackHead = Readonly<{ history: number; term: number; routing: number }>
/** Describes a transaction, in one object for all of its messages: packs recognise it by identity. */
export type PackTransaction = Readonly<{ lsn: bigint; xid: number; commitTimeUs: number }>

/** Builders keep their memory between packs; with more partitions than this they are made anew instead. */
const MAX_IDLE_BUILDERS = 64

/** The open pack of a partition. */
type OpenPack = {
  readonly topic: TopicName
  readonly partition: number
  readonly builder: PackBuilder
  transaction: PackTransaction | undefined
  bytes: number
}

/** Holds what a run has decoded until it is appended. */
export class Packing {
  readonly #source: string
  readonly #packBytes: number
  #head: PackHead
  readonly #partitions = new Map<TopicName, (OpenPack | undefined)[]>()
  #partitionCount = 0
  /** the packs with messages in them, in the order of their first one */
  #filled: OpenPack[] = []
  #sealed: AppendRecord[] = []
  #bytes = 0
  #messages = 0
  #oldestCommitUs = 0
  #readAtMs = 0

  constructor(options: Readonly<{ source: string; packBytes: number; head: PackHead }>) {
    this.#source = options.source
    this.#packBytes = options.packBytes
    this.#head = options.head
  }

  /** Nothing waits to be appended. */
  get isEmpty(): boolean {
    return this.#messages === 0 && this.#sealed.length === 0
  }

  /** Raw bytes gathered and not yet taken. */
  get bytes(): number {
    return this.#bytes
  }

  /** There is a closed pack: no reason to linger. */
  get isFull(): boolean {
    return this.#sealed.length > 0
  }

  /** Gives the packs that follow another head: what was gathered before closes under its own. */
  setHead(history: number, routing: number): void {
    if (history === this.#head.history && routing === this.#head.routing) return
    this.#sealAll()
    this.#forget()
    this.#head = { ...this.#head, history, routing }
  }

  /** The pack of a partition, ready for the next message of a transaction: render into its `bodies`, `add`, then call `added`. */
  pack(topic: TopicName, partition: number, transaction: PackTransaction): OpenPack {
    let partitions = this.#partitions.get(topic)
    if (!partitions) this.#partitions.set(topic, (partitions = []))
    let entry = partitions[partition]
    if (!entry) {
      const builder = new PackBuilder(this.#head)
      entry = partitions[partition] = { topic, partition, builder, transaction: undefined, bytes: 0 }
      this.#partitionCount++
    }
    if (entry.transaction !== transaction) {
      entry.transaction = transaction
      entry.builder.begin(transaction.lsn, transaction.xid, transaction.commitTimeUs)
    }
    return entry
  }

  /** A message was added to the pack. */
  added(entry: OpenPack, commitTimeUs: number): void {
    if (this.#messages++ === 0) {
      this.#oldestCommitUs = commitTimeUs
      this.#readAtMs = Date.now()
    }
    const { bytes } = entry.builder
    if (entry.bytes === 0) this.#filled.push(entry)
    this.#bytes += bytes - entry.bytes
    entry.bytes = bytes
    if (bytes < this.#packBytes) return
    this.#seal(entry)
    this.#filled = this.#filled.filter((other) => other !== entry)
  }

  /** Adds a marker: an empty record at a position, behind everything gathered for the partition before. */
  addMarker(topic: TopicName, partition: number, position: Position, commitTimeUs: number): void {
    const entry = this.#partitions.get(topic)?.[partition]
    if (entry && entry.bytes > 0) {
      this.#seal(entry)
      this.#filled = this.#filled.filter((other) => other !== entry)
    }
    const pack = encodeMarker(this.#head, position, commitTimeUs)
    this.#sealed.push({ topic, partition, pack })
    this.#bytes += pack.length
  }

  /** Everything gathered, as one append that brings the source to what is reached with it. Only between two changes. */
  take(reached: Reached): Append | undefined {
    if (this.isEmpty) return undefined
    this.#sealAll()
    const append = {
      records: this.#sealed,
      progress: { source: this.#source, ...reached },
      messages: this.#messages,
      bytes: this.#bytes,
      oldestCommitUs: this.#oldestCommitUs,
      readAtMs: this.#readAtMs,
    }
    this.#sealed = []
    this.#bytes = 0
    this.#messages = 0
    this.#oldestCommitUs = 0
    if (this.#partitionCount > MAX_IDLE_BUILDERS) this.#forget()
    return append
  }

  #sealAll(): void {
    for (const entry of this.#filled) this.#seal(entry)
    this.#filled = []
  }

  #seal(entry: OpenPack): void {
    this.#sealed.push({ topic: entry.topic, partition: entry.partition, pack: entry.builder.encode() })
    entry.bytes = 0 // the gathered total keeps counting them until they are taken
    entry.transaction = undefined
  }

  #forget(): void {
    this.#partitions.clear()
    this.#partitionCount = 0
  }
}
