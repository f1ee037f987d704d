/**
 * The engine's end of one sandbox process: starts it, hands calls to its threads, and says when and why it has gone. It has
 * one thread at first, and more when they are asked for. Nothing of this process reaches it: no environment but the folder of
 * compiled sources, no standard streams but stderr for what Node itself says, no open files (child.ts closes what it inherits), and
 * what else the system can keep from it (confinement.ts).
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { getCompileCacheDir } from 'node:module'
import { dirname, join } from 'node:path'
import { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { MB } from '../../engine/amounts.ts'
import { free, pagesOf } from '../../engine/body-memory.ts'
import type { SandboxKind } from '../../engine/state/function-kinds.ts'
import { confinement as ofProcess, type Confinement } from './confinement.ts'
import type { BuildFailure } from './isolate.ts'
import { responseOf, type Response, type RunResponse } from './response.ts'
import { frame, FrameReader, type Request } from './wire.ts'

/** What a sandbox may use. */
export type SandboxSettings = Readonly<{
  threads: number
  /** cap of its resident size */
  memoryMb: number
  /** what one call of a function may take: 1 second, but for tests */
  callMs?: number
  /** what the system keeps from it: that of this process, but for tests */
  confinement?: Confinement
}>
type SandboxOptions = SandboxSettings &
  Readonly<{
    /** code is checked in it, too */
    builds?: boolean
    /** a thread takes calls from now on */
    threadReady?: () => void
  }>

/** A function as calls name it: another text is another key. */
export type Callable = Readonly<{ key: string; name: string; kind: SandboxKind; code: string }>
type Call = Readonly<{
  functions: readonly Callable[]
  count: number
  /** `{…}` and MESSAGE_END for each message, in as many pieces as there are */
  lines: readonly Uint8Array[]
  /** rest of their metadata, JSON */
  tail: string
  /** the answer is of fewer messages when it has so many */
  maxBytes: number
}>
/** What a sandbox answered to a run. */
export type RunAnswer = Readonly<{ header: RunResponse; body: Uint8Array<ArrayBuffer> }>
/** What became of code that was built: why not, or the JavaScript of it. */
export type Checked = Readonly<{ failure: BuildFailure } | { failure?: undefined; code: string }>

/** Why a sandbox has gone. */
export type EndReason = 'time' | 'memory' | 'crash' | 'not started' | 'stopped'
/** What calls that were open get when their sandbox ends. */
export class SandboxEnded extends Error {
  readonly reason: EndReason
  /** the last words of the process */
  readonly words: string
  /** it did not start under its confinement, and the next one has less */
  readonly isLoosened: boolean
  constructor(reason: EndReason, words: string, isLoosened = false) {
    super(`the sandbox ended: ${reason}`)
    this.reason = reason
    this.words = words
    this.isLoosened = isLoosened
  }
}

const CALL_MS = 1_000
/** Of the sandbox's cap, what isolates may keep between calls. */
const ISOLATES_SHARE = 0.3
/** The sandbox watches itself; this is for one that can't even do that. */
const CALL_DEADLINE_MS = 20_000
const START_DEADLINE_MS = 60_000
const WORDS = 2_000
/** What comes over a pipe in such pieces is a large answer, whose pieces would be as much memory again until they are collected. */
const FREED_FROM_BYTES = 32 * 1024
/** Answers that have pages of their own. */
const LARGE_BYTES = MB
/** One thread at work is the rule, with a small heap: helpers for its collections cost more than they take off it. */
const FLAGS = ['--expose-gc', '--single-threaded-gc', '--disable-warning=ExperimentalWarning']
/** The first of its pipes, behind the standard streams: its own. */
const FIRST_PIPE = 3
const ONE_MORE = Buffer.alloc(1)
const allocate = (_header: Response, bytes: number) =>
  new Uint8Array(bytes > LARGE_BYTES ? pagesOf(bytes) : Buffer.allocUnsafeSlow(bytes).buffer, 0, bytes)
const child = fileURLToPath(new URL(import.meta.url.endsWith('.ts') ? './child.ts' : './child.js', import.meta.url))

/** Sources that were compiled once, and stripped of types: half the time of a start. In a folder beside the one that this process reads. */
function compileCache(): { NODE_COMPILE_CACHE?: string } {
  const folder = getCompileCacheDir()
  return folder === undefined ? {} : { NODE_COMPILE_CACHE: join(dirname(folder), 'sandbox') }
}

