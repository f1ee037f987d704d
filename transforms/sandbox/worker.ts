/**
 * A worker of the sandbox's pool: one thread that keeps isolates by the key of their function and runs batches in them.
 * Batches come and go in shared memory.
 *
 *  - Isolates that were used longest ago are thrown away when all of them together pass the thread's share of memory.
 *  - An answer may be of fewer messages than asked for: whoever asked sends the others again, when it is their turn.
 *  - An isolate gets its messages in pieces: longer strings would go past the young generation of its heap, and stay
 *    there until it is collected whole.
 */
import { isAscii } from 'node:buffer'
import { workerData } from 'piscina'
import {
  FunctionIsolate,
  messagesIn,
  NotBuilt,
  OUT_OF_MEMORY,
  placeIn,
  type BuildFailure,
  type FunctionKind,
  type Host,
} from './isolate.ts'
import { mayHoldLongIntegers } from './long-integers.ts'
import { javascriptOf } from './source-text.ts'
import { MESSAGE_END, STATE, type MessageFailure } from './wire.ts'

/** What the pool's owner shares with its threads. */
export type Shared = Readonly<{
  /** when the thread of this place entered native code that can't be cut off (ms since the epoch), or 0 */
  entered: Float64Array<SharedArrayBuffer>
  /** places given out so far */
  places: Int32Array<SharedArrayBuffer>
  /** of all isolates of one thread */
  maxBytes: number
  /** what one call of a function may take */
  callMs: number
}>
export type SharedBytes = Uint8Array<SharedArrayBuffer>
export type SharedSource = Readonly<{ key: string; file: string; kind: FunctionKind; code: SharedBytes }>

export type CheckTask = Readonly<{ type: 'check'; file: string; kind: FunctionKind; body: SharedBytes }>
export type CheckResult = Readonly<{ failure?: BuildFailure; code: string }>
export type RunTask = Readonly<{
  type: 'run'
  sources: readonly SharedSource[]
  count: number
  tail: string
  body: SharedBytes
  /** where the answer goes if it fits */
  answer: SharedArrayBuffer
}>
export type RunResult = Readonly<{
  done: number
  tookUs: readonly number[]
  failures: readonly MessageFailure[]
  logs: readonly (readonly [message: number, step: number, texts: readonly string[]])[]
  textBytes: readonly number[]
  /** the body of the answer: `wire.ts` */
  answer: SharedArrayBuffer
  answerBytes: number
}>

/** A run ends after this, so that functions take turns. */
const SLICE_MS = 250
/** Below the size from which V8 keeps a string, of two bytes a character, outside the young generation. */
const PIECE_BYTES = 60_000
const COLLECT_AFTER_BYTES = 16_000_000

const { entered, places, maxBytes, callMs } = workerData as Shared
const place = Atomics.add(places, 0, 1) % entered.length
const host: Host = {
  callMs,
  enter: () => void (entered[place] = Date.now()),
  leave: () => void (entered[place] = 0),
}
/** in the order of their use */
const isolates = new Map<string, { isolate: FunctionIsolate; bytes: number }>()

javascriptOf('', 'transform') // what strips types is loaded before it is needed

export default function work(task: CheckTask | RunTask): CheckResult | RunResult {
  return task.type === 'check' ? check(task) : run(task)
}

function check({ file, kind, body }: CheckTask): CheckResult {
  try {
    const code = javascriptOf(Buffer.from(body).toString(), kind)
    new FunctionIsolate({ file, kind, code }, host).dispose()
    return { code }
  } catch (error) {
    const failure = error instanceof NotBuilt ? error.failure : { message: error instanceof Error ? error.message : String(error) }
    return { failure, code: '' }
  }
}

/** What a call has found out of its messages so far. */
type Found = {
  readonly states: Uint8Array
  readonly failures: MessageFailure[]
  readonly logs: [number, number, string[]][]
  done: number
}

function run({ sources, count, tail, body, answer }: RunTask): RunResult {
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.length)
  const found: Found = { done: count, states: new Uint8Array(count), failures: [], logs: [] }
  const tookUs: number[] = []
  const results: { places: Uint32Array; text: Buffer }[] = []
  for (const [step, source] of sources.entries()) {
    const started = performance.now()
    const live = keptOf(found)
    const text = runLines(source, linesOf(bytes, live, count), tail)
    const places = readLines(text, live, { step, file: source.file }, found)
    if (source.kind !== 'filter') results.push({ places, text })
    tookUs.push(Math.round((performance.now() - started) * 1000))
  }
  evict(sources)
  collect(results.reduce((sum, { text }) => sum + text.length, 0))
  const { done, states, failures, logs } = found
  const parts = [...results.map((result) => new Uint8Array(result.places.buffer)), states, ...results.map(({ text }) => text)]
  const answerBytes = parts.reduce((sum, part) => sum + part.length, 0)
  const memory = answer.byteLength >= answerBytes ? answer : new SharedArrayBuffer(answerBytes * 2)
  const out = new Uint8Array(memory)
  let at = 0
  for (const part of parts) {
    out.set(part, at)
    at += part.length
  }
  return {
    done,
    tookUs,
    failures: failures.filter(({ message }) => message < done),
    logs: logs.filter(([message]) => message < done),
    textBytes: results.map(({ text }) => text.length),
    answer: memory,
    answerBytes,
  }
}

