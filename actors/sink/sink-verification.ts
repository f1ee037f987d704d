/**
 * Compares the rows of a source with the documents of a sink's destination, a page at a time: nothing is kept between two pages, and any
 * process can compare the next one.
 *
 * A difference that one look finds may be on its way. So before anything is told, the sink is given the time to deliver beyond the place that
 * the rows were read at, the documents are looked at again, and the rows too: a difference is told only of a row that was the same before and
 * after the look at its document.
 */
import { countRows, keyByColumn, readKeys, readPage, readSample, type RowPage, type RowsAsked } from '../../engine/backfill/row-pages.ts'
import type { After } from '../../engine/backfill/page-query.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Log } from '../../engine/log/log.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { sqlstateOf } from '../../engine/postgres/sqlstate.ts'
import { StoredGenerations } from '../../engine/dispatch/generations.ts'
import { ACTIONS, type Database, type Sink } from '../../engine/state/resources.ts'
import type { Egress } from '../../engine/net/egress.ts'
import { PUSH_TYPES } from '../../sinks/destination-types.ts'
import type { Comparing, Looked, Standing } from '../../sinks/push.ts'
import { STATE, type FunctionStage } from '../../transforms/stage.ts'
import { compareFolded, compareFoldedSample, countFolded } from './folded-stream.ts'
import { Settling } from './settling.ts'

/**
 * The rows or documents to compare. rows: a page of a table, behind `after`; sample: some of its rows; documents: a page of the destination, whether each
 * has its row; count: how many there are on both sides
 */
export type VerifyAsked = Readonly<{
  what: 'rows' | 'sample' | 'documents' | 'count'
  /** schema.table */
  table: string
  after: string | undefined
  limit: number
  signal: AbortSignal
}>

/** A document that is not as it should be. @property key of its row, by columns; null: none is known */
export type Difference = Readonly<{
  kind: 'missing' | 'different' | 'extra'
  id: string
  key: Readonly<Record<string, string>> | null
}>

/** The outcome of a comparison of rows with documents. */
export type Verified = Readonly<{
  /** rows, or documents, that were compared */
  compared: number
  /** of these: rows that the filter drops, rows that functions fail on or that can be no document, and rows that changed all the time */
  dropped: number
  failed: number
  changing: number
  /** documents of which it is not known which row they are of; of a folded stream rows of which it is not known how they stand there */
  unknown: number
  differences: readonly Difference[]
  /** of count: on each side */
  rows: number | null
  documents: number | null
  /** where the next page begins; null: this was the last */
  next: string | null
  /** false: the sink stands still, or is too far behind, and did not deliver beyond the place of the rows: differences may be on their way */
  settled: boolean
  /** what can't be compared of this table, in words; null: all can */
  limits: string | null
}>

type VerificationOptions = Readonly<{
  sink: Sink
  database: Database
  log: Log
  /** the state database */
  state: Query
  egress: Egress
  maxMessageBytes: number
  /** runs work on a stage of the sink's functions */
  tried: <T>(work: (stage: FunctionStage) => Promise<T>) => Promise<T>
}>

const PULL = 'sequin_stream'
const ROUNDS = 4
const NOTHING = {
  compared: 0,
  dropped: 0,
  failed: 0,
  changing: 0,
  unknown: 0,
  differences: [],
  rows: null,
  documents: null,
  next: null,
  settled: true,
  limits: null,
}

/** Compares. @throws EngineError VALIDATION_FAILED: the destination can't be read, or the sink does not take the table; BACKFILL_REFUSED, DESTINATION_…, SOURCE_… */
export async function verify(options: VerificationOptions, asked: VerifyAsked): Promise<Verified> {
  const { sink, database, egress, maxMessageBytes } = options
  const { connection, slot } = database
  const rows: RowsAsked = {
    connection,
    publication: slot.publication,
    table: asked.table,
    timestampFormat: sink.timestamp_format,
    maxMessageBytes,
  }
  if (sink.destination.type === PULL) return verifyFolded(options, rows, asked)
  const type = PUSH_TYPES.get(sink.destination.type)
  const wire = type?.open({ sink, database, endpoint: undefined, egress, concurrency: 2, warn: () => undefined })
  if (!wire?.comparing) {
    await wire?.close()
    const reason = `of a sink of type ${sink.destination.type} can't be compared: what its destination has can't be read`
    throw new EngineError('VALIDATION_FAILED', `the rows ${reason}`, { destination: reason })
  }
  try {
    return await new Verification(options, wire.comparing, rows, asked).run()
  } finally {
    await wire.close()
  }
}

