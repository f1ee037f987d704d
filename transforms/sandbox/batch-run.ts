/**
 * Runs functions, one after the other, on the lines of one batch, in the isolates of this thread.
 *
 *  - An answer may be of fewer messages than asked for: whoever asked sends the others again, when it is their turn.
 *  - An isolate gets its messages in pieces: longer strings would go past the young generation of its heap, and stay
 *    there until it is collected whole.
 *  - What the isolates say is written where it is sent from, in memory that stays.
 */
import { isAscii } from 'node:buffer'
import { free } from '../../engine/body-memory.ts'
import { isObject } from '../../engine/json.ts'
import { onlyDecides } from '../../engine/state/function-kinds.ts'
import { MAX_RESULT, messagesIn, NotBuilt, OUT_OF_MEMORY, placeIn, type LongIntegers } from './isolate.ts'
import type { Isolates, KeyedSource } from './isolates.ts'
import { quoteLongIntegers } from './long-integers.ts'
import type { MessageFailure, RunResponse } from './response.ts'
import { MESSAGE_END, STATE } from './wire.ts'

/** @property bytes `{…}` and MESSAGE_END for each message; @property maxBytes what a function says of them ends there, and with one message more */
type Lines = Readonly<{ bytes: Buffer; count: number; tail: string; maxBytes: number }>
/** @property parts the body of the answer: `wire.ts`; valid until the next batch */
type BatchResult = Pick<RunResponse, 'done' | 'tookUs' | 'failures' | 'logs' | 'textBytes'> & Readonly<{ parts: readonly Uint8Array[] }>

/** A run ends after this, so that functions take turns. */
const SLICE_MS = 250
/** Below the size from which V8 keeps a string outside the young generation: one byte a character, and two. */
const ASCII_PIECE_BYTES = 120_000
const PIECE_BYTES = 60_000
const COLLECT_AFTER_BYTES = 32_000_000

/** What a call has found out of its messages so far. */
type Found = {
  readonly states: Uint8Array
  readonly failures: MessageFailure[]
  readonly logs: [number, number, string[]][]
  done: number
}

/** Runs functions on the messages of one call. */
export function runBatch(sources: readonly KeyedSource[], { bytes, count, tail, maxBytes }: Lines, isolates: Isolates): BatchResult {
  const found: Found = { done: count, states: new Uint8Array(count), failures: [], logs: [] }
  const tookUs: number[] = []
  const results: { places: Uint32Array; start: number; end: number }[] = []
  const quoted = quoteLongIntegers(bytes, isolates.host.mark)
  const longIntegers = quoted ? (quoted.keys ?? 'anywhere') : 'nowhere'
  output.clear()
  for (const [step, source] of sources.entries()) {
    const started = performance.now()
    const live = keptOf(found)
    const start = output.length
    runLines(source, { bytes: linesOf(quoted?.bytes ?? bytes, live, count), tail, longIntegers, most: start + maxBytes }, isolates)
    const places = readLines(output.from(start), live, { step, file: source.file }, found)
    if (onlyDecides(source.kind)) output.clear(start)
    else results.push({ places, start, end: output.length })
    tookUs.push(Math.round((performance.now() - started) * 1000))
  }
  isolates.evict(sources)
  collect(output.length)
  const { done, states, failures, logs } = found
  return {
    done,
    tookUs,
    failures: failures.filter(({ message }) => message < done),
    logs: logs.filter(([message]) => message < done),
    textBytes: results.map(({ start, end }) => end - start),
    parts: [...results.map(({ places }) => new Uint8Array(places.buffer)), states, output.from(0)],
  }
}

/** @property most the length of the output that is enough */
type PieceLines = Readonly<{ bytes: Buffer; tail: string; longIntegers: LongIntegers; most: number }>

