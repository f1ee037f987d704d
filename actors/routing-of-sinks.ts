/** Puts what a source needs to know of its sinks into the next routing version: the streams that they share, and who reads which. */
import { isDeepStrictEqual as same } from 'node:util'
import { topicOfGeneration } from '../engine/dispatch/generations.ts'
import { ask } from '../engine/state/asking.ts'
import { readShape, shapeOf, streamText, type GenerationShape, type StreamShape } from '../engine/state/generation-shape.ts'
import type { ResourceStore } from '../engine/state/resource-store.ts'
import type { RoutedReader, RoutedStream, Routing, Sink } from '../engine/state/resources.ts'
import { LIVE_MS } from '../engine/state/node-registry.ts'
import type { Query } from '../engine/postgres/query.ts'
import { rowOf, rowsOf } from '../engine/postgres/rows.ts'
import type { Store } from '../engine/state/store.ts'
import { ownTopic } from '../engine/wal/routing/routing.ts'
import { isOvertaken, NEW_TOPIC, type SavedVersion, type StoredVersions } from '../engine/wal/routing/stored-versions.ts'

type Routed = Readonly<{ databaseId: string; versions: StoredVersions }>

/** @property waits sinks keep topics of their own, as former versions know them, while a process of such a version lives */
type SavedRouting = Readonly<{ version: SavedVersion; waits: boolean }>

/**
 * Puts what the sinks of a database are to receive into a routing version; the source switches at its mark. Read under
 * the database's lock, so that a process that has read before an edit can't put an older state above a newer one.
 */
export async function saveRouting(
  store: Pick<Store, 'transaction'>,
  resources: Pick<ResourceStore, 'load' | 'loaded'>,
  of: Routed,
): Promise<SavedRouting> {
  const lock = { table: 'source_database', id: of.databaseId, how: 'no key update' } as const
  for (;;) {
    try {
      return await store.transaction((query) => nextRouting(query, resources, of), lock)
    } catch (error) {
      if (!isOvertaken(error)) throw error // else it is made from the newer one
    }
  }
}

async function nextRouting(
  query: Query,
  resources: Pick<ResourceStore, 'load' | 'loaded'>,
  { databaseId, versions }: Routed,
): Promise<SavedRouting> {
  const asked = () => Promise.all([unroutedGenerations(query, databaseId), waitsForFormer(query, databaseId), versions.newest(query)])
  const { loaded } = resources
  const [now, found] = await Promise.all([resources.load(query), asked()])
  // sinks that had to be read were read after their generations, and each of them has to have one
  const [known, waits, newest] = now === loaded ? found : await asked()
  const taking = now.sinks.filter((sink) => sink.databaseId === databaseId && sink.status !== 'disabled')
  const writes = new Writes(query)
  const routing = waits
    ? ownTopics(writes, taking, known)
    : await sharedStreams(query, writes, { sinks: taking, known, former: newest?.routing })
  const [version] = await Promise.all([versions.save(query, routing, newest), writes.done()])
  return { version, waits }
}

/** Statements of a transaction that are sent in one go, for none of them needs the answer to another. */
class Writes {
  readonly #query: Query
  readonly #asked: Promise<unknown>[] = []

  constructor(query: Query) {
    this.#query = query
  }

