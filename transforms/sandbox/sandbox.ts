/**
 * The engine's end of one sandbox process: starts it, hands it calls, and says when and why it has gone. Nothing of this
 * process reaches it: no environment, no standard streams but stderr for what Node itself says, no open files.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import type { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'
import type { BuildFailure, FunctionKind } from './isolate.ts'
import { frame, FrameReader, type Request, type Response, type RunResponse } from './wire.ts'

export type SandboxSettings = Readonly<{
  threads: number
  /** cap of its resident size */
  memoryMb: number
  /** what one call of a function may take: 1 second, but for tests */
  callMs?: number
}>

/** A function as calls name it: another text is another key. */
export type Callable = Readonly<{ key: string; name: string; kind: FunctionKind; code: string }>
export type Call = Readonly<{
  functions: readonly Callable[]
  count: number
  /** `{…}` and MESSAGE_END for each message, in as many pieces as there are */
  lines: readonly Uint8Array[]
  /** rest of their metadata, JSON */
  tail: string
}>
export type Answer = Readonly<{ header: RunResponse; body: Uint8Array<ArrayBuffer> }>
export type Checked = Readonly<{ failure: BuildFailure } | { failure?: undefined; code: string }>

export type EndReason = 'time' | 'memory' | 'crash' | 'not started' | 'stopped'
/** What calls that were open get when their sandbox ends. */
export class SandboxEnded extends Error {
  readonly reason: EndReason
  /** the last words of the process */
  readonly words: string
  constructor(reason: EndReason, words: string) {
    super(`the sandbox ended: ${reason}`)
    this.reason = reason
    this.words = words
  }
}

const CALL_MS = 1_000
/** Of the sandbox's cap, what isolates may keep between calls. */
const ISOLATES_SHARE = 0.3
/** The sandbox watches itself; this is for one that can't even do that. */
const CALL_DEADLINE_MS = 20_000
const START_DEADLINE_MS = 60_000
const WORDS = 2_000
const MB = 1024 * 1024
const child = fileURLToPath(new URL(import.meta.url.endsWith('.ts') ? './child.ts' : './child.js', import.meta.url))

type Open = {
  resolve: (answer: { header: Response; body: Uint8Array<ArrayBuffer> }) => void
  reject: (error: Error) => void
  timer: NodeJS.Timeout
}

export class Sandbox {
  /** settles when it takes calls; rejects with SandboxEnded */
  readonly ready: Promise<void>
  /** always resolves */
  readonly ended: Promise<SandboxEnded>
  readonly #process: ChildProcess
  readonly #pipe: Duplex
  readonly #defined = new Set<string>()
  readonly #open = new Map<number, Open>()
  readonly #ready = Promise.withResolvers<void>()
  #calls = 0
  #words = ''
  #reason: EndReason = 'not started'
  #gone: SandboxEnded | undefined

  constructor({ threads, memoryMb, callMs = CALL_MS }: SandboxSettings) {
    const bytes = memoryMb * MB
    this.#process = spawn(
      process.execPath,
      ['--expose-gc', '--disable-warning=ExperimentalWarning', child, ...[threads, callMs, bytes, bytes * ISOLATES_SHARE].map(String)],
      { stdio: ['ignore', 'ignore', 'pipe', 'pipe'], env: { TZ: 'UTC' }, windowsHide: true },
    )
    this.#pipe = this.#process.stdio[3] as Duplex
    const reader = new FrameReader<Response, Uint8Array<ArrayBuffer>>(
      (_header, bytes) => new Uint8Array(Buffer.allocUnsafeSlow(bytes).buffer),
      (header, body) => this.#take(header, body),
    )
    this.#pipe.on('data', (chunk: Buffer) => reader.push(chunk))
    this.#pipe.on('error', () => undefined) // its end says the same
    this.#process.stderr?.setEncoding('utf8').on('data', (text: string) => (this.#words = (this.#words + text).slice(-WORDS)))
    this.#process.on('error', (error) => (this.#words += error.message))
    const starting = setTimeout(() => this.kill('not started'), START_DEADLINE_MS)
    this.ready = this.#ready.promise.finally(() => clearTimeout(starting))
    this.ready.catch(() => undefined)
    this.ended = new Promise((resolve) => {
      const end = () => {
        this.#gone ??= new SandboxEnded(this.#reason, this.#words.trim())
        this.#ready.reject(this.#gone)
        for (const { reject, timer } of this.#open.values()) {
          clearTimeout(timer)
          reject(this.#gone)
        }
        this.#open.clear()
        resolve(this.#gone)
      }
      this.#process.on('close', end) // after the pipe: what it said last has been read
      this.#process.on('error', end)
    })
  }

  get pid(): number | undefined {
    return this.#process.pid
  }
  get isGone(): boolean {
    return this.#gone !== undefined
  }

  /** @throws SandboxEnded */
  async run({ functions, count, lines, tail }: Call): Promise<Answer> {
    for (const { key, name, kind, code } of functions) {
      if (this.#defined.has(key)) continue
      this.#defined.add(key)
      this.#write({ type: 'define', key, file: name, kind }, [Buffer.from(code)])
    }
    const keys = functions.map(({ key }) => key)
    const { header, body } = await this.#ask((call) => this.#write({ type: 'run', call, keys, count, tail }, lines))
    return { header: header as RunResponse, body }
  }

  /** Builds a function and throws it away. @param code TypeScript or JavaScript @throws SandboxEnded */
  async check({ name, kind, code }: Omit<Callable, 'key'>): Promise<Checked> {
    const { header, body } = await this.#ask((call) => this.#write({ type: 'check', call, file: name, kind }, [Buffer.from(code)]))
    const { failure } = header as Extract<Response, { type: 'checked' }>
    return failure ? { failure } : { code: Buffer.from(body.buffer).toString() }
  }

  /** Its code is not needed any more. */
  forget(key: string): void {
    if (this.#defined.delete(key)) this.#write({ type: 'forget', key })
  }

  kill(reason: EndReason): void {
    this.#reason = reason
    this.#process.kill('SIGKILL')
  }

  async stop(): Promise<void> {
    this.kill('stopped')
    await this.ended
  }

  #ask(write: (call: number) => void): Promise<{ header: Response; body: Uint8Array<ArrayBuffer> }> {
    if (this.#gone) return Promise.reject(this.#gone)
    const call = ++this.#calls
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.kill('time'), CALL_DEADLINE_MS)
      this.#open.set(call, { resolve, reject, timer })
      write(call)
    })
  }

  #write(header: Request, body: readonly Uint8Array[] = []): void {
    if (this.#pipe.writable === false) return // its end is on the way
    this.#pipe.cork()
    for (const part of frame(header, body)) this.#pipe.write(part)
    this.#pipe.uncork()
  }

  #take(header: Response, body: Uint8Array<ArrayBuffer>): void {
    if (header.type === 'ready') {
      this.#reason = 'crash' // from here on an end that nobody announces is one
      this.#ready.resolve()
      return
    }
    if (header.type === 'killed') {
      this.#reason = header.reason
      return
    }
    const open = this.#open.get(header.call)
    if (!open) return
    this.#open.delete(header.call)
    clearTimeout(open.timer)
    open.resolve({ header, body })
  }
}