/** Adds the lines of the runtime to the output: of fewer messages when time is up or they are enough. */
function runLines(source: KeyedSource, { bytes, ...others }: PieceLines, isolates: Isolates): void {
  const until = Date.now() + SLICE_MS
  for (let at = 0; at < bytes.length;) {
    const end = pieceEnd(bytes, at)
    const isLeft = runPiece(source, { bytes: bytes.subarray(at, end), until, ...others }, isolates)
    at = end
    if (isLeft || Date.now() >= until || output.length >= others.most) return
  }
}

function pieceEnd(lines: Buffer, at: number): number {
  const most = isAscii(lines.subarray(at, at + ASCII_PIECE_BYTES)) ? ASCII_PIECE_BYTES : PIECE_BYTES
  if (lines.length - at <= most) return lines.length
  const last = lines.lastIndexOf(MESSAGE_END, at + most)
  return (last >= at ? last : lines.indexOf(MESSAGE_END, at)) + 1
}

/** Runs one piece in the isolate. @returns whether messages are left, for the time is over or the others are enough */
function runPiece(source: KeyedSource, piece: PieceLines & Readonly<{ until: number }>, isolates: Isolates): boolean {
  const { bytes, tail, longIntegers, until, most } = piece
  const lines = bytes.toString(isAscii(bytes) ? 'latin1' : 'utf8')
  try {
    const { out, left } = isolates.of(source).run({ text: lines, longIntegers }, { tail, until, most: most - output.length })
    output.add(out)
    return left
  } catch (error) {
    if (error instanceof NotBuilt) {
      output.add(notBuilt(error).repeat(messagesIn(lines)))
      return false
    }
  }
  // its heap is full, by one message or by what it has kept: each for itself, so that only who needs too much fails
  let at = 0
  do {
    const end = lines.indexOf(END, at) + 1
    try {
      output.add(isolates.of(source).run({ text: lines.slice(at, end), longIntegers }, { tail, until: 0, most: 0 }).out)
    } catch (error) {
      output.add(error instanceof NotBuilt ? notBuilt(error) : OUT_OF_MEMORY)
    }
    at = end
  } while (at < lines.length && Date.now() < until && output.length < most)
  return at < lines.length
}

const notBuilt = ({ failure }: NotBuilt): string => `-${JSON.stringify({ ...failure, code: 'FUNCTION_INVALID' })}\n`

/** What isolates have said in a call: texts one behind the other, as UTF-8. */
class Output {
  readonly #kept: Buffer<ArrayBuffer> = Buffer.allocUnsafeSlow(KEPT_BYTES)
  #memory = this.#kept
  #length = 0

  get length(): number {
    return this.#length
  }

  /** @param length what stays */
  clear(length = 0): void {
    this.#length = length
    if (length === 0) this.#move(this.#kept)
  }

  add(text: string): void {
    const room = this.#memory.length - this.#length
    const most = text.length * 3 // of UTF-8 for a unit of UTF-16
    if (most > room) {
      const bytes = Buffer.byteLength(text)
      if (bytes > room) this.#move(Buffer.allocUnsafeSlow(this.#length + bytes + KEPT_BYTES))
    }
    this.#length += this.#memory.write(text, this.#length)
  }

