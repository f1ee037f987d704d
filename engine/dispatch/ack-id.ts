/**
 * The opaque id that names a delivered message: `<sink tag>.<generation>.<partition>.<offset>.<index>`, numbers in
 * base 36. It is a function of the message, so a redelivery and another owner use the same, and nothing is looked up.
 * A token names the messages of a whole answer: for each partition such a beginning, with runs of messages behind it,
 * `<offset>.<first index>-<last index>`, joined by ","; partitions are joined by ";".
 */
import { EngineError } from '../errors.ts'

const DOT = 46
const DASH = 45
const COMMA = 44
/** The largest request has room for so many ids. */
const MAX_NAMED = 400_000

/** Makes a short tag of a sink's id (FNV-1a, 32 bits), by which ack ids of another sink are known as such. */
export function sinkTag(sinkId: string): string {
  let hash = 0x811c9dc5
  for (let i = 0; i < sinkId.length; i++) hash = Math.imul(hash ^ sinkId.charCodeAt(i), 0x01000193)
  return (hash >>> 0).toString(36)
}

/** Makes the beginning of all ack ids of one partition; offset and index follow it. */
export const ackIdPrefix = (tag: string, generation: number, partition: number): string =>
  `${tag}.${generation.toString(36)}.${partition.toString(36)}.`

type MessageName = Readonly<{ generation: number; partition: number; offset: number; index: number }>
/** Makes the ack id of one message, for callers that need few. */
export const messageId = (sinkId: string, { generation, partition, offset, index }: MessageName): string =>
  `${ackIdPrefix(sinkTag(sinkId), generation, partition)}${offset.toString(36)}.${index.toString(36)}`

/** Counts the base-36 digits of a number. */
export function digitCount(value: number): number {
  let digits = 1
  for (let bound = 36; value >= bound; bound *= 36) digits++
  return digits
}

/** Writes a number in base 36. @returns the place after it */
export function writeDigits(target: Uint8Array, at: number, value: number): number {
  const end = at + digitCount(value)
  let left = value
  for (let p = end - 1; p >= at; p--) {
    const next = Math.floor(left / 36)
    const digit = left - next * 36
    target[p] = digit < 10 ? 48 + digit : 87 + digit
    left = next
  }
  return end
}

/** References of messages of one partition, side by side: no object per message. */
export type RefList = { readonly offsets: number[]; readonly indexes: number[] }
/** Makes an empty list of references. */
export const refList = (): RefList => ({ offsets: [], indexes: [] })

/** Names messages of one partition, in their order, as a token does. @param prefix what their ids begin with, @see ackIdPrefix */
export function tokenOf(prefix: string, { offsets, indexes }: RefList): string {
  let token = ''
  for (let i = 0; i < offsets.length;) {
    const offset = offsets[i] as number
    const first = indexes[i] as number
    let last = first
    while (offsets[++i] === offset && indexes[i] === last + 1) last++
    const run = `${offset.toString(36)}.${first.toString(36)}${last > first ? `-${last.toString(36)}` : ''}`
    token += token === '' ? prefix + run : `,${run}`
  }
  return token
}
/** Stands between the tokens of several partitions. */
export const TOKENS_JOIN = ';'

/**
 * Takes tokens apart, and gives one ack id for each partition that the ids and tokens of a client name.
 * @throws EngineError REQUEST_INVALID: they are more than one request may name messages
 */
export function splitTokens(ids: readonly string[]): readonly string[] {
  if (!ids.some((id) => id.includes(TOKENS_JOIN))) return ids
  let left = MAX_NAMED - ids.length
  for (const id of ids)
    for (let at = id.indexOf(TOKENS_JOIN); at >= 0; at = id.indexOf(TOKENS_JOIN, at + 1)) if (--left < 0) throw tooManyNamed()
  return ids.flatMap((id) => id.split(TOKENS_JOIN))
}

/**
 * Sorts ack ids by partition. What isn't an id of this sink and generation is left out, whatever it is.
 * @returns the references named, by partition; ids that do not begin as those of this sink and generation
 * @throws EngineError REQUEST_INVALID: more messages are named than one request may
 */
export function readAckIds(
  ids: readonly string[],
  tag: string,
  generation: number,
): Readonly<{ refs: Map<number, RefList>; others: readonly string[] }> {
  const byPartition = new Map<number, RefList>()
  const others: string[] = []
  const start = `${tag}.${generation.toString(36)}.`
  const room = { left: MAX_NAMED }
  let partition = -1
  let refs = refList()
  for (const id of ids) {
    if (!id.startsWith(start)) {
      others.push(id)
      continue
    }
    const partitionEnd = id.indexOf('.', start.length)
    const named = partitionEnd < 0 ? -1 : readDigits(id, start.length, partitionEnd)
    if (named < 0) continue
    if (named !== partition) {
      partition = named
      refs = byPartition.get(named) ?? refList()
    }
    readRuns(id, partitionEnd + 1, refs, room)
    if (refs.offsets.length > 0) byPartition.set(named, refs)
  }
  return { refs: byPartition, others }
}

