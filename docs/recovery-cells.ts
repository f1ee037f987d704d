/**
 * What happens when one of the memories (the log, the state database, the source) is lost, swapped for another, set back to an
 * older copy, read-only or in recovery. test/faults/recovery.*.test.ts makes each of these happen to the service and follows the
 * remedy; docs/recovery.md is made of the same table. Nothing here does I/O.
 */
import type { ErrorCode } from '../engine/errors.ts'

export const MEMORIES = {
  log: 'The log',
  state: 'The state database',
  folder: 'The data folder with both',
  source: 'The source',
} as const
export const FAULTS = ['older copy', 'lost', 'swapped', 'read-only', 'in recovery'] as const

/** What may be missing at the most after the remedy, before rows are touched. */
export const LOST = {
  nothing: 'nothing',
  undelivered: 'what the log held undelivered',
  open: 'what was not delivered yet, in the log or parked',
  sinceCopy: 'what was written since the copy and was not delivered yet',
  parkedSinceCopy: 'what was parked since the copy',
  withoutSlot: 'what was written while there was no slot',
} as const
export type Lost = keyof typeof LOST

/** Which messages come once more although their acknowledgement was answered. */
export const AGAIN = {
  none: 'none',
  sinceCopy: 'those acknowledged since the copy',
} as const
export type Again = keyof typeof AGAIN

export type Cell = Readonly<{
  memory: keyof typeof MEMORIES
  fault: (typeof FAULTS)[number]
  /** where the log is */
  log: 'folder' | 'kafka'
  /** what is done to it */
  how: string
  /** what Tailrace says; absent: it goes on by itself */
  code?: ErrorCode
  /** what it says in its log although it goes on */
  notice?: string
  /** what mends it; absent: it goes on by itself as soon as the fault is over */
  remedy?: string
  lost: Lost
  again: Again
  /** why it ends so */
  why: string
}>

const ACCEPT = '`npx tailrace source accept-gap NAME`, then touch the rows'

