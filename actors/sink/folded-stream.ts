/**
 * Compares the rows of a table with what a sink's stream says of them: its messages that the log still has, folded by key, so that of each key
 * the last one counts. It reads the log beside the sink, without a group, and changes nothing. Functions are not run: rows and messages are
 * compared as they are before functions.
 *
 * Memory is bounded, however many keys there are: each page of the comparison takes the keys whose hash lies in one range, and holds a
 * digest of the row for each. The more rows there are, the narrower the range; one with too many keys is halved. The price is that every
 * page reads the log and the table from their beginning.
 */
import { hash } from 'node:crypto'
import { setImmediate as turn } from 'node:timers/promises'
import { countRows, keyByColumn, readKeys, readPage, readSample, type RowPage, type RowsAsked } from '../../engine/backfill/row-pages.ts'
import type { After } from '../../engine/backfill/page-query.ts'
import { readerIn, type Generations } from '../../engine/dispatch/generations.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Log } from '../../engine/log/log.ts'
import { ACTION, MESSAGE_FLAG, type Pack } from '../../engine/log/pack.ts'
import { comparePositions, ORIGIN, type Position } from '../../engine/position.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { backfillsOf } from '../../engine/state/backfills.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { JsonMembers } from '../../sinks/json-members.ts'
import { documentName } from '../../sinks/keyed-documents.ts'
import { OwnMessages, readableGenerations, type ReadableGeneration } from './own-messages.ts'
import type { Settling } from './settling.ts'
import type { Difference } from './sink-verification.ts'

type FoldedOptions = Readonly<{
  sink: Sink
  log: Log
  /** the state database */
  query: Query
  generations: Pick<Generations, 'span'>
  rows: RowsAsked
  settling: Settling
  signal: AbortSignal
}>

/** Counts the rows that one page of a comparison has looked at, and lists those that differ. */
export type Folded = Readonly<{
  compared: number
  changing: number
  /** rows of which the log says nothing, or not all */
  unknown: number
  differences: readonly Difference[]
  next: string | null
  /** what can't be compared, in words */
  limits: string | null
}>

/** Keeps the row of a key as its last message has it. @property digest of the row; null: the row is deleted; undefined: the message has only a part of it */
type Last = Readonly<{ position: Position; digest: string | null | undefined }>
/** A key that differs, as far as was seen. @property digest of its row; undefined: there is none */
type Suspect = { readonly key: readonly string[]; digest: string | undefined }
/** Hashes of keys, from the first one on. */
type Range = Readonly<{ from: number; width: number }>

const KEYS_EACH = 100_000
const HASHES = 2 ** 32
const ROWS_EACH = 2_000
const KEYS_READ = 500
const ROUNDS = 4
const CUT = 'the stream is kept only from after the beginning of the last full backfill'
const NEVER_FULL = 'no full backfill of this table has been completed'
const REST = 'rows of which the log has no message can’t be compared; backfill the table to know them'

/** Compares a range of keys. @param after `next` of the range before */
export async function compareFolded(options: FoldedOptions, after: string | undefined): Promise<Folded> {
  let range = after === undefined ? rangeFor((await countRows(options.rows)).rows) : readRange(after)
  for (;;) {
    const { from, width } = range
    const isWanted = (key: string) => {
      const at = hashOf(key)
      return at >= from && at < from + width
    }
    const found = await compare(options, isWanted, tablePages(options))
    if (found) {
      const next = from + width
      return { ...found, next: next >= HASHES ? null : `${next}:${width}` }
    }
    range = { from, width: Math.max(1, Math.floor(width / 2)) }
  }
}

/** Compares some rows from all over the table. */
export async function compareFoldedSample(options: FoldedOptions, count: number): Promise<Folded> {
  const sample = await readSample(options.rows, count)
  const keys = new Set(keysIn(sample))
  const found = await compare(options, (key) => keys.has(key), [sample])
  return { ...(found ?? NOTHING), next: null }
}

/** Counts the keys that the stream says are there. */
export async function countFolded(options: FoldedOptions): Promise<Readonly<{ rows: number; keys: number }>> {
  const { rows } = await countRows(options.rows)
  let keys = 0
  for (let range = rangeFor(rows); range.from < HASHES;) {
    const { from, width } = range
    const fold = await Fold.open(options)
    const isWhole = await fold.readOn((key) => hashOf(key) >= from && hashOf(key) < from + width)
    if (isWhole) for (const { digest } of fold.last.values()) keys += digest === null ? 0 : 1
    range = isWhole ? { from: from + width, width } : { from, width: Math.max(1, Math.floor(width / 2)) }
  }
  return { rows, keys }
}

const NOTHING = { compared: 0, changing: 0, unknown: 0, differences: [], limits: null }

