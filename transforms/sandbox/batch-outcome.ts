/** What functions made of a batch: a state for each message, results as bytes where there are some, and failures. */
import type { ErrorCode } from '../../engine/errors.ts'
import { heldResults } from './held-results.ts'
import { ownPlace, type SourcePlace } from './source-position.ts'
import { onlyDecides, type FunctionKind, type SandboxKind } from '../../engine/state/function-kinds.ts'
import type { RunAnswer } from './sandbox.ts'
import { STATE } from './wire.ts'

/** Why a function could not finish one message. */
export type FunctionFailure = Readonly<{
  code: ErrorCode
  /** name of the function */
  name: string
  kind: FunctionKind
  /** what it threw, or what was done about it */
  text: string
}> &
  SourcePlace

/**
 * Where a result stands.
 * @property done of a large one that stands alone: frees its memory. Told once, when nobody reads it any more
 */
export type ResultPlace = Readonly<{ text: Buffer; start: number; end: number; done?: () => void }>

/** Results of one function: message i has `texts[part[i]]` from `starts[i]` to `ends[i]`. */
type Results = { readonly texts: Buffer[]; readonly part: Uint32Array; readonly starts: Uint32Array; readonly ends: Uint32Array }

/** Which messages of a call an outcome is about. */
type AnswerPart = Readonly<{ asked: number; at: number; count: number; firstStep: number }>

type NamedFunction = Readonly<{ name: string; kind: SandboxKind; code?: string }>

/** Smaller ones are left to the garbage collector. */
const FREED_FROM_BYTES = 256 * 1024
/** What the line of a result has beside it: its sign, and the end of the line. */
const FRAME_BYTES = 2
const NO_RESULTS: Results = { texts: [], part: new Uint32Array(), starts: new Uint32Array(), ends: new Uint32Array() }

/** Collects what functions made of the messages of one batch. */
export class BatchOutcome {
  readonly count: number
  readonly states: Uint8Array
  readonly failures = new Map<number, FunctionFailure>()
  /** what was printed while a message was worked on */
  readonly logs = new Map<number, string[]>()
  /** of each function, µs */
  readonly tookUs: number[]
  /** how many messages are decided, from the first */
  done = 0
  /** size of the answers about them */
  bytes = 0
  /** its other messages are left for another time */
  hasLeft = false
  readonly #functions: readonly NamedFunction[]
  readonly #results: (Results | undefined)[]

  constructor(functions: readonly NamedFunction[], count: number) {
    this.count = count
    this.states = new Uint8Array(count)
    this.#functions = functions
    this.tookUs = functions.map(() => 0)
    this.#results = functions.map(({ kind }) =>
      onlyDecides(kind)
        ? undefined
        : { texts: [], part: new Uint32Array(count), starts: new Uint32Array(count), ends: new Uint32Array(count) },
    )
  }

  /** Where a kind of functions stands among those of the batch; undefined: none of it is asked. */
  stepOf(kind: SandboxKind): number | undefined {
    const step = this.#functions.findIndex((fn) => fn.kind === kind)
    return step < 0 ? undefined : step
  }

  get isDone(): boolean {
    return this.hasLeft || this.done === this.count
  }

  /** Leaves the messages that are not decided for another time: it has enough results for once. */
  leaveRest(): void {
    this.states.fill(STATE.left, this.done)
    this.hasLeft = this.done < this.count
  }

  /** Finds the result of a function for a message. @param step place of the function; the message must be kept */
  result(step: number, i: number): ResultPlace {
    const { texts, part, starts, ends } = this.#results[step] ?? NO_RESULTS
    const text = texts[part[i] ?? 0]
    if (!text) throw new Error(`function ${step} has no result for message ${i}`)
    const place = { text, start: starts[i] ?? 0, end: ends[i] ?? 0 }
    const { buffer } = text
    const isAlone = place.end - place.start >= FREED_FROM_BYTES && text.length === place.end - place.start + FRAME_BYTES
    return isAlone && buffer instanceof ArrayBuffer ? { ...place, done: () => heldResults.free(buffer) } : place
  }

  /** Gives a copy of a result as text. */
  resultText(step: number, i: number): string {
    const { text, start, end } = this.result(step, i)
    return text.toString('utf8', start, end)
  }

  /** Fails a message by a function. */
  fail(i: number, step: number, failure: Omit<FunctionFailure, 'name' | 'kind'>): void {
    const fn = this.#functions[step]
    if (!fn) throw new Error(`there is no function ${step}`)
    const { name, kind } = fn
    this.states[i] = STATE.failed
    this.failures.set(i, { ...failure, name, kind })
  }

  /** Keeps a message although it failed: it goes on without the result of the function, and the failure is remembered. */
  keep(i: number): void {
    this.states[i] = STATE.kept
  }

  /**
   * Takes in what an answer says of the messages that come next here.
   * @param part which of the `asked` messages of the call are these: `count` of them, from `at` on; `firstStep`: which of
   * the functions was the first of the call
   */
  add({ header, body }: RunAnswer, { asked, at, count, firstStep }: AnswerPart): void {
    const { done: answered, failures, logs, tookUs, textBytes } = header
    const from = this.done
    const done = Math.min(count, answered - at)
    if (done <= 0) return
    this.bytes += body.byteLength
    const withResults = this.#results.slice(firstStep, firstStep + tookUs.length).filter((results) => results !== undefined)
    const statesAt = withResults.length * asked * 8
    let textAt = statesAt + asked
    for (const [r, results] of withResults.entries()) {
      const places = new Uint32Array(body.buffer, r * asked * 8, asked * 2)
      const bytes = textBytes[r] ?? 0
      results.part.fill(results.texts.length, from, from + done)
      results.texts.push(Buffer.from(body.buffer, textAt, bytes))
      results.starts.set(places.subarray(at, at + done), from)
      results.ends.set(places.subarray(asked + at, asked + at + done), from)
      textAt += bytes
    }
    this.states.set(new Uint8Array(body.buffer, statesAt + at, done), from)
    for (const { message, step, code, text, line, column } of failures) {
      if (message < at || message >= at + done) continue
      this.fail(from + message - at, firstStep + step, {
        code,
        text,
        ...ownPlace(this.#functions[firstStep + step]?.code ?? '', { line, column }),
      })
    }
    for (const [message, , texts] of logs) {
      if (message < at || message >= at + done) continue
      const i = from + message - at
      for (const { length } of texts) this.bytes += length
      this.logs.set(i, [...(this.logs.get(i) ?? []), ...texts])
    }
    for (const [k, us] of tookUs.entries()) this.tookUs[firstStep + k] = (this.tookUs[firstStep + k] ?? 0) + (us * done) / answered
  }
}
