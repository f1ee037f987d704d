/**
 * What a thread of the sandbox does: takes what comes over a pipe of its own from the engine, one request after the other, and
 * keeps the isolates that it runs in. Every batch is read and written once, by the thread that works on it.
 */
import { randomBytes } from 'node:crypto'
import { flushCompileCache } from 'node:module'
import { parentPort } from 'node:worker_threads'
import type { SandboxKind } from '../../engine/state/function-kinds.ts'
import { runBatch } from './batch-run.ts'
import { FunctionIsolate, NotBuilt, type BuildFailure, type Host } from './isolate.ts'
import { Isolates, type KeyedSource } from './isolates.ts'
import { ThreadPipe, type Received } from './pipe.ts'
import { javascriptOf } from './source-text.ts'

/** What the process shares with its threads. */
export type Shared = Readonly<{
  /** when the thread of this place entered native code that can't be cut off (ms since the epoch), or 0 */
  entered: Float64Array<SharedArrayBuffer>
  /** 1: the thread of this place is at work */
  busy: Int32Array<SharedArrayBuffer>
  /** 1: the process watches itself; a thread that finds 0 asks it to */
  watched: Int32Array<SharedArrayBuffer>
  /** threads that have begun */
  threads: Int32Array<SharedArrayBuffer>
  /** size of the process when it was last looked at, bytes */
  resident: Float64Array<SharedArrayBuffer>
  /** of all isolates of all threads */
  maxBytes: number
  /** what one call of a function may take */
  callMs: number
}>
/** @property builds what it is asked to check is TypeScript, too: what strips types is loaded before it is needed */
export type ThreadData = Readonly<{ shared: Shared; place: number; fd: number; builds: boolean }>

const WARM_UP = 'export default () => 1'

/** Takes the thread for good: returns when the engine has gone. */
export default function serve(data: ThreadData): void {
  new SandboxThread(data).serve()
}

class SandboxThread {
  readonly #shared: Shared
  readonly #place: number
  readonly #host: Host
  readonly #pipe: ThreadPipe
  readonly #isolates: Isolates
  readonly #sources = new Map<string, KeyedSource>()

  constructor({ shared, place, fd, builds }: ThreadData) {
    const { entered, threads, maxBytes, callMs } = shared
    this.#shared = shared
    this.#place = place
    this.#host = {
      callMs,
      mark: Buffer.from(`\u007f${randomBytes(12).toString('hex')}:`),
      enter: () => void (entered[place] = Date.now()),
      leave: () => void (entered[place] = 0),
    }
    this.#pipe = new ThreadPipe(fd)
    this.#isolates = new Isolates(this.#host, () => maxBytes / Atomics.load(threads, 0))
    if (builds) this.#check('warm-up', 'transform', WARM_UP)
    else new FunctionIsolate({ file: 'warm-up', kind: 'transform', code: WARM_UP }, this.#host).dispose()
    flushCompileCache() // now, for the process is killed in the end
  }

  serve(): void {
    this.#pipe.write({ type: 'ready' })
    for (let received = this.#pipe.read(); received; received = this.#pipe.read()) this.#take(received)
  }

  #take({ header: request, body }: Received): void {
    switch (request.type) {
      case 'define': {
        const { key, file, kind } = request
        return void this.#sources.set(key, { key, file, kind, code: body.toString() })
      }
      case 'forget':
        this.#sources.delete(request.key)
        return this.#isolates.drop(request.key)
      case 'check': {
        const { failure, code } = this.#atWork(() => this.#check(request.file, request.kind, body.toString()))
        return this.#pipe.write({ type: 'checked', call: request.call, ...(failure && { failure }) }, [Buffer.from(code)])
      }
      case 'run': {
        const { call, keys, count, tail, maxBytes } = request
        const used = keys.map((key) => this.#sourceOf(key))
        const { parts, ...result } = this.#atWork(() => runBatch(used, { bytes: body, count, tail, maxBytes }, this.#isolates))
        this.#pipe.write({ type: 'ran', call, ...result, resident: this.#shared.resident[0] ?? 0 }, parts)
      }
    }
  }

  #sourceOf(key: string): KeyedSource {
    const source = this.#sources.get(key)
    if (!source) throw new Error(`no code was defined for ${key}`)
    return source
  }

  #atWork<T>(work: () => T): T {
    const { busy, watched } = this.#shared
    Atomics.store(busy, this.#place, 1)
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
    if (Atomics.exchange(watched, 0, 1) === 0) parentPort?.postMessage('watch')
    try {
      return work()
    } finally {
      Atomics.store(busy, this.#place, 0)
    }
  }

  #check(file: string, kind: SandboxKind, text: string): { failure?: BuildFailure; code: string } {
    try {
      const code = javascriptOf(text, kind)
      new FunctionIsolate({ file, kind, code }, this.#host).dispose()
      return { code }
    } catch (error) {
      const failure = error instanceof NotBuilt ? error.failure : { message: error instanceof Error ? error.message : String(error) }
      return { failure, code: '' }
    }
  }
}
