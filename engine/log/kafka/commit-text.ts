/**
 * A commit as the text that stands beside its offset in Kafka. Brokers take 4,096 characters (offset.metadata.max.bytes), so
 * it is dense: numbers of variable length, finished ranges as distances, deflated when that helps, in base64. A commit that
 * is still too long goes whole into the state database, and the text says that it is there.
 *
 *   text     "T1" · base64 of: kind u8 (0 plain, 1 deflated) · body
 *   body     flags (1: ranges and messages in flight are in the checkpoint, 2: in flight known) · number · term
 *            next index · accepted: history, lsn, idx + 1, part · handed out: offset − next offset, index
 *            count · ranges: from, to, each as a step from what stands before: 0 · index step, or offset step · index
 *            count · in flight: step as in ranges · ms · origin + 1 (generation, partition) or 0
 *            parked, if it is known: older versions don't read so far
 */
import { constants, deflateRawSync, inflateRawSync } from 'node:zlib'
import { EngineError, codeOf } from '../../errors.ts'
import type { Commit, FinishedRange, InFlight, MessageRef } from '../log.ts'
import { PART } from '../../position.ts'

/** Holds a commit and its place among those of its owner: (term, number) grows. */
export type Numbered = Readonly<{ commit: Commit; number: number }>
/** @property isWhole false: the rest is in the checkpoint of the same owner with this number or a later one */
type ReadCommit = Numbered & Readonly<{ isWhole: boolean }>

const PREFIX = 'T1'
const PLAIN = 0
const DEFLATED = 1
const FLAG = { elsewhere: 1, inFlight: 2 } as const
/** Below this deflating costs more than it saves. */
const DEFLATE_FROM_BYTES = 600

/** Writes the text of a commit. @param maxLength characters; what is longer leaves out ranges and messages in flight */
export function commitToText({ commit, number }: Numbered, maxLength: number): { text: string; isWhole: boolean } {
  const text = textOf(bodyOf(commit, number, true))
  if (text.length <= maxLength) return { text, isWhole: true }
  return { text: textOf(bodyOf(commit, number, false)), isWhole: false }
}

/** Reads the text beside an offset. @returns undefined: it isn't ours. @throws EngineError LOG_TOO_NEW */
export function commitFromText(text: string | null, offset: number): ReadCommit | undefined {
  if (!text || !/^T\d/.test(text)) return undefined
  if (!text.startsWith(PREFIX))
    throw new EngineError(
      'LOG_TOO_NEW',
      `a commit in Kafka has the form ${text.slice(0, 2)}; this version of Tailrace reads the form ${PREFIX}`,
    )
  try {
    const bytes = Buffer.from(text.slice(PREFIX.length), 'base64')
    return read(new Reader(bytes[0] === DEFLATED ? inflateRawSync(bytes.subarray(1)) : bytes.subarray(1)), offset)
  } catch (error) {
    if (error instanceof RangeError || codeOf(error)?.startsWith('Z_')) return undefined
    throw error
  }
}

function textOf(body: Buffer): string {
  const deflated = body.length < DEFLATE_FROM_BYTES ? body : deflateRawSync(body, { level: constants.Z_BEST_SPEED })
  const kind = deflated.length < body.length ? DEFLATED : PLAIN
  return PREFIX + Buffer.concat([Buffer.of(kind), kind === DEFLATED ? deflated : body]).toString('base64')
}

function bodyOf(commit: Commit, number: number, whole: boolean): Buffer {
  const w = new Writer()
  const { next, accepted, handedOut, finished, inFlight, term, parked } = commit
  w.number((whole ? 0 : FLAG.elsewhere) | (inFlight ? FLAG.inFlight : 0))
  w.number(number)
  w.number(term)
  w.number(next.index)
  w.number(accepted.history)
  w.bigint(accepted.lsn)
  w.number(accepted.idx + 1) // a generation may open at -1, before the first change of a transaction
  w.number(accepted.part)
  w.signed(handedOut.offset - next.offset)
  w.number(handedOut.index)
  w.number(whole ? finished.length : 0)
  let last: MessageRef = next
  for (const { from, to } of whole ? finished : []) {
    w.step(last, from)
    w.step(from, to)
    last = to
  }
  w.number(whole ? (inFlight?.length ?? 0) : 0)
  last = next
  for (const { message, invisibleForMs, origin } of whole ? (inFlight ?? []) : []) {
    w.step(last, message)
    last = message
    w.number(Math.max(0, Math.round(invisibleForMs)))
    w.number(origin ? 1 : 0)
    if (!origin) continue
    w.number(origin.generation)
    w.number(origin.partition)
  }
  if (parked !== undefined) w.number(parked)
  return w.bytes()
}