/**
 * Sorts ack ids of all generations by the partition they name, "generation/partition" in decimal as in the key of a term.
 * What isn't an id of this sink is left out. Only the names are looked at: the owner reads the rest.
 */
export function ackIdsByPartition(ids: readonly string[], tag: string): Map<string, string[]> {
  const byPartition = new Map<string, string[]>()
  const byPrefix = new Map<string, string[]>()
  const start = `${tag}.`
  for (const id of ids) {
    if (!id.startsWith(start)) continue
    const generationEnd = id.indexOf('.', start.length)
    const partitionEnd = id.indexOf('.', generationEnd + 1)
    if (generationEnd < 0 || partitionEnd < 0) continue
    const prefix = id.slice(start.length, partitionEnd)
    if (!byPrefix.has(prefix)) {
      const generation = readDigits(id, start.length, generationEnd)
      const partition = readDigits(id, generationEnd + 1, partitionEnd)
      const named: string[] = []
      byPrefix.set(prefix, named)
      if (generation >= 0 && partition >= 0) byPartition.set(`${generation}/${partition}`, named)
    }
    byPrefix.get(prefix)?.push(id)
  }
  return byPartition
}

/** References of messages of ended generations, side by side. */
export type OlderRefs = Readonly<{ generations: number[]; partitions: number[]; offsets: number[]; indexes: number[] }>

/**
 * Reads the ids of this sink that name a generation below `before`: parked messages keep their ids. What isn't one is left out.
 * @throws EngineError REQUEST_INVALID: more messages are named than one request may
 */
export function readOlderAckIds(ids: readonly string[], tag: string, before: number): OlderRefs {
  const refs: OlderRefs = { generations: [], partitions: [], ...refList() }
  const start = `${tag}.`
  const room = { left: MAX_NAMED }
  for (const id of ids) {
    if (!id.startsWith(start)) continue
    const generationEnd = id.indexOf('.', start.length)
    const partitionEnd = id.indexOf('.', generationEnd + 1)
    if (generationEnd < 0 || partitionEnd < 0) continue
    const generation = readDigits(id, start.length, generationEnd)
    const partition = readDigits(id, generationEnd + 1, partitionEnd)
    if (generation < 1 || generation >= before || partition < 0) continue
    readRuns(id, partitionEnd + 1, refs, room)
    while (refs.generations.length < refs.offsets.length) {
      refs.generations.push(generation)
      refs.partitions.push(partition)
    }
  }
  return refs
}

/** Reads `<offset>.<index>` and `<offset>.<first index>-<last index>`, joined by ",". What isn't one is left out. */
function readRuns(text: string, from: number, { offsets, indexes }: RefList, room: { left: number }): void {
  let begin = from // of the number that is read
  let offset: number | undefined
  let first: number | undefined
  for (let i = from; i <= text.length; i++) {
    const c = i < text.length ? text.charCodeAt(i) : COMMA
    if (c === DOT && offset === undefined) offset = readDigits(text, begin, i)
    else if (c === DASH && first === undefined) first = readDigits(text, begin, i)
    else if (c !== COMMA) continue
    else {
      const last = readDigits(text, begin, i)
      const index = first ?? last
      if (offset !== undefined && offset >= 0 && index >= 0 && last >= index) {
        room.left -= last - index + 1
        if (room.left < 0) throw tooManyNamed()
        for (let named = index; named <= last; named++) {
          offsets.push(offset)
          indexes.push(named)
        }
      }
      offset = first = undefined
    }
    begin = i + 1
  }
}

const tooManyNamed = () =>
  new EngineError('REQUEST_INVALID', `ack_ids must name at most ${MAX_NAMED.toLocaleString('en')} messages; more are named.`, {
    parameter: 'ack_ids',
  })

/** @returns the number, or -1: empty, a foreign character, a leading zero, or not a safe integer */
function readDigits(text: string, from: number, to: number): number {
  if (from >= to) return -1
  let value = 0
  for (let i = from; i < to; i++) {
    const c = text.charCodeAt(i)
    if (c === DOT) return -1
    const digit = c >= 48 && c <= 57 ? c - 48 : c >= 97 && c <= 122 ? c - 87 : -1
    if (digit < 0 || (digit === 0 && i === from && to > from + 1)) return -1
    value = value * 36 + digit
  }
  return Number.isSafeInteger(value) ? value : -1
}