/** @returns the runtime's lines, of fewer messages when time is up */
function runLines(source: SharedSource, lines: Buffer, tail: string): Buffer {
  const until = Date.now() + SLICE_MS
  const outs: string[] = []
  for (let at = 0; at < lines.length;) {
    const end = pieceEnd(lines, at)
    const { out, left } = runPiece(source, lines.subarray(at, end), tail, until)
    outs.push(out)
    at = end
    if (left || Date.now() >= until) break
  }
  return Buffer.from(outs.length === 1 ? (outs[0] as string) : outs.join(''))
}

function pieceEnd(lines: Buffer, at: number): number {
  if (lines.length - at <= PIECE_BYTES) return lines.length
  const last = lines.lastIndexOf(MESSAGE_END, at + PIECE_BYTES)
  return (last >= at ? last : lines.indexOf(MESSAGE_END, at)) + 1
}

function runPiece(source: SharedSource, bytes: Buffer, tail: string, until: number): { out: string; left: boolean } {
  const lines = bytes.toString(isAscii(bytes) ? 'latin1' : 'utf8')
  const hasLongIntegers = mayHoldLongIntegers(bytes)
  try {
    return isolateOf(source).run({ text: lines, hasLongIntegers }, tail, until)
  } catch (error) {
    if (error instanceof NotBuilt) return { out: notBuilt(error).repeat(messagesIn(lines)), left: false }
  }
  // its heap is full, by one message or by what it has kept: each for itself, so that only who needs too much fails
  let out = ''
  let at = 0
  do {
    const end = lines.indexOf(END, at) + 1
    try {
      out += isolateOf(source).run({ text: lines.slice(at, end), hasLongIntegers }, tail, 0).out
    } catch (error) {
      out += error instanceof NotBuilt ? notBuilt(error) : OUT_OF_MEMORY
    }
    at = end
  } while (at < lines.length && Date.now() < until)
  return { out, left: at < lines.length }
}

const notBuilt = ({ failure }: NotBuilt): string => `-${JSON.stringify({ ...failure, code: 'FUNCTION_INVALID' })}\n`

function isolateOf({ key, file, kind, code }: SharedSource): FunctionIsolate {
  const known = isolates.get(key)
  isolates.delete(key)
  if (known && !known.isolate.isDisposed) {
    isolates.set(key, known)
    return known.isolate
  }
  const isolate = new FunctionIsolate({ file, kind, code: Buffer.from(code).toString() }, host)
  isolates.set(key, { isolate, bytes: 0 })
  return isolate
}

/** Throws away what was used longest ago until the rest fits; what was used last stays. @param used just now: others are as they were */
function evict(used: readonly SharedSource[]): void {
  for (const { key } of used) {
    const kept = isolates.get(key)
    if (kept && !kept.isolate.isDisposed) kept.bytes = kept.isolate.bytes
  }
  let total = 0
  for (const { bytes } of isolates.values()) total += bytes
  for (const [key, { isolate, bytes }] of isolates) {
    if (total <= maxBytes || isolates.size === 1) return
    isolates.delete(key)
    isolate.dispose()
    total -= bytes
  }
}

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

/** The lines of those that are kept: all of them, or copied together. */
function linesOf(bytes: Buffer, kept: Uint32Array, count: number): Buffer {
  if (kept.length === 0) return bytes.subarray(0, 0)
  if (kept.length === count) return bytes
  const parts: Buffer[] = []
  let from = 0
  let line = 0
  let at = 0
  for (let k = 0; k < kept.length; k++) {
    const wanted = kept[k] as number
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
      printed = jsonOf(text, at + 1, end) as string[]
      at = end + 1
      continue
    }
    const message = live[read++] as number
    if (printed) logs.push([message, step, printed])
    printed = undefined
    if (sign === PLUS) {
      places[message] = at + 1
      places[count + message] = end
    } else if (sign === MINUS) {
      states[message] = STATE.failed
      failures.push({ message, step, ...failureOf(jsonOf(text, at + 1, end), file) })
    } else if (sign === ZERO) states[message] = STATE.dropped
    at = end + 1
  }
  if (read < live.length) found.done = live[read] as number
  return places
}

function jsonOf(text: Buffer, start: number, end: number): unknown {
  try {
    return JSON.parse(text.toString('utf8', start, end))
  } catch {
    return undefined // a function has changed the language inside its isolate
  }
}

type Told = { code?: MessageFailure['code']; name?: unknown; message?: unknown; stack?: unknown; line?: number; column?: number }

function failureOf(told: unknown, file: string): Omit<MessageFailure, 'message' | 'step'> {
  const { code = 'FUNCTION_FAILED', name, message, stack, line, column } = (typeof told === 'object' && told !== null ? told : {}) as Told
  const words = typeof message === 'string' ? message : 'it failed and what it threw can not be read'
  const text = typeof name === 'string' && name !== '' ? `${name}: ${words}` : words
  const place = line === undefined ? placeIn(typeof stack === 'string' ? stack : '', file) : { line, column }
  return { code, text, ...place }
}