export const CELLS = {
  'log lost': {
    memory: 'log',
    fault: 'lost',
    log: 'folder',
    how: 'The data folder is empty at the start, the state database is elsewhere.',
    code: 'LOG_CHANGED',
    remedy: ACCEPT,
    lost: 'undelivered',
    again: 'none',
    why: 'The state database keeps the identity of the log it belongs to. What was parked lies in the state database and is still delivered.',
  },
  'log older': {
    memory: 'log',
    fault: 'older copy',
    log: 'folder',
    how: 'The data folder is put back from a copy, the state database is elsewhere and has gone on.',
    code: 'LOG_WENT_BACK',
    remedy: ACCEPT,
    lost: 'sinceCopy',
    again: 'sinceCopy',
    why: 'With each confirmed position the state database keeps how far the log had come: a log that ends below is an older copy.',
  },
  'log swapped': {
    memory: 'log',
    fault: 'swapped',
    log: 'folder',
    how: 'The data folder is that of another installation.',
    code: 'LOG_FOREIGN',
    remedy: 'Start with the data folder that belongs to the state database',
    lost: 'nothing',
    again: 'none',
    why: 'It has topics of sinks that the state database has never known, so nothing is started, and the other folder stays as it was.',
  },
  'log read-only': {
    memory: 'log',
    fault: 'read-only',
    log: 'folder',
    how: 'The disk refuses writes to the log while the service runs.',
    code: 'LOG_FLUSH_FAILED',
    remedy: 'Mend the disk and start again',
    lost: 'nothing',
    again: 'none',
    why: 'Postgres is only told of what the disk has taken, so everything else is sent again.',
  },
  'kafka lost': {
    memory: 'log',
    fault: 'lost',
    log: 'kafka',
    how: 'The topics are deleted.',
    code: 'LOG_WENT_BACK',
    remedy: ACCEPT,
    lost: 'undelivered',
    again: 'none',
    why: 'The state database keeps how far each partition had come, with each confirmed position.',
  },
  'kafka older': {
    memory: 'log',
    fault: 'older copy',
    log: 'kafka',
    how: 'The disks of the brokers are put back from a copy.',
    code: 'LOG_WENT_BACK',
    remedy: ACCEPT,
    lost: 'sinceCopy',
    again: 'sinceCopy',
    why: 'The state database keeps how far each partition had come, with each confirmed position: one that ends below is an older copy.',
  },
  'kafka swapped': {
    memory: 'log',
    fault: 'swapped',
    log: 'kafka',
    how: '`KAFKA_TOPIC_PREFIX`, or the cluster, is another one.',
    code: 'LOG_CHANGED',
    remedy: 'Start with the former prefix and cluster',
    lost: 'nothing',
    again: 'none',
    why: 'The state database keeps the identity of the cluster and the prefix.',
  },
  'kafka read-only': {
    memory: 'log',
    fault: 'read-only',
    log: 'kafka',
    how: 'The right to write to the topics is taken away.',
    code: 'LOG_REFUSED',
    remedy: 'Give it back; it is tried again by itself, and at once by `npx tailrace source retry NAME`',
    lost: 'nothing',
    again: 'none',
    why: 'Nothing is confirmed that the brokers have not taken, so the source begins again from there.',
  },
  'kafka in recovery': {
    memory: 'log',
    fault: 'in recovery',
    log: 'kafka',
    how: 'The brokers are killed, and recover their logs.',
    lost: 'nothing',
    again: 'none',
    why: 'Work that needs them waits.',
  },
  'state older': {
    memory: 'state',
    fault: 'older copy',
    log: 'folder',
    how: 'The state database is put back from a copy, the data folder has gone on.',
    code: 'STATE_WENT_BACK',
    remedy: ACCEPT,
    lost: 'parkedSinceCopy',
    again: 'none',
    why: 'The commits in the log carry the term of their owner, which the state database raises at each take-over, and how often messages were parked: a copy knows less. What is not parked is in the log.',
  },
  'state lost': {
    memory: 'state',
    fault: 'lost',
    log: 'folder',
    how: 'The state database is empty at the start.',
    code: 'LOG_FOREIGN',
    remedy: 'Begin with an empty data folder',
    lost: 'open',
    again: 'none',
    why: 'The log has topics that this state database has never known. The slot is still there, and a new source begins at it.',
  },
  'state swapped': {
    memory: 'state',
    fault: 'swapped',
    log: 'folder',
    how: '`PG_URL` names the state database of another installation.',
    code: 'LOG_FOREIGN',
    remedy: 'Name the state database that the log was filled with',
    lost: 'nothing',
    again: 'none',
    why: 'The log has topics that this state database has never known, so nothing is started.',
  },
  'state read-only': {
    memory: 'state',
    fault: 'read-only',
    log: 'folder',
    how: 'The state database refuses writes for a while, as a primary does that was demoted.',
    lost: 'nothing',
    again: 'none',
    why: 'Nothing is confirmed that could not be saved, and saving is tried again until it succeeds.',
  },
  'state in recovery': {
    memory: 'state',
    fault: 'in recovery',
    log: 'folder',
    how: 'The server of the state database comes back as a standby and is promoted later.',
    lost: 'nothing',
    again: 'none',
    why: 'A standby refuses writes, and saving is tried again until it succeeds.',
  },
  'embedded killed': {
    memory: 'state',
    fault: 'in recovery',
    log: 'folder',
    how: 'The embedded PostgreSQL is killed while the service runs.',
    lost: 'nothing',
    again: 'none',
    why: 'It is started again and recovers from its own write-ahead log.',
  },
  'folder older': {
    memory: 'folder',
    fault: 'older copy',
    log: 'folder',
    how: 'The data folder with log and embedded state database is put back from a copy.',
    code: 'SLOT_GAP',
    remedy: ACCEPT,
    lost: 'sinceCopy',
    again: 'sinceCopy',
    why: 'Log and state agree with each other, but the slot stands above both.',
  },
  'folder lost': {
    memory: 'folder',
    fault: 'lost',
    log: 'folder',
    how: 'The data folder with log and embedded state database is empty at the start.',
    notice: 'has been read before, and this state database does not know of that',
    lost: 'open',
    again: 'none',
    why: 'Nothing is left that remembers: a new source begins where its slot stands. That somebody has read from the slot before is all that it can tell. Keep the data folder on a disk that survives, or the state database elsewhere.',
  },
  'source older': {
    memory: 'source',
    fault: 'older copy',
    log: 'folder',
    how: 'The server is put back from a copy of its disk, and nothing is written to it before Tailrace connects.',
    code: 'SOURCE_WENT_BACK',
    remedy: ACCEPT,
    lost: 'nothing',
    again: 'none',
    why: 'The write-ahead log of the server ends below what it had already sent. What it had sent is still delivered.',
  },
  'source older written': {
    memory: 'source',
    fault: 'older copy',
    log: 'folder',
    how: 'The server is put back from a copy of its disk, and more is written than was taken back before Tailrace connects.',
    code: 'SOURCE_WENT_BACK',
    remedy: ACCEPT,
    lost: 'nothing',
    again: 'none',
    why: 'The last transaction in the log is not found in the write-ahead log where it was, with its number and its time.',
  },
  'source slot dropped': {
    memory: 'source',
    fault: 'lost',
    log: 'folder',
    how: 'The slot is dropped.',
    code: 'SLOT_MISSING',
    remedy: 'Run the SQL of the error, `npx tailrace source retry NAME`; at SLOT_GAP ' + ACCEPT,
    lost: 'withoutSlot',
    again: 'none',
    why: 'A slot that is made again begins at its creation; Tailrace never makes it in silence.',
  },
  'source another server': {
    memory: 'source',
    fault: 'swapped',
    log: 'folder',
    how: 'Another server answers at the same address, with the same tables, a slot and a publication of the same names.',
    code: 'SLOT_GAP',
    remedy: ACCEPT,
    lost: 'nothing',
    again: 'none',
    why: 'Each server has an identifier of its own. What commits there after its slot was made comes after the gap is accepted.',
  },
  'source another database': {
    memory: 'source',
    fault: 'swapped',
    log: 'folder',
    how: 'The configuration names another database of the same server, with a slot made there before.',
    code: 'SLOT_GAP',
    remedy: ACCEPT,
    lost: 'nothing',
    again: 'none',
    why: 'The position is kept with the name of its slot and its database, and says nothing about another one.',
  },
  'source read-only': {
    memory: 'source',
    fault: 'read-only',
    log: 'folder',
    how: 'Sessions of the database are read-only by default.',
    lost: 'nothing',
    again: 'none',
    why: 'Replication only reads. Heartbeats and marks of edits are written again when that is possible.',
  },
  'source in recovery': {
    memory: 'source',
    fault: 'in recovery',
    log: 'folder',
    how: 'The address leads to a standby without the slot, and later to the primary again.',
    code: 'SOURCE_IN_RECOVERY',
    lost: 'nothing',
    again: 'none',
    why: 'What a standby lacks says nothing of the primary, so the source waits and makes nothing.',
  },
  'source promoted': {
    memory: 'source',
    fault: 'in recovery',
    log: 'folder',
    how: 'The server comes back as a standby and is promoted.',
    lost: 'nothing',
    again: 'none',
    why: 'The promotion begins the next history, and what commits below it is recognised.',
  },
} as const satisfies Readonly<Record<string, Cell>>
export type CellName = keyof typeof CELLS

/** Cells that can't exist, or are another one, with the reason. */
export const LEFT_OUT: readonly Readonly<{ what: string; why: string }>[] = [
  {
    what: 'The log in recovery, in the data folder',
    why: 'It has no such state: what a killed process leaves is what the disk has taken, and opening it is all there is.',
  },
  {
    what: 'The state database swapped or read-only while it is the embedded one',
    why: 'Nobody else writes to it, and it lies in the data folder.',
  },
  {
    what: 'A failover of the state database that loses its last writes, with the log in Kafka',
    why: 'A lost confirmation is told by SLOT_GAP, a lost owner of a partition and lost rows of parked messages by STATE_WENT_BACK: each commit in the log says how often messages had been parked. Let the state database commit to a standby synchronously (`synchronous_standby_names`), so that a failover loses nothing.',
  },
  {
    what: 'The data folder swapped, read-only or in recovery',
    why: 'It is the log and the state database at once: the same as each of them.',
  },
]
