/**
 * The routing versions of one database as they are stored. Of hundreds of readers a version has mostly one that the version
 * before had not so: only what differs is written, and only what differs from the version that was read last is asked for.
 */
import { isDeepStrictEqual } from 'node:util'
import { toPosition, type Position } from '../../position.ts'
import { ask, UNIQUE_VIOLATION } from '../../state/asking.ts'
import type { RoutedReader, RoutedStream, Routing, RoutingVersion } from '../../state/resources.ts'
import type { Query, Row } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { ownTopic } from './routing.ts'

/**
 * Makes, in SQL, the name of a topic that no other topic ever had, or will have: the tag tells it from those of a state database
 * that was put back.
 */
export const NEW_TOPIC = `'stream.' || nextval('tailrace.stream_number') || '.' || substr(md5(gen_random_uuid()::text), 1, 8)`

/** A version and where it takes effect. @property position undefined until its mark came back */
export type PlacedVersion = Readonly<{ routing: RoutingVersion; position: Position | undefined }>

/** Holds a version that is stored. `isPlaced`: its mark has come back to a source, so it need not be written again. */
export type SavedVersion = RoutingVersion & Readonly<{ isNew: boolean; isPlaced: boolean }>

/** A sink as versions had it in which each of its generations had a topic of its own. */
type FormerSink = Omit<RoutedStream, 'topic' | 'only'> & Omit<RoutedReader, 'topic'>
/** @property sinks not null: each generation has a topic of its own, and who reads it is said here */
type Columns = Readonly<{ sinks: readonly FormerSink[] | null; streams: readonly RoutedStream[] | null }>
/** sink id, generation, topic, actions */
type ReaderRow = readonly [string, number, string, RoutedReader['actions']]
/** JSON columns of the rows that are read here, as they were written here. */
type Documents = Columns & Readonly<{ readers?: readonly RoutedReader[]; begun: readonly ReaderRow[]; ended: readonly string[] }>

/** @property stamp tells it from another version of its number, of a state database that was put back */
type Read = PlacedVersion & Readonly<{ columns: Columns; stamp: string }>

const COLUMNS = `v.version, v.sinks, v.streams, v.history, v.lsn, v.idx, extract(epoch from v.inserted_at)::text as stamp`
const READER = 'json_build_array(r.sink_id, r.generation, r.topic, r.actions)'

/** Reads and saves the routing versions of one database. */
export class StoredVersions {
  readonly #databaseId: string
  #last: Read | undefined

  constructor(databaseId: string) {
    this.#databaseId = databaseId
  }

  /** @param state queries on the state database. @returns undefined: there is none */
  newest(state: Query): Promise<Read | undefined> {
    return this.#read(state)
  }

  at(state: Query, version: number): Promise<Read | undefined> {
    return this.#read(state, version)
  }

