/**
 * The meters that a source or a sink counts with: plain numbers, added to once a batch. Disposing of a meter takes its lines out of
 * the metrics.
 */
import { LatencyCounts } from './latency.ts'

/** Counts of one sink. Call each once a batch. */
export class SinkMeter implements Disposable {
  readonly internalLatency = new LatencyCounts()
  readonly deliveryLatency = { ok: new LatencyCounts(), error: new LatencyCounts() }
  attempts = 0
  successes = 0
  failures = 0
  bytesDelivered = 0
  discarded = 0
  forgotten = 0
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

  /** Counts messages that were given up, on record. */
  gaveUp(messages: number): void {
    this.discarded += messages
  }

  /** Counts messages that were held as under way although no request had them. */
  forgot(messages: number): void {
    this.forgotten += messages
  }

  /** @param latencyUs from the arrival in this process to the moment of handing out */
  waited(messages: number, latencyUs: number): void {
    this.internalLatency.add(latencyUs, messages)
  }

  [Symbol.dispose](): void {
    this.#forget()
  }
}

/** Bytes are counted of at most so many streams, for streams come and go. */
const MAX_TOPICS = 10_000

/** Counts of one source. */
export class SourceMeter implements Disposable {
  messages = 0
  bytes = 0
  latencyUs: number | undefined
  /** by topic; of those that were appended to last */
  readonly appendedBytes = new Map<string, number>()
  /** of backfills */
  rowsRead = 0
  rowsAdded = 0
  pages = 0
  readonly #forget: () => void
  constructor(forget: () => void) {
    this.#forget = forget
  }

  /** Rows were read by a backfill, or added to a stream and durable. */
  backfilled({ read = 0, added = 0, pages = 0 }: Readonly<{ read?: number; added?: number; pages?: number }>): void {
    this.rowsRead += read
    this.rowsAdded += added
    this.pages += pages
  }

  ingested(messages: number, bytes: number): void {
    this.messages += messages
    this.bytes += bytes
  }

  /** @param latencyUs from the oldest commit on the server (its clock) to their being durable here */
  appended(records: readonly Readonly<{ topic: string; pack: Buffer }>[], latencyUs: number): void {
    this.latencyUs = latencyUs
    for (const { topic, pack } of records) {
      const bytes = this.appendedBytes.get(topic) ?? 0
      this.appendedBytes.delete(topic)
      this.appendedBytes.set(topic, bytes + pack.length)
    }
    for (const topic of this.appendedBytes.keys()) {
      if (this.appendedBytes.size <= MAX_TOPICS) break
      this.appendedBytes.delete(topic)
    }
  }

  [Symbol.dispose](): void {
    this.#forget()
  }
}