type Reader = FrameReader<Response, Uint8Array<ArrayBuffer>>
type Answered = Readonly<{ header: Response; body: Uint8Array<ArrayBuffer> }>
type Open = {
  readonly call: number
  resolve: (answer: Answered) => void
  reject: (error: Error) => void
  timer: NodeJS.Timeout
}
type Thread = {
  readonly pipe: Duplex
  /** code that it has been given */
  readonly defined: Set<string>
  isReady: boolean
  open: Open | undefined
}

/** One process that runs functions. */
export class Sandbox {
  /** settles when it takes calls; rejects with SandboxEnded */
  readonly ready: Promise<void>
  /** of the operating system; undefined: it could not be started */
  readonly pid: number | undefined
  /** always resolves */
  readonly ended: Promise<SandboxEnded>
  /** what its system could not keep from it, for people */
  readonly lacks: string
  readonly #process: ChildProcess
  /** of the process itself */
  readonly #pipe: Duplex
  readonly #threads: readonly Thread[]
  readonly #threadReady: (() => void) | undefined
  readonly #ready = Promise.withResolvers<void>()
  /** threads that have been asked for */
  #asked = 1
  #calls = 0
  #words = ''
  #reason: EndReason = 'not started'
  #gone: SandboxEnded | undefined
  /** it said what is no answer: nothing more of it is read */
  #isRefused = false

