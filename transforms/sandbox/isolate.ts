/**
 * One function in one isolate: an engine of its own for JavaScript, with a heap of its own, that shares nothing with this
 * process. Built from code, run on lines of messages, thrown away and built again at will.
 *
 *  - A call of the function has `callMs`. The limit is that of a run over many messages; whichever message it met is
 *    run again as the first of the next run, and only when it meets it there was it that message's own.
 *  - An isolate that has used up its memory is gone. It is built again and its messages are run one at a time, so that
 *    the one which needs too much fails and no other.
 */
import { randomBytes } from 'node:crypto'
import ivm from 'isolated-vm'
import { FUNCTION_KINDS, type SandboxKind } from '../../engine/state/function-kinds.ts'
import { encodings } from './encodings.ts'
import { runtime, type Runtime } from './runtime.ts'
import { MESSAGE_END } from './wire.ts'

/** Heap of one isolate. */
const HEAP_MB = 64
/** Result of one message, in characters and in bytes. */
export const MAX_RESULT = 4 * 1024 * 1024
/** Characters that come out of the isolate at once; one more result may stand behind them. */
const MAX_OUT = 1024 * 1024
const ENCODINGS = `(${encodings.toString()})`
const RUNTIME = `(${runtime.toString()})`

/** A function as it is built. */
export type Source = Readonly<{
  /** as the user's stack traces show it */
  file: string
  kind: SandboxKind
  /** JavaScript: an ES module with a default export */
  code: string
}>
/** Why a function could not be built; `line` and `column` count from 1. */
export type BuildFailure = Readonly<{ message: string; line?: number; column?: number }>

/** Messages: `{…}` and MESSAGE_END for each. */
type Piece = Readonly<{ text: string; longIntegers: LongIntegers }>
/** Where integers are quoted (`long-integers.ts`): in members of these names, or they may be at any depth. */
export type LongIntegers = readonly string[] | 'anywhere' | 'nowhere'

/** The outcome of a piece of a batch. @property out the runtime's lines @property left of fewer messages, for the time is over or they are enough */
type PieceResult = { out: string; left: boolean }

/** The thread that an isolate runs in. */
export type Host = Readonly<{
  /** what one call of a function may take */
  callMs: number
  /** what stands before the digits of quoted integers: no message can hold it, for nobody knows it */
  mark: Buffer
  /** told when native code that can't be cut off is entered and left */
  enter: () => void
  leave: () => void
}>

/** A function that can't be built, and why. */
export class NotBuilt extends Error {
  readonly failure: BuildFailure
  constructor(failure: BuildFailure) {
    super(failure.message)
    this.failure = failure
  }
}

/** A function, built in an isolate of its own. */
export class FunctionIsolate {
  readonly #host: Host
  /** its engine; one that has used up its memory is disposed */
  readonly engine: ivm.Isolate
  readonly #run: ivm.Reference<Runtime['run']>
  readonly #rest: ivm.Reference<Runtime['rest']>

  /** @throws NotBuilt */
  constructor({ file, kind, code }: Source, host: Host) {
    this.#host = host
    this.engine = new ivm.Isolate({ memoryLimit: HEAP_MB, onCatastrophicError: () => process.kill(process.pid, 'SIGKILL') })
    host.enter()
    try {
      const context = this.engine.createContextSync()
      context.evalSync(`${ENCODINGS}(${JSON.stringify(randomBytes(32).toString('hex'))})`)
      const inside = context.evalSync(`${RUNTIME}(${JSON.stringify(host.mark.toString())})`, { reference: true })
      this.#run = inside.getSync('run', { reference: true })
      this.#rest = inside.getSync('rest', { reference: true })
      const module = this.#compiled(code, file)
      module.instantiateSync(context, (specifier) => {
        const way = specifier === 'tailrace' ? 'write "import type", it has types only' : 'bundle it by "tailrace function build"'
        throw new NotBuilt({
          message: `can not import "${specifier}": a function has no imports; ${way}`,
          ...placeOf(code, specifier),
        })
      })
      module.evaluateSync({ timeout: host.callMs })
      const attach = inside.getSync('attach', { reference: true })
      const exported = module.namespace.getSync('default', { reference: true })
      const { answers, noun } = FUNCTION_KINDS[kind]
      const wrong = attach.applySync(undefined, [exported.derefInto(), answers, noun], { timeout: host.callMs })
      if (wrong !== '') throw new NotBuilt({ message: String(wrong), ...placeOf(code, 'export default') })
    } catch (error) {
      this.dispose()
      throw error instanceof NotBuilt ? error : new NotBuilt(failureOf(error, file, host.callMs))
    } finally {
      host.leave()
    }
  }