/** Compares a table with the stream of a sink that a client pulls: where its messages have got to is not known here. */
async function verifyFolded({ sink, log, database, state }: VerificationOptions, rows: RowsAsked, asked: VerifyAsked): Promise<Verified> {
  const lacking = ACTIONS.filter((action) => !sink.actions.includes(action))
  if (lacking.length > 0) {
    const reason = `of this sink can't be compared: its actions leave out ${lacking.join(' and ')}, so its stream does not say how rows are`
    throw new EngineError('VALIDATION_FAILED', `the rows ${reason}`, { actions: reason })
  }
  const { what, after, limit, signal } = asked
  const settling = new Settling({ sink, database, log, state }, signal)
  const generations = new StoredGenerations({ sinkId: sink.id, log, query: state, ackWaitMs: () => sink.ack_wait_ms })
  const options = { sink, log, query: state, generations, rows, settling, signal }
  if (what === 'documents') return NOTHING // the keys of both sides are compared together
  if (what === 'count') {
    const counted = await countFolded(options)
    return { ...NOTHING, rows: counted.rows, documents: counted.keys }
  }
  const found = await (what === 'sample' ? compareFoldedSample(options, limit) : compareFolded(options, after))
  return { ...NOTHING, ...found, settled: settling.isSettled }
}

/** One page that is compared. */
class Verification {
  readonly #options: VerificationOptions
  readonly #destination: Comparing
  readonly #rows: RowsAsked
  readonly #asked: VerifyAsked
  readonly #settling: Settling

  constructor(options: VerificationOptions, destination: Comparing, rows: RowsAsked, asked: VerifyAsked) {
    this.#options = options
    this.#destination = destination
    this.#rows = rows
    this.#asked = asked
    this.#settling = new Settling(options, asked.signal)
  }