/** @returns undefined: there are too many keys */
async function compare(
  options: FoldedOptions,
  isWanted: (key: string) => boolean,
  pages: Iterable<RowPage> | AsyncIterable<RowPage>,
): Promise<Omit<Folded, 'next'> | undefined> {
  const fold = await Fold.open(options)
  if (!(await fold.readOn(isWanted))) return undefined
  const limits = await fold.limits()
  const suspects = new Map<string, Suspect>()
  let compared = 0
  let unknown = 0
  let lsn = 0n
  for await (const page of pages) {
    lsn = page.lsn
    for (const [n, text] of keysIn(page).entries()) {
      if (!isWanted(text)) continue
      compared++
      const last = fold.last.get(text)
      fold.last.delete(text)
      const digest = page.pack && digestOf(page.pack, n)
      if (!last && limits !== null) unknown++
      else if (!last || last.digest !== digest) {
        suspects.set(text, { key: page.keys[n] ?? [], digest })
        if (last) fold.suspected.set(text, last)
      }
    }
  }
  for (const [text, last] of fold.last) {
    if (last.digest === null) continue
    suspects.set(text, { key: keyOf(text), digest: undefined })
    fold.suspected.set(text, last)
  }
  fold.forgetOthers()
  const differences: Difference[] = []
  for (let round = 0; suspects.size > 0 && round < ROUNDS; round++) {
    await options.settling.durableBeyond(lsn)
    await fold.readOn((text) => suspects.has(text))
    for (const [text, { digest }] of suspects) if (isAs(digest, fold.last.get(text))) suspects.delete(text)
    const texts = [...suspects.keys()]
    for (let at = 0; at < texts.length; at += KEYS_READ) {
      const some = texts.slice(at, at + KEYS_READ)
      const page = await readKeys(options.rows, some.map((text) => suspects.get(text)?.key ?? [])) // prettier-ignore
      lsn = page.lsn
      const now = new Map(keysIn(page).map((text, n) => [text, page.pack && digestOf(page.pack, n)]))
      for (const text of some) {
        const suspect = suspects.get(text)
        if (!suspect) continue
        const digest = now.get(text)
        if (digest !== suspect.digest) {
          suspect.digest = digest
          continue
        }
        suspects.delete(text)
        const kind = kindOf(digest, fold.last.get(text))
        if (kind === 'unknown') unknown++
        else differences.push({ kind, id: documentName(suspect.key), key: keyByColumn(page.keyColumns, suspect.key) })
      }
    }
  }
  return { compared, changing: suspects.size, unknown, differences, limits }
}

const isAs = (digest: string | undefined, last: Last | undefined): boolean =>
  digest === undefined ? !last || last.digest === null : last?.digest === digest

function kindOf(digest: string | undefined, last: Last | undefined): Difference['kind'] | 'unknown' {
  if (digest === undefined) return 'extra'
  if (!last || last.digest === null) return 'missing'
  return last.digest === undefined ? 'unknown' : 'different'
}

/** The messages of a table, folded by key, up to where the log was read. */
class Fold {
  readonly #options: FoldedOptions
  readonly #reads: readonly ReadableGeneration[]
  readonly #own: OwnMessages
  readonly #table: number
  /** whether the generations before the first one have no topic any more */
  readonly #isFirstGone: boolean
  /** the next record of each partition, by generation; Infinity: nothing of it comes there */
  readonly #offsets = new Map<number, number[]>()
  /** of each partition that lacks something of the sink: when its first record was committed, µs since the epoch; Infinity: it has none */
  readonly #cutAtUs: number[] = []
  last = new Map<string, Last>()
  suspected = new Map<string, Last>()

  private constructor(options: FoldedOptions, found: Readonly<{ reads: readonly ReadableGeneration[]; gone: number }>, table: number) {
    this.#options = options
    this.#reads = found.reads
    this.#isFirstGone = found.gone > 0
    this.#table = table
    this.#own = new OwnMessages(options.sink, options.generations)
  }

  static async open(options: FoldedOptions): Promise<Fold> {
    const { table } = await readPage(options.rows, null, 1)
    return new Fold(options, await readableGenerations(options), table)
  }

  /** Reads on, up to the end of the log. @returns false: there are too many keys */
  async readOn(isWanted: (key: string) => boolean): Promise<boolean> {
    const { log, sink, signal } = this.#options
    for (const read of this.#reads) {
      const { generation, topic, shape, opensAt = ORIGIN } = read
      const reader = readerIn(topic, { sinkId: sink.id, generation })
      const offsets = this.#offsets.get(generation) ?? []
      this.#offsets.set(generation, offsets)
      for (let partition = 0; partition < shape.partitions; partition++) {
        const { first, next } = await log.stats(reader, partition)
        if (offsets[partition] === undefined) {
          await this.#lookForCut(read, partition, { first, next })
          offsets[partition] = await log.offsetFor(topic, partition, { position: opensAt })
        }
        if ((offsets[partition] ?? 0) >= next) continue
        for await (const record of log.read(topic, partition, offsets[partition] ?? 0, signal, next)) {
          offsets[partition] = record.offset + 1
          const own = await this.#own.of(read, record)
          if (!own) {
            offsets[partition] = Infinity
            break
          }
          for (const place of own.places) this.#take(own.pack, place, isWanted)
          if (this.last.size > KEYS_EACH * 2) return false
          await turn() // a long log is read beside everything else
        }
      }
    }
    return true
  }