  constructor({ threads, memoryMb, callMs = CALL_MS, confinement = ofProcess, builds = false, threadReady }: SandboxOptions) {
    const bytes = memoryMb * MB
    const { level } = confinement
    this.lacks = level.lacks
    this.#threadReady = threadReady
    const limits = [threads, callMs, bytes, bytes * ISOLATES_SHARE, Number(builds)].map(String)
    const [program = process.execPath, ...args] = [...level.command, process.execPath, ...FLAGS, child, ...limits]
    this.#process = spawn(program, args, {
      stdio: ['ignore', 'ignore', 'pipe', 'pipe', ...Array.from({ length: threads }, () => 'pipe' as const)],
      env: { TZ: 'UTC', ...(level.isSameUser && compileCache()) },
      windowsHide: true,
    })
    this.pid = this.#process.pid
    const [own, ...pipes] = this.#process.stdio.slice(FIRST_PIPE).filter((pipe) => pipe instanceof Duplex)
    if (!own) throw new Error('a process without pipes')
    this.#pipe = own
    const reader = new FrameReader(responseOf, allocate, (header) => {
      if (header.type === 'killed') this.#reason = header.reason
    })
    this.#pipe.on('data', (chunk: Buffer) => this.#read(reader, chunk))
    this.#pipe.on('error', () => undefined) // its end says the same
    this.#threads = pipes.map((pipe) => this.#thread(pipe))
    this.#process.stderr?.setEncoding('utf8').on('data', (text: string) => (this.#words = (this.#words + text).slice(-WORDS)))
    this.#process.on('error', (error) => (this.#words += error.message))
    const starting = setTimeout(() => this.kill('not started'), START_DEADLINE_MS)
    this.ready = this.#ready.promise.finally(() => clearTimeout(starting))
    this.ready.catch(() => undefined)
    this.ended = new Promise((resolve) => {
      const end = (endedItself: boolean) => {
        const isLoosened = this.#reason === 'not started' && endedItself && confinement.weaken(level)
        this.#gone ??= new SandboxEnded(this.#reason, this.#words.trim(), isLoosened)
        this.#ready.reject(this.#gone)
        for (const { open } of this.#threads) {
          clearTimeout(open?.timer)
          open?.reject(this.#gone)
        }
        resolve(this.#gone)
      }
      this.#process.on('close', (code) => end(code !== null)) // after the pipes: what it said last has been read
      this.#process.on('error', (error: NodeJS.ErrnoException) => end(error.code === 'ENOENT'))
    })
  }

  get isGone(): boolean {
    return this.#gone !== undefined
  }

  /** How many threads take calls, busy or not. */
  get threads(): number {
    return this.#threads.filter(({ isReady }) => isReady).length
  }

  /** Whether there may be one more thread, and none is on its way. */
  get canGrow(): boolean {
    return !this.#gone && this.threads === this.#asked && this.#asked < this.#threads.length
  }

  /** Asks for one more thread, if there may be one. */
  grow(): void {
    if (!this.canGrow) return
    this.#asked++
    this.#pipe.write(ONE_MORE)
  }

  /** Runs functions on a thread that isn't busy; one that has run these functions goes first. @throws SandboxEnded */
  async run({ functions, count, lines, tail, maxBytes }: Call): Promise<RunAnswer> {
    const thread = this.#idleThread(functions)
    for (const { key, name, kind, code } of functions) {
      if (thread.defined.has(key)) continue
      thread.defined.add(key)
      this.#write(thread, { type: 'define', key, file: name, kind }, [Buffer.from(code)])
    }
    const keys = functions.map(({ key }) => key)
    const { header, body } = await this.#ask(thread, (call) =>
      this.#write(thread, { type: 'run', call, keys, count, tail, maxBytes }, lines),
    )
    if (header.type !== 'ran') throw this.#unasked(header)
    return { header, body }
  }

  /** Builds a function and throws it away. @param code TypeScript or JavaScript @throws SandboxEnded */
  async check({ name, kind, code }: Omit<Callable, 'key'>): Promise<Checked> {
    const thread = this.#idleThread()
    const { header, body } = await this.#ask(thread, (call) =>
      this.#write(thread, { type: 'check', call, file: name, kind }, [Buffer.from(code)]),
    )
    if (header.type !== 'checked') throw this.#unasked(header)
    const { failure } = header
    return failure ? { failure } : { code: Buffer.from(body.buffer).toString() }
  }

  /** Drops code that is not needed any more. */
  forget(key: string): void {
    for (const thread of this.#threads) if (thread.defined.delete(key)) this.#write(thread, { type: 'forget', key })
  }

  kill(reason: EndReason): void {
    this.#reason = reason
    this.#process.kill('SIGKILL')
  }

  async stop(): Promise<void> {
    this.kill('stopped')
    await this.ended
  }

  /** Reads what the sandbox says. What can't be an answer, or is larger than one may be, ends the sandbox, and the engine goes on. */
  #read(reader: Reader, chunk: Buffer): void {
    if (this.#isRefused) return
    try {
      reader.push(chunk)
      if (chunk.length >= FREED_FROM_BYTES && chunk.buffer instanceof ArrayBuffer) free(chunk.buffer) // a pipe gives each memory of its own
    } catch {
      this.#isRefused = true
      this.kill('memory')
    }
  }

  /** Ends a sandbox that answers what was not asked. */
  #unasked({ type }: Response): Error {
    this.kill('memory')
    return new Error(`a sandbox answered "${type}" to something else`)
  }

  #thread(pipe: Duplex): Thread {
    const thread: Thread = { pipe, defined: new Set(), isReady: false, open: undefined }
    const reader = new FrameReader(responseOf, allocate, (header, body) => this.#take(thread, header, body))
    pipe.on('data', (chunk: Buffer) => this.#read(reader, chunk))
    pipe.on('error', () => undefined) // the end of the process says the same
    return thread
  }

  #idleThread(functions: readonly Callable[] = []): Thread {
    const idle = this.#threads.filter(({ isReady, open }) => isReady && open === undefined)
    const knowing = idle.find(({ defined }) => functions.every(({ key }) => defined.has(key)))
    const thread = knowing ?? idle[0]
    if (!thread) throw this.#gone ?? new Error('every thread of the sandbox is busy')
    return thread
  }

  #ask(thread: Thread, write: (call: number) => void): Promise<Answered> {
    if (this.#gone) return Promise.reject(this.#gone)
    const call = ++this.#calls
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.kill('time'), CALL_DEADLINE_MS)
      thread.open = { call, resolve, reject, timer }
      write(call)
    })
  }

  #write({ pipe }: Thread, header: Request, body: readonly Uint8Array[] = []): void {
    if (pipe.writable === false) return // its end is on the way
    pipe.cork()
    for (const part of frame(header, body)) pipe.write(part)
    pipe.uncork()
  }

  #take(thread: Thread, header: Response, body: Uint8Array<ArrayBuffer>): void {
    if (header.type === 'ready') {
      this.#reason = 'crash' // from here on an end that nobody announces is one
      thread.isReady = true
      this.#ready.resolve()
      this.#threadReady?.()
      return
    }
    const { open } = thread
    if (!open || header.type === 'killed' || header.call !== open.call) return
    thread.open = undefined
    clearTimeout(open.timer)
    open.resolve({ header, body })
  }
}
