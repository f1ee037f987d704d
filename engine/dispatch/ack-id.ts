/**
 * The opaque token that names a delivered message: `<sink tag>.<generation>.<partition>.<offset>.<index>`, numbers in
 * base 36. It is a function of the message, so a redelivery and another owner use the same, and nothing is looked up.
 */
const DOT = 46
const MAX_LENGTH = 64

/** A short tag of a sink's id (FNV-1a, 32 bits), which makes another sink's ids unknown here. */
export function sinkTag(sinkId: string): string {
  let hash = 0x811c9dc5
  for (let i = 0; i < sinkId.length; i++) hash = Math.imul(hash ^ sinkId.charCodeAt(i), 0x01000193)
  return (hash >>> 0).toString(36)
}

/** What precedes offset and index in the ids of one partition. */
export const ackIdPrefix = (tag: string, generation: number, partition: number): string =>
  `${tag}.${generation.toString(36)}.${partition.toString(36)}.`

export type MessageName = Readonly<{ generation: number; partition: number; offset: number; index: number }>
/** The id of one message, for those who read few. */
export const messageId = (sinkId: string, { generation, partition, offset, index }: MessageName): string =>
  `${ackIdPrefix(sinkTag(sinkId), generation, partition)}${offset.toString(36)}.${index.toString(36)}`

/** How many base-36 digits a number has. */
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
export const refList = (): RefList => ({ offsets: [], indexes: [] })

/**
 * Sorts ack ids by partition. What isn't an id of this sink and generation is left out, whatever it is.
 * @returns the references named, by partition
 */
export function readAckIds(ids: readonly string[], tag: string, generation: number): Map<number, RefList> {
  const byPartition = new Map<number, RefList>()
  const start = `${tag}.${generation.toString(36)}.`
  let partition = -1
  let refs = refList()
  for (const id of ids) {
    if (id.length > MAX_LENGTH || !id.startsWith(start)) continue
    const partitionEnd = id.indexOf('.', start.length)
    const offsetEnd = id.indexOf('.', partitionEnd + 1)
    if (partitionEnd < 0 || offsetEnd < 0) continue
    const named = readDigits(id, start.length, partitionEnd)
    const offset = readDigits(id, partitionEnd + 1, offsetEnd)
    const index = readDigits(id, offsetEnd + 1, id.length)
    if (named < 0 || offset < 0 || index < 0) continue
    if (named !== partition) {
      partition = named
      const known = byPartition.get(named)
      refs = known ?? refList()
      if (!known) byPartition.set(named, refs)
    }
    refs.offsets.push(offset)
    refs.indexes.push(index)
  }
  return byPartition
}

/**
 * Sorts ack ids of all generations by the partition they name, "generation/partition" in decimal as in the key of a term.
 * What isn't an id of this sink is left out. Only the names are looked at: the owner reads the rest.
 */
export function ackIdsByPartition(ids: readonly string[], tag: string): Map<string, string[]> {
  const byPartition = new Map<string, string[]>()
  const byPrefix = new Map<string, string[] | undefined>()
  const start = `${tag}.`
  for (const id of ids) {
    if (id.length > MAX_LENGTH || !id.startsWith(start)) continue
    const generationEnd = id.indexOf('.', start.length)
    const partitionEnd = id.indexOf('.', generationEnd + 1)
    if (generationEnd < 0 || partitionEnd < 0) continue
    const prefix = id.slice(start.length, partitionEnd)
    if (!byPrefix.has(prefix)) {
      const generation = readDigits(id, start.length, generationEnd)
      const partition = readDigits(id, generationEnd + 1, partitionEnd)
      const named = generation < 0 || partition < 0 ? undefined : `${generation}/${partition}`
      byPrefix.set(prefix, named === undefined ? undefined : (byPartition.set(named, []).get(named) as string[]))
    }
    byPrefix.get(prefix)?.push(id)
  }
  return byPartition
}

/** References of messages of ended generations, side by side. */
export type OlderRefs = Readonly<{ generations: number[]; partitions: number[]; offsets: number[]; indexes: number[] }>

/** The ids of this sink that name a generation below `before`: parked messages keep theirs. What isn't one is left out. */
export function readOlderAckIds(ids: readonly string[], tag: string, before: number): OlderRefs {
  const refs: OlderRefs = { generations: [], partitions: [], offsets: [], indexes: [] }
  for (const id of ids) {
    if (id.length > MAX_LENGTH || !id.startsWith(`${tag}.`)) continue
    const parts = id.slice(tag.length + 1).split('.')
    const [generation = -1, partition = -1, offset = -1, index = -1] = parts.map((text) => readDigits(text, 0, text.length))
    if (parts.length !== 4 || generation < 1 || generation >= before || partition < 0 || offset < 0 || index < 0) continue
    refs.generations.push(generation)
    refs.partitions.push(partition)
    refs.offsets.push(offset)
    refs.indexes.push(index)
  }
  return refs
}

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