  /** Goes on in other memory. What was made for a large answer is freed, for only a collection of this thread's whole heap would do so. */
  #move(memory: Buffer<ArrayBuffer>): void {
    const former = this.#memory
    if (memory === former) return
    former.copy(memory, 0, 0, this.#length)
    this.#memory = memory
    if (former !== this.#kept) free(former.buffer)
  }

  /** Gives what was added since it had that length; valid until it is cleared. */
  from(length: number): Buffer {
    return this.#memory.subarray(length, this.#length)
  }
}
const KEPT_BYTES = 1024 * 1024
const output = new Output()

let taken = 0
/** What comes out of isolates stands outside this thread's heap, where nothing counts it, until the heap is collected. */
function collect(bytes: number): void {
  taken += bytes
  if (taken < COLLECT_AFTER_BYTES) return
  taken = 0
  globalThis.gc?.()
}

// ── lines ─────────────────────────────────────────────────────────────────────────────────────────

const NEWLINE = 10
const END = String.fromCharCode(MESSAGE_END)
const [HASH, PLUS, MINUS, ZERO] = [0x23, 0x2b, 0x2d, 0x30]

function keptOf({ states, done }: Found): Uint32Array {
  const kept = new Uint32Array(done)
  let n = 0
  for (let i = 0; i < done; i++) if (states[i] === STATE.kept) kept[n++] = i
  return kept.subarray(0, n)
}

/** Gives the lines of the messages that are kept: all of them, or copied together. */
function linesOf(bytes: Buffer, kept: Uint32Array, count: number): Buffer {
  if (kept.length === 0) return bytes.subarray(0, 0)
  if (kept.length === count) return bytes
  const parts: Buffer[] = []
  let from = 0
  let line = 0
  let at = 0
  for (const wanted of kept) {
    if (line < wanted) {
      if (at > from) parts.push(bytes.subarray(from, at))
      for (; line < wanted; line++) at = bytes.indexOf(MESSAGE_END, at) + 1
      from = at
    }
    at = bytes.indexOf(MESSAGE_END, at) + 1
    line++
  }
  const last = bytes.subarray(from, at)
  return parts.length === 0 ? last : Buffer.concat([...parts, last])
}

/**
 * Reads what the runtime wrote, a line a message; those it has no line for are for later.
 * @returns where the result of each message stands in `text`: all beginnings, then all ends
 */
function readLines(text: Buffer, live: Uint32Array, { step, file }: { step: number; file: string }, found: Found): Uint32Array {
  const { states, failures, logs } = found
  const count = states.length
  const places = new Uint32Array(count * 2)
  let read = 0
  let printed: string[] | undefined
  for (let at = 0; at < text.length && read < live.length;) {
    const end = text[at + 1] === NEWLINE ? at + 1 : text.indexOf(NEWLINE, at)
    const sign = text[at]
    if (sign === HASH) {
      printed = textsOf(jsonOf(text, at + 1, end))
      at = end + 1
      continue
    }
    const message = live[read++] ?? 0
    if (printed) logs.push([message, step, printed])
    printed = undefined
    if (sign === PLUS && end - at > MAX_RESULT) {
      states[message] = STATE.failed
      failures.push({ message, step, code: 'FUNCTION_FAILED', text: `the result has ${end - at - 1} bytes, more than ${MAX_RESULT}` })
    } else if (sign === PLUS) {
      places[message] = at + 1
      places[count + message] = end
    } else if (sign === MINUS) {
      states[message] = STATE.failed
      failures.push({ message, step, ...failureOf(jsonOf(text, at + 1, end), file) })
    } else if (sign === ZERO) states[message] = STATE.dropped
    at = end + 1
  }
  found.done = live[read] ?? found.done
  return places
}

function jsonOf(text: Buffer, start: number, end: number): unknown {
  try {
    return JSON.parse(text.toString('utf8', start, end))
  } catch {
    return undefined // a function has changed the language inside its isolate
  }
}

/** What a function printed: nothing else, whatever it made of the language. */
const textsOf = (printed: unknown): string[] => (Array.isArray(printed) ? printed.filter((text) => typeof text === 'string') : [])

/** Words of the engine have a code; those of the runtime, which may be a function's, have none. */
const CODES = ['FUNCTION_TIMEOUT', 'FUNCTION_MEMORY', 'FUNCTION_INVALID'] as const

function failureOf(said: unknown, file: string): Omit<MessageFailure, 'message' | 'step'> {
  const { code: given, name, message, stack, line, column } = isObject(said) ? said : {}
  const code = CODES.find((known) => known === given) ?? 'FUNCTION_FAILED'
  const words = typeof message === 'string' ? message : 'it failed and what it threw can not be read'
  const text = typeof name === 'string' && name !== '' ? `${name}: ${words}` : words
  if (typeof line !== 'number') return { code, text, ...placeIn(typeof stack === 'string' ? stack : '', file) }
  return { code, text, line, ...(typeof column === 'number' && { column }) }
}