  add(sql: string, params: readonly unknown[]): void {
    const asked = ask(this.#query, sql, params)
    asked.catch(() => undefined) // told by `done`, unless what comes first fails before
    this.#asked.push(asked)
  }

  async done(): Promise<void> {
    await Promise.all(this.#asked)
  }
}

/** Tells whether an edit of a sink concerns its source in no way, so that no new routing version is needed. */
export function isRoutedAlike(before: Sink | undefined, after: Sink): boolean {
  const routing = (sink: Sink | undefined) =>
    !sink || sink.status === 'disabled' ? undefined : { shape: shapeOf(sink.id, sink), actions: sink.actions }
  return same(routing(before), routing(after))
}

/** The newest generation of a sink. @property topic undefined: no version has named it */
type Newest = Readonly<{ generation: number; shape: GenerationShape; topic: string | undefined }>

/**
 * The shape of a sink's newest generation, as it is stored: that of the sink may be older, because an edit may be stored after the
 * sinks were read and before their generations were.
 */
function shapeNow(sink: Sink, newest: Newest | undefined): Readonly<{ shape: GenerationShape; stream: StreamShape }> {
  const { shape } = newest ?? {}
  if (shape?.stream) return { shape, stream: shape.stream }
  const own = shapeOf(sink.id, sink)
  return { shape: own, stream: own.stream }
}

/**
 * Sinks of one shape read one stream. A shape that the newest version has keeps its stream; any other gets a new one, whose
 * topic never had that name before (docs/rules.md, rule 43).
 * @param of `known`: generations that the newest version does not have yet, and those of sinks that read nothing in it; any other sink
 *   goes on as that version says. `former`: the newest version
 */
async function sharedStreams(
  query: Query,
  writes: Writes,
  { sinks, known: unrouted, former }: Readonly<{ sinks: readonly Sink[]; known: ReadonlyMap<string, Newest>; former: Routing | undefined }>,
): Promise<Routing> {
  const read = new Map((former?.readers ?? []).map((reader) => [reader.sinkId, reader]))
  const byTopic = new Map((former?.streams ?? []).map((stream) => [stream.topic, stream]))
  let byShape: Map<string, RoutedStream> | undefined
  const streams = new Map<string, RoutedStream>()
  const readers: RoutedReader[] = []
  for (const sink of sinks) {
    const newest = unrouted.get(sink.id)
    const reader = newest ? undefined : read.get(sink.id)
    const kept = reader && byTopic.get(reader.topic)
    if (kept) {
      streams.set(kept.topic, kept)
      readers.push({ ...reader, actions: sink.actions })
      continue
    }
    const { shape, stream: wanted } = shapeNow(sink, newest)
    const text = streamText(wanted)
    byShape ??= sharedByShape(former) // most edits need none of it
    const stream = byShape.get(text) ?? { ...wanted, topic: await newTopic(query) }
    byShape.set(text, stream)
    const { topic } = stream
    streams.set(topic, stream)
    let generation = newest?.generation ?? 0
    if (!newest || (newest.topic !== undefined && newest.topic !== topic) || (newest.topic === topic && !read.has(sink.id))) {
      generation++
      writes.add('insert into tailrace.generation (sink_id, generation, shape, topic) values ($1::uuid, $2, $3::jsonb, $4)', [
        sink.id,
        generation,
        JSON.stringify(shape),
        topic,
      ])
    } else if (newest.topic === undefined)
      writes.add('update tailrace.generation set topic = $3 where sink_id = $1::uuid and generation = $2', [sink.id, generation, topic])
    readers.push({ sinkId: sink.id, generation, topic, actions: sink.actions })
  }
  return { streams: [...streams.values()], readers }
}

/** Gives the streams that sinks may share, by shape. */
function sharedByShape({ streams, readers }: Routing = { streams: [], readers: [] }): Map<string, RoutedStream> {
  const own = new Set(readers.flatMap((reader) => (ownTopic(reader) === reader.topic ? [reader.topic] : [])))
  return new Map(streams.flatMap((stream) => (own.has(stream.topic) ? [] : [[streamText(stream), stream] as const])))
}

/** Each generation has a topic of its own, and only what it takes is written there. */
function ownTopics(writes: Writes, sinks: readonly Sink[], known: ReadonlyMap<string, Newest>): Routing {
  const streams: RoutedStream[] = []
  const readers: RoutedReader[] = []
  for (const sink of sinks) {
    const newest = known.get(sink.id)
    const { shape, stream } = shapeNow(sink, newest)
    const { splitsKeyChanges } = shape
    const generation = newest?.generation ?? 1
    const topic = ownTopic({ sinkId: sink.id, generation })
    if (newest && newest.topic === undefined)
      writes.add('update tailrace.generation set topic = $3 where sink_id = $1::uuid and generation = $2', [sink.id, generation, topic])
    streams.push({ ...stream, topic, only: sink.id, actions: sink.actions, ...(splitsKeyChanges && { splitsKeyChanges }) })
    readers.push({ sinkId: sink.id, generation, topic, actions: sink.actions })
  }
  return { streams, readers }
}

/**
 * The newest generation of each sink that no stream of the newest version has yet, or that has no reader in it. Of any other sink
 * that version says it.
 */
async function unroutedGenerations(query: Query, databaseId: string): Promise<ReadonlyMap<string, Newest>> {
  const answer = await ask(
    query,
    `select g.sink_id, g.generation, g.shape, g.topic from tailrace.generation g join tailrace.sink s on s.id = g.sink_id
     where s.database_id = $1::uuid and g.topic is null
       and not exists (select from tailrace.generation n where n.sink_id = g.sink_id and n.generation > g.generation)
     union all
     select g.sink_id, g.generation, g.shape, g.topic from tailrace.sink s
     cross join lateral (select * from tailrace.generation g where g.sink_id = s.id order by g.generation desc limit 1) g
     where s.database_id = $1::uuid and g.topic is not null
       and s.id not in (select r.sink_id from tailrace.routed_reader r where r.database_id = $1::uuid and r.until is null)`,
    [databaseId],
  )
  const rows = rowsOf({ sink_id: 'text', generation: 'int', shape: readShape, topic: 'text?' }, answer)
  return new Map(rows.map(({ sink_id, ...row }) => [sink_id, { ...row, topic: topicOfGeneration(sink_id, row) }]))
}

/** A number that no topic ever had, and a tag that tells it from those of a state database that was put back. */
async function newTopic(query: Query): Promise<string> {
  const { rows } = await ask(query, `select ${NEW_TOPIC} as topic`, [])
  return rowOf({ topic: 'text' }, rows[0]).topic
}

/**
 * Processes that know nothing of streams would neither write nor read them. Once there are some there is no way back: such a
 * process that was taken for dead, and lives, owns nothing any more.
 */
async function waitsForFormer(query: Query, databaseId: string): Promise<boolean> {
  const { rows } = await ask(
    query,
    `select exists (select from tailrace.node where not streams and seen_at > clock_timestamp() - interval '${LIVE_MS} milliseconds')
       and not exists (
         select from tailrace.generation g join tailrace.sink s on s.id = g.sink_id
         where s.database_id = $1::uuid and g.topic <> g.sink_id || '.' || g.generation
       ) as waits`,
    [databaseId],
  )
  return rowOf({ waits: 'boolean' }, rows[0]).waits
}