function read(r: Reader, offset: number): ReadCommit {
  const flags = r.number()
  const number = r.number()
  const term = r.number()
  const next = { offset, index: r.number() }
  const accepted = {
    history: r.number(),
    lsn: r.bigint(),
    idx: r.number() - 1,
    part: r.number() === PART.tombstone ? PART.tombstone : PART.row,
  }
  const handedOut = { offset: offset + r.signed(), index: r.number() }
  const finished: FinishedRange[] = []
  let last: MessageRef = next
  for (let left = r.number(); left > 0; left--) {
    const from = r.step(last)
    const to = r.step(from)
    finished.push({ from, to })
    last = to
  }
  const inFlight: InFlight[] = []
  last = next
  for (let left = r.number(); left > 0; left--) {
    const message = r.step(last)
    last = message
    const invisibleForMs = r.number()
    const origin = r.number() === 1 ? { generation: r.number(), partition: r.number() } : undefined
    inFlight.push({ message, invisibleForMs, ...(origin ? { origin } : {}) })
  }
  const isWhole = (flags & FLAG.elsewhere) === 0
  const known = isWhole && (flags & FLAG.inFlight) !== 0
  const parked = r.isAtEnd ? {} : { parked: r.number() }
  return { commit: { next, accepted, finished, handedOut, term, ...(known ? { inFlight } : {}), ...parked }, number, isWhole }
}

/** Numbers seven bits at a time, the lowest first. */
class Writer {
  #buffer = Buffer.allocUnsafe(1024)
  #length = 0

  number(value: number): void {
    this.#reserve()
    let rest = value
    while (rest > 0x7f) {
      this.#buffer[this.#length++] = (rest % 0x80) | 0x80
      rest = Math.floor(rest / 0x80)
    }
    this.#buffer[this.#length++] = rest
  }
  signed(value: number): void {
    this.number(value >= 0 ? value * 2 : -value * 2 - 1)
  }
  bigint(value: bigint): void {
    this.number(Number(value >> 32n))
    this.number(Number(value & 0xffff_ffffn))
  }
  /** From one message to another: mostly a later one of the same record. */
  step(from: MessageRef, to: MessageRef): void {
    const records = to.offset - from.offset
    const within = to.index - from.index
    if (records === 0 && within >= 0) this.number(within * 2)
    else {
      this.number((records >= 0 ? records * 2 : -records * 2 - 1) * 2 + 1)
      this.number(to.index)
    }
  }
  bytes(): Buffer {
    return this.#buffer.subarray(0, this.#length)
  }
  #reserve(): void {
    if (this.#length + 10 <= this.#buffer.length) return
    this.#buffer = Buffer.concat([this.#buffer, Buffer.allocUnsafe(this.#buffer.length)])
  }
}

class Reader {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }
  get isAtEnd(): boolean {
    return this.#at >= this.#bytes.length
  }
  /** @throws RangeError behind the end */
  number(): number {
    let value = 0
    for (let unit = 1; ; unit *= 0x80) {
      const byte = this.#bytes.readUInt8(this.#at++)
      value += (byte & 0x7f) * unit
      if (byte < 0x80) return value
    }
  }
  signed(): number {
    const value = this.number()
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2
  }
  bigint(): bigint {
    return (BigInt(this.number()) << 32n) | BigInt(this.number())
  }
  step(from: MessageRef): MessageRef {
    const value = this.number()
    if (value % 2 === 0) return { offset: from.offset, index: from.index + value / 2 }
    const records = (value - 1) / 2
    return { offset: from.offset + (records % 2 === 0 ? records / 2 : -(records + 1) / 2), index: this.number() }
  }
}
