/**
 * Finds the place in a partition's log from which everything above a position, or committed at or after a time, comes. It
 * starts at a point below (replay-points.ts) and reads on, so that records which stand there twice don't mislead it.
 */
import type { Log, MessageRef, ReaderName, TopicName } from '../../log/log.ts'
import { Pack, type PackHeader } from '../../log/pack.ts'
import { comparePositions, type Position } from '../../position.ts'
import type { GenerationShape } from '../../state/generation-shape.ts'
import { mayHaveOthers, notOwn, ownCount, type Takes } from '../span.ts'
import type { ReplayPoint } from './replay-points.ts'

/** Says what is searched for: the first message above a position, or from a commit time on. */
export type Sought = Readonly<{ position: Position } | { fromUs: number }>

/** The first message that comes again. */
export type FirstMessage = Readonly<{ position: Position; commitTimeUs: number }>

/** Names the place from which a partition is read again. */
export type ReplayPlace = Readonly<{
  /** the first message that comes, or, when there is none yet, the next one */
  ref: MessageRef
  /** of the first message that comes */
  first: FirstMessage | undefined
  /** messages below `ref`, counted as the points count */
  messages: number
  /** what a point at its record says; its position is for the caller to give */
  point: Omit<ReplayPoint, 'position'>
}>

/** A generation in its stream, or in a topic of its own. */
type Read = Readonly<{
  topic: TopicName
  reader: ReaderName
  endsAt: Position | undefined
  takes: Takes
  begins: readonly number[]
  shape: Pick<GenerationShape, 'splitsKeyChanges'>
}>

const beginning = (offset: number): Omit<ReplayPoint, 'position'> => ({
  offset,
  neededFrom: offset,
  latestUs: 0,
  messages: 0,
  bytes: 0,
  reachedMs: 0,
})
/** Whether nothing of the generation comes from this record on. */
const isEnd = ({ topic, reader, endsAt }: Read, { isMarker, first }: PackHeader): boolean =>
  (isMarker && topic === reader) || (endsAt !== undefined && comparePositions(first, endsAt) >= 0)
const NEVER = new AbortController().signal

/**
 * Searches a partition for the first message of a replay. @param points of the partition, the lowest first; none: it has never been served
 * @throws EngineError LOG_UNREACHABLE, LOG_TOPIC_UNKNOWN
 */
export async function seek(
  log: Log,
  generation: Read,
  { partition, points }: Readonly<{ partition: number; points: readonly ReplayPoint[] }>,
  sought: Sought,
): Promise<ReplayPlace> {
  const { topic, reader, begins, shape } = generation
  const isBelow = (point: ReplayPoint) =>
    'position' in sought ? comparePositions(point.position, sought.position) <= 0 : point.latestUs < sought.fromUs
  const { position: _, ...start } = points.findLast(isBelow) ?? points[0] ?? { ...beginning(begins[partition] ?? 0), position: undefined }
  const { neededFrom, reachedMs } = start // of what follows it is not known where it begins, if it stands in parts
  let { offset, latestUs, messages, bytes } = start
  const { next } = await log.stats(reader, partition)
  for await (const record of log.read(topic, partition, offset, NEVER, next)) {
    const header = Pack.header(record.pack)
    const { count, last, maxCommitTimeUs } = header
    const point = { offset: record.offset, neededFrom, latestUs, messages, bytes, reachedMs }
    if (isEnd(generation, header)) return { ref: { offset: record.offset, index: 0 }, first: undefined, messages, point }
    const holds = count > 0 && ('position' in sought ? comparePositions(last, sought.position) > 0 : maxCommitTimeUs >= sought.fromUs)
    const pack = holds || mayHaveOthers(generation, header) ? Pack.decode(record.pack) : undefined
    const others = pack && notOwn({ ...generation, splitsKeyChanges: shape.splitsKeyChanges }, pack)
    const found = pack && holds ? firstOf(pack, others, sought) : undefined
    if (found) {
      const { index, ...first } = found
      return { ref: { offset: record.offset, index }, first, messages: messages + ownCount(index, others?.subarray(0, index)), point }
    }
    offset = record.offset + 1
    messages += ownCount(count, others)
    bytes += record.pack.length
    if (count > 0) latestUs = Math.max(latestUs, maxCommitTimeUs)
  }
  return { ref: { offset, index: 0 }, first: undefined, messages, point: { offset, neededFrom, latestUs, messages, bytes, reachedMs } }
}

function firstOf(pack: Pack, others: Uint8Array | undefined, sought: Sought): ({ index: number } & FirstMessage) | undefined {
  for (let index = 0; index < pack.count; index++) {
    if (others?.[index]) continue
    if ('position' in sought ? pack.compare(index, sought.position) <= 0 : pack.commitTimeUs(index) < sought.fromUs) continue
    return { index, position: pack.position(index), commitTimeUs: pack.commitTimeUs(index) }
  }
  return undefined
}

/** Reads the position of the first message of a record; undefined: there is none at or behind it. */
export async function firstAt(log: Log, generation: Read, partition: number, offset: number): Promise<Position | undefined> {
  const { topic, reader } = generation
  const { next } = await log.stats(reader, partition)
  for await (const record of log.read(topic, partition, offset, NEVER, next)) {
    const header = Pack.header(record.pack)
    if (isEnd(generation, header)) return undefined
    if (header.count > 0) return header.first
  }
  return undefined
}
