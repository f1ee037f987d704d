/** Finds a sink's own messages in the log without taking part in its delivery: which generations can be read, and which messages of a record are the sink's. */
import { READING, READING_COLUMNS, type Generations } from '../../engine/dispatch/generations.ts'
import { notOwn, type Span } from '../../engine/dispatch/span.ts'
import type { Log, LogRecord, TopicName } from '../../engine/log/log.ts'
import { Pack } from '../../engine/log/pack.ts'
import { comparePositions, type Position } from '../../engine/position.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import { ask } from '../../engine/state/asking.ts'
import type { GenerationShape } from '../../engine/state/generation-shape.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { splitKeyChanges } from '../partition/split-key-changes.ts'

/** A generation of a sink that can be read. @property opensAt nothing up to there is its own */
export type ReadableGeneration = Readonly<{ generation: number; topic: TopicName; shape: GenerationShape; opensAt: Position | undefined }>

/** Finds the generations of a sink whose places in the log are known, oldest first. @returns gone: how many have no topic any more */
export async function readableGenerations({
  sink,
  query,
  log,
}: Readonly<{ sink: Sink; query: Query; log: Log }>): Promise<Readonly<{ reads: readonly ReadableGeneration[]; gone: number }>> {
  const found = await ask(
    query,
    `select ${READING} from tailrace.generation g where g.sink_id = $1::text::uuid and g.lsn is not null order by g.generation`,
    [sink.id],
  )
  const topics = new Set((await log.topics()).map(({ topic }) => topic))
  const known = rowsOf(READING_COLUMNS, found)
  const reads = known.flatMap(({ generation, topic, shape, opens: opensAt }) =>
    topic !== undefined && topics.has(topic) ? [{ generation, topic, shape, opensAt }] : [],
  )
  return { reads, gone: known.length - reads.length }
}

/** Tells of records which of their messages are a sink's own. */
export class OwnMessages {
  readonly #sink: Sink
  readonly #generations: Pick<Generations, 'span'>
  readonly #spans = new Map<number, Span>()

  constructor(sink: Sink, generations: Pick<Generations, 'span'>) {
    this.#sink = sink
    this.#generations = generations
  }

  /** @returns undefined: the generation has ended here */
  async of(
    { generation, shape, topic }: ReadableGeneration,
    { pack: record }: LogRecord,
  ): Promise<Readonly<{ pack: Pack; places: readonly number[] }> | undefined> {
    const header = Pack.header(record)
    let span = this.#spans.get(generation)
    if (!span || span.version < header.routing || (header.isMarker && !span.endsAt)) {
      span = { ...(await this.#generations.span(generation)) }
      this.#spans.set(generation, { ...span, version: Math.max(span.version, header.routing) })
    }
    const isOwnTopic = topic === `${this.#sink.id}.${generation}`
    if ((header.isMarker && isOwnTopic) || (span.endsAt && comparePositions(header.first, span.endsAt) >= 0)) return undefined
    const pack = shape.splitsKeyChanges === true ? splitKeyChanges(Pack.shared(record)) : Pack.shared(record)
    const others = notOwn(span, pack)
    return { pack, places: Array.from({ length: pack.count }, (_, place) => place).filter((place) => others?.[place] !== 1) }
  }
}
