/**
 * A thread of the sandbox: takes what comes over a pipe of its own from the engine, one request after the other, and
 * keeps the isolates that it runs in. Every batch is read and written once, by the thread that works on it.
 */
import { randomBytes } from 'node:crypto'
import { flushCompileCache } from 'node:module'
import { parentPort, workerData } from 'node:worker_threads'
import { runBatch } from './batch-run.ts'
import { FunctionIsolate, NotBuilt, type BuildFailure, type FunctionKind, type Host } from './isolate.ts'
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

const { shared, place, fd, builds } = workerData as ThreadData
const { entered, busy, watched, threads, resident, maxBytes, callMs } = shared
const host: Host = {
  callMs,
  mark: Buffer.from(`\u007f${randomBytes(12).toString('hex')}:`),
  enter: () => void (entered[place] = Date.now()),
  leave: () => void (entered[place] = 0),
}
const pipe = new ThreadPipe(fd)
const isolates = new Isolates(host, () => maxBytes / Atomics.load(threads, 0))
const sources = new Map<string, KeyedSource>()

const WARM_UP = 'export default () => 1'
if (builds) check('warm-up', 'transform', WARM_UP)
else new FunctionIsolate({ file: 'warm-up', kind: 'transform', code: WARM_UP }, host).dispose()
flushCompileCache() // now, for the process is killed in the end
pipe.write({ type: 'ready' })
for (let received = pipe.read(); received; received = pipe.read()) take(received)

function take({ header: request, body }: Received): void {
  switch (request.type) {
    case 'define': {
      const { key, file, kind } = request
      return void sources.set(key, { key, file, kind, code: body.toString() })
    }
    case 'forget':
      sources.delete(request.key)
      return isolates.drop(request.key)
    case 'check': {
      const { failure, code } = atWork(() => check(request.file, request.kind, body.toString()))
      return pipe.write({ type: 'checked', call: request.call, ...(failure && { failure }) }, [Buffer.from(code)])
    }
    case 'run': {
      const { call, keys, count, tail } = request
      const used = keys.map((key) => sources.get(key) as KeyedSource)
      const { parts, ...told } = atWork(() => runBatch(used, { bytes: body, count, tail }, isolates))
      pipe.write({ type: 'ran', call, ...told, resident: resident[0] as number }, parts)
    }
  }
}

function atWork<T>(work: () => T): T {
  Atomics.store(busy, place, 1)
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
  if (Atomics.exchange(watched, 0, 1) === 0) parentPort?.postMessage('watch')
  try {
    return work()
  } finally {
    Atomics.store(busy, place, 0)
  }
}

function check(file: string, kind: FunctionKind, text: string): { failure?: BuildFailure; code: string } {
  try {
    const code = javascriptOf(text, kind)
    new FunctionIsolate({ file, kind, code }, host).dispose()
    return { code }
  } catch (error) {
    const failure = error instanceof NotBuilt ? error.failure : { message: error instanceof Error ? error.message : String(error) }
    return { failure, code: '' }
  }
}
