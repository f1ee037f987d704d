/** The settings of a source, and the figures that it tells of itself while it runs. */
import type { Lsn } from '../lsn.ts'
import type { Append } from './append-loop.ts'
import type { RelationWarning } from './decode/relation.ts'

/** The settings of a source. */
export type SourceSettings = Readonly<{
  /** raw bytes of messages between the socket and the log; above it reading pauses */
  maxBytesInFlight: number
  /** raw size at which a pack closes */
  packBytes: number
  /** a larger message is discarded, on record */
  maxMessageBytes: number
  /** from the beginning of one append to that of the next, unless a pack is full */
  lingerMs: number
  appendTimeoutMs: number
  walSenderTimeoutMs: number
  confirmEveryMs: number
  /** while only unwanted writes move the log: by time, or by bytes */
  idleConfirmEveryMs: number
  idleConfirmBytes: number
  heartbeatMs: number
}>

/** The settings of a source that nobody has set otherwise. */
export const SOURCE_DEFAULTS: SourceSettings = {
  maxBytesInFlight: 4 * 1024 * 1024,
  packBytes: 256 * 1024,
  maxMessageBytes: 64 * 1024 * 1024,
  lingerMs: 6,
  appendTimeoutMs: 60_000,
  walSenderTimeoutMs: 10_000,
  confirmEveryMs: 200,
  idleConfirmEveryMs: 5000,
  idleConfirmBytes: 1024 * 1024,
  heartbeatMs: 15_000,
}

/** Figures for metrics; called once an append or a confirmation, never once a message. */
export interface SourceObserver {
  /** row changes read since the last call, and their size as Postgres sent them */
  ingested?(changes: number, bytes: number): void
  /** @param latencyUs from the oldest commit in it to durable in the log, by two machines' clocks */
  appended?(append: Append, latencyUs: number): void
  confirmed?(lsn: Lsn): void
  /** something worth a line in health or the log that doesn't stop the source */
  notice?(notice: string): void
  relationWarnings?(table: string, warnings: readonly RelationWarning[]): void
  /** the publication is another one of its name than before, or is gone: what was written meanwhile is missing */
  republished?(exists: boolean): void
  /** a table that these sinks take was emptied: there is no message for its rows */
  truncated?(table: string, sinkIds: readonly string[]): void
  /** a routing version has got its place, or has it: generations that it opens may be read */
  routed?(): void
  /** messages received of the former history from `fromLsn` on never happened for the server that now leads */
  phantoms?(fromLsn: Lsn, messages: number): void
}