  /** Oldest first. */
  async all(state: Query): Promise<readonly PlacedVersion[]> {
    const [versions, readers] = await Promise.all([
      ask(state, `select ${COLUMNS} from tailrace.routing_version v where v.database_id = $1 order by v.version`, [this.#databaseId]),
      ask(state, `select r.since, r.until, ${READER} as reader from tailrace.routed_reader r where r.database_id = $1 order by r.since`, [
        this.#databaseId,
      ]),
    ])
    const rows = rowsOf({ since: 'int', until: 'int?', reader: readerIn }, readers)
    let open: typeof rows = []
    let next = 0
    return versions.rows.map((row) => {
      const version = Number(row.version)
      open = open.filter(({ until = Infinity }) => until > version)
      for (let begun = rows[next]; begun && begun.since <= version; begun = rows[++next]) open.push(begun)
      const readers = open.map(({ reader }) => reader)
      return this.#versionOf(row, readers)
    })
  }

  /**
   * Saves what goes where as the next version; the same as the newest one saves nothing.
   * @param state queries on the state database. @param newest the version that `routing` was made from
   * @throws what `isOvertaken` knows: there is a newer one by now, of a table that got other groups or of another process
   */
  async save(state: Query, routing: Routing, newest: Read | undefined): Promise<SavedVersion> {
    const databaseId = this.#databaseId
    const columns = stored(routing)
    const former = newest && !newest.columns.sinks ? newest.routing.readers : []
    const readers = columns.sinks ? [] : routing.readers
    const { begun, ended } = difference(former, readers)
    if (newest && begun.length + ended.length === 0 && isDeepStrictEqual(newest.columns, columns))
      return { databaseId, version: newest.routing.version, ...routing, isNew: false, isPlaced: newest.position !== undefined }
    const version = (newest?.routing.version ?? 0) + 1
    await state(
      // the version comes first: whoever is overtaken waits for its number, and for no reader that the other one has
      `with version as (
         insert into tailrace.routing_version (database_id, version, sinks, streams) values ($1, $2, $3, $4) returning database_id, version
       ), ended as (
         update tailrace.routed_reader r set until = v.version from version v
         where r.database_id = v.database_id and r.until is null and r.sink_id = any ($5::uuid[])
       )
       insert into tailrace.routed_reader (database_id, sink_id, generation, topic, actions, since)
       select v.database_id, r."sinkId", r.generation, r.topic, r.actions, v.version
       from version v, jsonb_to_recordset($6) as r ("sinkId" uuid, generation int, topic text, actions jsonb)`,
      [databaseId, version, ...[columns.sinks, columns.streams].map((each) => each && JSON.stringify(each)), ended, JSON.stringify(begun)],
    )
    return { databaseId, version, ...routing, isNew: true, isPlaced: false }
  }

  /** @param version default: the newest */
  async #read(state: Query, version?: number): Promise<Read | undefined> {
    const last = this.#last
    const { rows } = await ask(
      state,
      `select ${COLUMNS}, k.version is not null as is_known, (
         select coalesce(json_agg(${READER}), '[]') from tailrace.routed_reader r where r.database_id = v.database_id
           and r.since <= v.version and (r.until is null or r.until > v.version) and r.since > coalesce(k.version, -1)
       ) as begun, (
         select coalesce(json_agg(r.sink_id), '[]') from tailrace.routed_reader r
         where r.database_id = v.database_id and r.since <= k.version and r.until > k.version and r.until <= v.version
       ) as ended
       from tailrace.routing_version v left join tailrace.routing_version k on k.database_id = v.database_id
         and k.version = $2 and k.version <= v.version and extract(epoch from k.inserted_at)::text = $3
       where v.database_id = $1 and v.version = coalesce($4, v.version) order by v.version desc limit 1`,
      [this.#databaseId, last?.routing.version ?? null, last?.stamp ?? null, version ?? null],
    )
    const [row] = rows
    if (!row) return undefined
    const known = row.is_known === true && last && !last.columns.sinks ? last.routing.readers : []
    const readers = new Map(known.map((reader) => [reader.sinkId, reader]))
    const { sinks, streams, begun, ended } = row as Row & Documents
    for (const sinkId of ended) readers.delete(sinkId)
    for (const reader of begun.map(readerOfRow)) readers.set(reader.sinkId, reader)
    this.#last = { ...this.#versionOf(row, [...readers.values()]), columns: { sinks, streams }, stamp: String(row.stamp) }
    return this.#last
  }

  #versionOf(row: Row, readers: readonly RoutedReader[]): PlacedVersion {
    const routing = routingOf(row.sinks ? row : { ...row, readers })
    return { routing: { databaseId: this.#databaseId, version: Number(row.version), ...routing }, position: toPosition(row) }
  }
}

/**
 * Finds the versions that take effect nowhere yet, oldest first: what is older than one that does holds with it, or never will.
 * @param state queries on the state database
 */
export async function unplacedVersions(state: Query, databaseId: string): Promise<readonly number[]> {
  const { rows } = await ask(
    state,
    `select version from tailrace.routing_version v where database_id = $1 and lsn is null and not exists (
       select from tailrace.routing_version n where n.database_id = $1 and n.version > v.version and n.lsn is not null
     ) order by version`,
    [databaseId],
  )
  return rows.map(({ version }) => Number(version))
}

/** Tells whether saving a version failed because another one has its number by now. */
export const isOvertaken = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === UNIQUE_VIOLATION

const readerOfRow = ([sinkId, generation, topic, actions]: ReaderRow): RoutedReader => ({ sinkId, generation, topic, actions })
const readerIn = (document: unknown): RoutedReader => readerOfRow(document as ReaderRow)

/** @returns the readers that begin, and the ids of the sinks that are no more as they were */
function difference(
  former: readonly RoutedReader[],
  now: readonly RoutedReader[],
): Readonly<{ begun: readonly RoutedReader[]; ended: readonly string[] }> {
  const before = new Map(former.map((reader) => [reader.sinkId, reader]))
  const same = new Set(now.filter((reader) => isSame(before.get(reader.sinkId), reader)).map(({ sinkId }) => sinkId))
  return {
    begun: now.filter(({ sinkId }) => !same.has(sinkId)),
    ended: former.filter(({ sinkId }) => !same.has(sinkId)).map(({ sinkId }) => sinkId),
  }
}

const isSame = (a: RoutedReader | undefined, b: RoutedReader): boolean =>
  a !== undefined &&
  a.generation === b.generation &&
  a.topic === b.topic &&
  a.actions.length === b.actions.length &&
  a.actions.every((action, i) => action === b.actions[i])

/**
 * As it stands in the state database. What has topics of its own for each sink is kept as former processes understand it,
 * for they may have to go on from it.
 */
function stored({ streams, readers }: Routing): Columns {
  if (readers.length === 0) return { sinks: [], streams: [] }
  const isFormer = readers.every((reader) => reader.topic === ownTopic(reader))
  if (!isFormer) return { sinks: null, streams }
  const shapes = new Map(streams.map(({ topic, only: _only, ...shape }) => [topic, shape]))
  const sinks = readers.flatMap(({ topic, ...reader }) => {
    const shape = shapes.get(topic)
    return shape ? [{ ...shape, ...reader }] : []
  })
  return { sinks, streams: null }
}

/** Reads what goes where from the row of a version. @param row with the `streams` and `readers` of a version, or with its `sinks` */
export function routingOf(row: Row): Routing {
  const { streams, readers, sinks } = row as Row & Partial<Documents>
  if (streams) return { streams, readers: readers ?? [] }
  const former = (sinks ?? []).map((sink) => ({ ...sink, topic: ownTopic(sink) }))
  return {
    streams: former.map(({ sinkId, generation: _generation, ...stream }) => ({ ...stream, only: sinkId })),
    readers: former.map(({ sinkId, generation, topic, actions }) => ({ sinkId, generation, topic, actions: actions ?? [] })),
  }
}