  async run(): Promise<Verified> {
    const { what, after, limit, signal } = this.#asked
    if (what === 'count') {
      const { rows } = await countRows(this.#rows)
      return { ...NOTHING, rows, documents: foundIn(await this.#destination.count(signal)) }
    }
    if (what === 'documents') return this.#compareDocuments()
    const page = what === 'sample' ? await readSample(this.#rows, limit) : await readPage(this.#rows, readAfter(after), limit)
    const found = await this.#compareRows(page)
    return { ...found, next: what === 'sample' || page.next === null ? null : writeAfter(page.next) }
  }

  async #compareRows(first: RowPage): Promise<Verified> {
    const compared = first.keys.length
    let page = first
    let looked = await this.#look(page)
    const { dropped, failed } = looked
    const differences: Difference[] = []
    let changing = 0
    for (let round = 0; looked.bad.length > 0; round++) {
      await this.#settling.deliveredBeyond(page.lsn)
      looked = await this.#look(page, new Set(looked.bad.map(({ n }) => n)))
      if (looked.bad.length === 0) break
      const again = await readKeys(this.#rows, looked.bad.map(({ n }) => page.keys[n] ?? [])) // prettier-ignore
      const places = new Map(again.keys.map((key, n) => [JSON.stringify(key), n]))
      const changed: (readonly string[])[] = []
      for (const { n, id, kind } of looked.bad) {
        const key = page.keys[n] ?? []
        const place = places.get(JSON.stringify(key))
        if (place === undefined) continue // the row is gone: its document is looked for among those that are too many
        if (bodyAt(again, place) === bodyAt(page, n)) differences.push({ kind, id, key: keyByColumn(page.keyColumns, key) })
        else changed.push(key)
      }
      if (changed.length === 0) break
      if (round + 1 === ROUNDS) {
        changing = changed.length
        break
      }
      page = await readKeys(this.#rows, changed)
      looked = await this.#look(page)
    }
    return { ...NOTHING, compared, dropped, failed, changing, differences, settled: this.#settling.isSettled }
  }

  /** Tells which documents of a page of rows are not as they should be. @param only these rows */
  async #look({ pack }: RowPage, only?: ReadonlySet<number>) {
    const bad: { n: number; id: string; kind: Difference['kind'] }[] = []
    if (!pack) return { bad, dropped: 0, failed: 0 }
    const { tried } = this.#options
    const places = Array.from({ length: pack.count }, (_, n) => n).filter((n) => only?.has(n) ?? true)
    const messages = places.map((place) => ({ view: pack, place, offset: 0, index: place }))
    return tried(async (stage) => {
      const outcome = stage.isIdle ? undefined : await stage.run(messages)
      let dropped = 0
      let failed = 0
      const byRoute = new Map<unknown, number[]>()
      const isDropped = (i: number) => outcome?.stateOf(i) === STATE.dropped
      const made = messages.map((message, i) =>
        isDropped(i) ? message : { ...message, payload: outcome?.payloadAt(i), enrichment: outcome?.enrichmentOf(i) },
      )
      for (const i of messages.keys()) {
        const state = outcome?.stateOf(i) ?? STATE.kept
        if (state === STATE.dropped) dropped++
        else if (state !== STATE.kept) failed++
        // what is dropped may still be there, in the sink's own index
        if (state !== STATE.kept && state !== STATE.dropped) continue
        const route = state === STATE.kept ? outcome?.routeOf(i) : undefined
        const others = byRoute.get(route)
        if (others) others.push(i)
        else byRoute.set(route, [i])
      }
      for (const [route, chosen] of byRoute) {
        const batch = { generation: 0, partition: 0, messages: chosen.map((i) => made[i]).filter((one) => one !== undefined), route: route as Record<string, unknown> | undefined } // prettier-ignore
        const standings = foundIn(await this.#destination.compare(batch, this.#asked.signal))
        for (const [k, i] of chosen.entries()) {
          const kind = kindOf(standings[k], isDropped(i))
          if (standings[k] === undefined) failed++
          else if (kind) bad.push({ n: places[i] ?? 0, id: standings[k].id, kind })
        }
      }
      return { bad, dropped, failed }
    })
  }

  /** Looks whether each document of a page has its row. */
  async #compareDocuments(): Promise<Verified> {
    const { after, limit, signal, table } = this.#asked
    const { documents, next } = foundIn(await this.#destination.stored(after, limit, signal))
    const { keyColumns } = await readPage(this.#rows, null, 1)
    const isNamed = this.#destination.namesByKey(keyColumns)
    let unknown = 0
    const asked = new Map<string, Readonly<{ id: string; key: readonly string[] }>>()
    for (const { id, key: own, table: of } of documents) {
      if (of !== undefined && of !== table) continue
      const key = own ?? (!isNamed ? [] : keyColumns.length === 1 ? [id] : id.split('-'))
      if (key.length === keyColumns.length) asked.set(JSON.stringify(key), { id, key })
      else unknown++
    }
    const lacks = async (candidates: ReadonlyMap<string, Readonly<{ id: string; key: readonly string[] }>>) => {
      const there = new Set((await this.#there([...candidates.values()].map(({ key }) => key))).map((key) => JSON.stringify(key)))
      return new Map([...candidates].filter(([text]) => !there.has(text)))
    }
    let extra = await lacks(asked)
    if (extra.size > 0) {
      const { lsn } = await readPage(this.#rows, null, 1)
      await this.#settling.deliveredBeyond(lsn)
      extra = await this.#stillStored(await lacks(extra))
    }
    const differences = [...extra.values()].map(({ id, key }): Difference => ({ kind: 'extra', id, key: keyByColumn(keyColumns, key) }))
    return { ...NOTHING, compared: documents.length, unknown, differences, next: next ?? null, settled: this.#settling.isSettled }
  }

  /** Leaves out those whose documents have gone meanwhile, by their identifiers: a search may not see that yet. */
  async #stillStored(extra: Map<string, Readonly<{ id: string; key: readonly string[] }>>) {
    if (extra.size === 0) return extra
    const ids = [...extra.values()].map(({ id }) => id)
    const there = new Set(foundIn(await this.#destination.present(ids, this.#asked.signal)))
    return new Map([...extra].filter(([, { id }]) => there.has(id)))
  }

  /** The keys of rows that are there. Those of which PostgreSQL says that they are no values of their columns are not. */
  async #there(keys: readonly (readonly string[])[]): Promise<readonly (readonly string[])[]> {
    if (keys.length === 0) return []
    try {
      return (await readKeys(this.#rows, keys)).keys
    } catch (error) {
      if (!isNoValue(error)) throw error
      if (keys.length === 1) return []
      const half = keys.length >> 1
      return [...(await this.#there(keys.slice(0, half))), ...(await this.#there(keys.slice(half)))]
    }
  }
}

/** Says how a document differs from its row; undefined: it does not. */
function kindOf(standing: Standing | undefined, isDropped: boolean): Difference['kind'] | undefined {
  if (!standing) return undefined
  if (isDropped) return standing.state === 'missing' ? undefined : 'extra'
  return standing.state === 'same' ? undefined : standing.state
}

/** Takes what a destination has answered. @throws EngineError DESTINATION_…: it does not say what was asked */
function foundIn<T>({ found, answer }: Looked<T>): T {
  if (answer) throw new EngineError(answer.code, answer.message)
  return found as T // one of the two is there
}

const bodyAt = ({ pack }: RowPage, n: number): string | undefined => pack?.buffer.toString('latin1', pack.bodyStart(n), pack.bodyEnd(n))

/** A text that is none of its column's type. */
const isNoValue = (error: unknown): boolean => sqlstateOf(error)?.startsWith('22') === true

const writeAfter = (after: readonly string[]): string => Buffer.from(JSON.stringify(after)).toString('base64url')

/** @throws EngineError REQUEST_INVALID */
function readAfter(text: string | undefined): After {
  if (text === undefined) return null
  try {
    const given: unknown = JSON.parse(Buffer.from(text, 'base64url').toString())
    if (Array.isArray(given) && given.every((one) => typeof one === 'string')) return given
  } catch {}
  throw new EngineError('REQUEST_INVALID', 'after must be the `next` of an answer.')
}