  /**
   * Runs messages until `until` (ms since the epoch), at least one.
   * @param tail of their metadata, JSON
   * @param most it ends when it has so many characters, too
   */
  run({ text: lines, longIntegers }: Piece, { tail, until, most }: Readonly<{ tail: string; until: number; most: number }>): PieceResult {
    const maxOut = Math.min(most, MAX_OUT)
    const keys = typeof longIntegers === 'string' ? longIntegers : JSON.stringify(longIntegers)
    let out = ''
    for (let done = 0; ;) {
      this.#host.enter()
      let more: string
      let left = true
      try {
        more = this.#run.applySync(undefined, [lines, tail, done, until, MAX_RESULT, maxOut, keys], { timeout: this.#host.callMs })
        left = more[0] === '!'
        more = more.slice(1)
      } catch (error) {
        if (this.engine.isDisposed) throw error
        this.#host.enter()
        more = this.#rest.applySync(undefined, [], { timeout: this.#host.callMs })
        if (linesIn(more) === 0 || !isTimeout(error)) more += isTimeout(error) ? tooLong(this.#host.callMs) : thrown(error)
        left = done + linesIn(more) < messagesIn(lines)
      } finally {
        this.#host.leave()
      }
      out += more
      if (!left || Date.now() >= until || out.length >= most) return { out, left }
      done += linesIn(more)
    }
  }

  /** How many bytes its heap has, with what hangs on it. */
  get bytes(): number {
    const { total_heap_size, externally_allocated_size } = this.engine.getHeapStatisticsSync()
    return total_heap_size + externally_allocated_size
  }

  dispose(): void {
    if (!this.engine.isDisposed) this.engine.dispose()
  }

  #compiled(code: string, file: string): ivm.Module {
    return this.engine.compileModuleSync(code, { filename: file })
  }
}

const tooLong = (callMs: number): string => `-${JSON.stringify({ code: 'FUNCTION_TIMEOUT', message: `it ran longer than ${callMs} ms` })}\n`
/** The line of a message that needs more than the heap has. */
export const OUT_OF_MEMORY = `-${JSON.stringify({ code: 'FUNCTION_MEMORY', message: `it needs more than ${HEAP_MB} MB` })}\n`
const thrown = (error: unknown): string => `-${JSON.stringify({ message: error instanceof Error ? error.message : String(error) })}\n`

const isTimeout = (error: unknown): boolean => error instanceof Error && error.message === 'Script execution timed out.'

/** Counts the messages of a piece. */
export const messagesIn = (text: string): number => text.split(END).length - 1
const END = String.fromCharCode(MESSAGE_END)

/** Counts the messages that lines are about. */
function linesIn(out: string): number {
  let count = 0
  for (let at = 0; at < out.length; at = out.indexOf('\n', at) + 1) if (out[at] !== '#') count++
  return count
}

/** Reads why code could not be built. A syntax error of V8 ends in `[file:line:column]`; one that was thrown has a stack. */
function failureOf(error: unknown, file: string, callMs: number): BuildFailure {
  if (!(error instanceof Error)) return { message: String(error) }
  if (isTimeout(error)) return { message: `its module ran longer than ${callMs} ms before it was there` }
  const place = placeIn(`${error.message}\n${error.stack ?? ''}`, file)
  const message = error.message.replace(/ \[[^[\]]*:\d+:\d+\]$/, '')
  return { message: /disposed during execution/.test(message) ? `its module needs more than ${HEAP_MB} MB` : message, ...place }
}

/** Finds the first place in the user's own source that a text names. */
export function placeIn(text: string, file: string): { line?: number; column?: number } {
  for (let at = text.indexOf(`${file}:`); at >= 0; at = text.indexOf(`${file}:`, at + 1)) {
    const [, line, column] = /^:(\d+):(\d+)/.exec(text.slice(at + file.length, at + file.length + 20)) ?? []
    if (line !== undefined && column !== undefined) return { line: Number(line), column: Number(column) }
  }
  return {}
}

function placeOf(code: string, what: string): { line?: number; column?: number } {
  const at = code.indexOf(what)
  if (at < 0) return {}
  const before = code.slice(0, at).split('\n')
  return { line: before.length, column: (before.at(-1) ?? '').length + 1 }
}