  /** Keeps of what was read only what is suspected. */
  forgetOthers(): void {
    this.last = this.suspected
    this.suspected = new Map()
  }

  /** Says what the log can't tell; null: all that was committed since the beginning of a full backfill is there. */
  async limits(): Promise<string | null> {
    const { sink, query, rows } = this.#options
    const full = (await backfillsOf(query, sink.id)).find(
      ({ state, table, condition, startPosition }) =>
        state === 'completed' && table === rows.table && condition === undefined && startPosition === undefined,
    )
    if (!full) return `${NEVER_FULL}: ${REST}`
    return this.#cutAtUs.some((atUs) => atUs > full.insertedAt.getTime() * 1_000) ? `${CUT}: ${REST}` : null
  }

  async #lookForCut(
    read: ReadableGeneration,
    partition: number,
    { first, next }: Readonly<{ first: number; next: number }>,
  ): Promise<void> {
    const isAfterOthers = this.#isFirstGone && read === this.#reads[0]
    if (first === 0 && !isAfterOthers) return
    const header = first < next ? await this.#options.log.headerAt(read.topic, partition, first) : undefined
    const hasAll = header && comparePositions(header.first, read.opensAt ?? ORIGIN) <= 0
    if (!hasAll || isAfterOthers) this.#cutAtUs.push(header?.minCommitTimeUs ?? Infinity)
  }

  #take(pack: Pack, place: number, isWanted: (key: string) => boolean): void {
    if (pack.relation(place) !== this.#table) return
    const text = keyTextOf(pack, place)
    if (!isWanted(text)) return
    const former = this.last.get(text)
    if (former && pack.compare(place, former.position) <= 0) return
    const flags = pack.flags(place)
    const isGone = pack.action(place) === ACTION.delete || (flags & MESSAGE_FLAG.tombstone) !== 0
    const isPartial = (flags & (MESSAGE_FLAG.unchanged | MESSAGE_FLAG.discarded)) !== 0
    this.last.set(text, { position: pack.position(place), digest: isGone ? null : isPartial ? undefined : digestOf(pack, place) })
  }
}

async function* tablePages({ rows, signal }: FoldedOptions): AsyncGenerator<RowPage> {
  for (let after: After = null; ;) {
    signal.throwIfAborted() // a large table takes long
    const page = await readPage(rows, after, ROWS_EACH)
    yield page
    if (page.next === null) return
    after = page.next
  }
}

/** The key of a message as the log has it: a list as JSON. */
const keyTextOf = (pack: Pack, place: number): string => pack.buffer.toString('utf8', pack.keyStart(place), pack.keyEnd(place))
const keyOf = (text: string): readonly string[] => (JSON.parse(text) as unknown[]).map(String)
const keysIn = ({ pack, keys }: RowPage): readonly string[] => (pack ? keys.map((_, n) => keyTextOf(pack, n)) : [])

/** The digest of the row in a message, and of nothing else: when and how the row came differs. */
function digestOf(pack: Pack, place: number): string {
  const members = new JsonMembers(pack.buffer, pack.bodyStart(place))
  for (let name = members.name(); name; name = members.name()) {
    const { start, end } = members.value()
    if (members.is(name, 'record')) return hash('sha1', pack.buffer.subarray(start, end), 'base64')
  }
  throw new EngineError('INTERNAL', 'a message of the log has no record')
}

/** FNV-1a. */
function hashOf(text: string): number {
  let at = 0x811c9dc5
  for (let i = 0; i < text.length; i++) at = Math.imul(at ^ text.charCodeAt(i), 0x01000193)
  at ^= at >>> 15 // keys that end alike lie apart
  return Math.imul(at, 0x2c1b3c6d) >>> 0
}

function rangeFor(rows: number): Range {
  return { from: 0, width: Math.ceil(HASHES / Math.max(1, Math.ceil(rows / KEYS_EACH))) }
}

/** @throws EngineError REQUEST_INVALID */
function readRange(text: string): Range {
  const [, from, width] = /^(\d{1,10}):([1-9]\d{0,9})$/.exec(text) ?? []
  if (from === undefined || width === undefined) throw new EngineError('REQUEST_INVALID', 'after must be the `next` of an answer.')
  return { from: Number(from), width: Number(width) }
}
