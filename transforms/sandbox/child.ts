/**
 * A sandbox: the process that functions run in, a child of the engine that can be killed. It passes what comes over the
 * pipe to a Piscina pool, whose workers hold the isolates, and the answers back. It has no environment, opens nothing,
 * and ends with the pipe.
 *
 * It watches itself, for an isolate's own limits aren't enough: native code inside one can run on past its time limit, or
 * take memory that no limit counts. Every 50 ms, while something runs: a thread that has been in one call for twice the
 * time limit, or a resident size above the cap, ends the whole process.
 *
 *   argv: threads · time limit of a call, ms · cap of the resident size, bytes · share of all isolates, bytes
 */
import { writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import { Piscina } from 'piscina'
import { frame, FrameReader, type Request, type Response } from './wire.ts'
import type { CheckResult, CheckTask, RunResult, RunTask, Shared, SharedBytes, SharedSource } from './worker.ts'

const [threads, callMs, maxResident, maxIsolates] = process.argv.slice(2).map(Number) as [number, number, number, number]
const LOOK_EVERY_MS = 50
const READ_BYTES = 256 * 1024
/** workers that died are followed by others, each in the next place */
const PLACES = 64

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {}) // a terminal sends them to all; the engine's end is ours
try {
  writeFileSync('/proc/self/oom_score_adj', '1000') // before the engine, when the machine has no memory left
} catch {
  // not Linux, or not allowed
}

const shared: Shared = {
  entered: new Float64Array(new SharedArrayBuffer(8 * PLACES)),
  places: new Int32Array(new SharedArrayBuffer(4)),
  maxBytes: maxIsolates / threads,
  callMs,
}
const pool = new Piscina({
  filename: new URL(import.meta.url.endsWith('.ts') ? './worker.ts' : './worker.js', import.meta.url).href,
  minThreads: threads,
  maxThreads: threads,
  workerData: shared,
})
pool.on('error', () => process.exit(1)) // what no task answers for

/** Memory for one call, used again for the next: a batch makes no garbage here. */
type Slot = { body: SharedArrayBuffer; answer: SharedArrayBuffer }
const SLOT_BYTES = 256 * 1024
/** One that a huge message has made larger is not kept. */
const KEPT_BYTES = 4 * 1024 * 1024
const slots: Slot[] = []
const put = (used: Slot) => void (used.body.byteLength + used.answer.byteLength <= KEPT_BYTES && slots.push(used))
const newSlot = (): Slot => ({ body: new SharedArrayBuffer(SLOT_BYTES), answer: new SharedArrayBuffer(SLOT_BYTES) })
/** of the frame that is being read */
let slot: Slot = newSlot()

/** Bytes arrive in the same memory every time: the reader copies them to where they belong. */
const pipe: Socket = new Socket({
  ...{ fd: 3, readable: true, writable: true },
  onread: {
    buffer: Buffer.allocUnsafeSlow(READ_BYTES),
    callback: (count, bytes) => {
      reader.push(bytes.subarray(0, count))
      return true
    },
  },
})
const sources = new Map<string, SharedSource>()
let running = 0
let resident = 0
let watch: NodeJS.Timeout | undefined

const reader = new FrameReader<Request, SharedBytes>(
  (request, bytes) => {
    if (request.type === 'define') return new Uint8Array(new SharedArrayBuffer(bytes))
    if (slot.body.byteLength < bytes) slot.body = new SharedArrayBuffer(bytes * 2)
    return new Uint8Array(slot.body, 0, bytes)
  },
  (request, body) => {
    if (request.type === 'define') sources.set(request.key, { key: request.key, file: request.file, kind: request.kind, code: body })
    else if (request.type === 'forget') sources.delete(request.key)
    else {
      const taken = slot
      slot = slots.pop() ?? newSlot()
      void work(request, body, taken)
    }
  },
)
pipe.on('end', end)
pipe.on('error', end)
pipe.on('close', end)
await pool.run({ type: 'check', file: 'warm-up', kind: 'transform', body: shareable('export default () => 1') } satisfies CheckTask)
say({ type: 'ready' })

async function work(request: Extract<Request, { call: number }>, body: SharedBytes, taken: Slot): Promise<void> {
  running++
  watch ??= setInterval(look, LOOK_EVERY_MS)
  if (request.type === 'check') {
    const { call, file, kind } = request
    const { failure, code } = (await pool.run({ type: 'check', file, kind, body } satisfies CheckTask)) as CheckResult
    say({ type: 'checked', call, ...(failure && { failure }) }, [Buffer.from(code)])
    put(taken)
  } else {
    const { call, keys, count, tail } = request
    const task: RunTask = {
      type: 'run',
      sources: keys.map((key) => sources.get(key) as SharedSource),
      count,
      tail,
      body,
      answer: taken.answer,
    }
    const { answer, answerBytes, ...result } = (await pool.run(task)) as RunResult
    taken.answer = answer
    say({ type: 'ran', call, ...result, resident }, [new Uint8Array(answer, 0, answerBytes)], () => put(taken))
  }
  if (--running > 0) return
  clearInterval(watch)
  watch = undefined
}

function look(): void {
  const now = Date.now()
  if (shared.entered.some((since) => since > 0 && now - since > 2 * callMs)) kill('time')
  resident = process.memoryUsage.rss()
  if (resident > maxResident) kill('memory')
}

/** @param written the memory of the body is free again */
function say(header: Response, body?: readonly Uint8Array[], written?: () => void): void {
  const parts = frame(header, body)
  pipe.cork()
  for (const part of parts.slice(0, -1)) pipe.write(part)
  pipe.write(parts.at(-1) as Uint8Array, written)
  pipe.uncork()
}

function shareable(text: string): SharedBytes {
  const bytes = new Uint8Array(new SharedArrayBuffer(Buffer.byteLength(text)))
  bytes.set(Buffer.from(text))
  return bytes
}

/** What is written is in the kernel's hands when `write` returns: it arrives after this process has gone. */
function kill(reason: 'time' | 'memory'): never {
  say({ type: 'killed', reason })
  end()
}

/** Not by exit: that would wait for threads that don't end. */
function end(): never {
  process.kill(process.pid, 'SIGKILL')
  throw new Error('ended')
}
