/**
 * A sandbox: the process that functions run in, a child of the engine that can be killed. Its threads, those of a Piscina pool,
 * hold the isolates; each is taken for good by one task, which serves a pipe from the engine. The process has no environment to
 * speak of, opens nothing, closes the files that the engine had open when it began, and ends with the pipe that is its own.
 *
 * It watches itself, for an isolate's own limits aren't enough: native code inside one can run on past its time limit, or
 * take memory that no limit counts. Every 50 ms, while something runs: a thread that has been in one call for twice the
 * time limit, or a resident size above the cap, ends the whole process.
 *
 *   argv: most threads · time limit of a call, ms · cap of the resident size, bytes · share of all isolates, bytes · 1: code is checked in it
 *   fd 3: its own pipe · 4 …: those of its threads
 */
import { closeSync, fstatSync, readdirSync, writeFileSync } from 'node:fs'
import { flushCompileCache } from 'node:module'
import { Socket } from 'node:net'
import { Piscina } from 'piscina'
import type { Shared, ThreadData } from './thread.ts'
import { frame } from './wire.ts'

const [most = 1, callMs = 0, maxResident = 0, maxBytes = 0, builds = 0] = process.argv.slice(2).map(Number)
const LOOK_EVERY_MS = 50
/** It goes on looking so long after the last thread was at work. */
const IDLE_LOOKS = 20
const FIRST_THREAD_FD = 4

closeFiles()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {}) // a terminal sends them to all; the engine's end is ours
try {
  writeFileSync('/proc/self/oom_score_adj', '1000') // before the engine, when the machine has no memory left
} catch {
  // not Linux, or not allowed
}

const integers = (count: number) => new Int32Array(new SharedArrayBuffer(4 * count))
const shared: Shared = {
  entered: new Float64Array(new SharedArrayBuffer(8 * most)),
  busy: integers(most),
  watched: integers(1),
  threads: integers(1),
  resident: new Float64Array(new SharedArrayBuffer(8)),
  maxBytes,
  callMs,
}
const pool = new Piscina<ThreadData, void>({
  filename: new URL(import.meta.url.endsWith('.ts') ? './thread.ts' : './thread.js', import.meta.url).href,
  minThreads: 1,
  maxThreads: most,
  atomics: 'disabled', // a thread gets one task
})
let watch: NodeJS.Timeout | undefined
let idleLooks = 0

const pipe = new Socket({ fd: 3, readable: true, writable: true })
pipe.on('data', (asked) => {
  for (let i = 0; i < asked.length; i++) begin()
})
pool.on('message', startWatch)
pipe.on('end', end)
pipe.on('error', end)
pipe.on('close', end)
begin()
flushCompileCache() // now, for it is killed in the end

/** Closes files of the engine. Those that it has open are open here as well, unless whoever opened them saw to it: LMDB, of the log, doesn't. */
function closeFiles(): void {
  for (const name of numbersIn('/dev/fd')) {
    const fd = Number(name)
    try {
      if (fd >= FIRST_THREAD_FD + most && fstatSync(fd).isFile()) closeSync(fd)
    } catch {
      // it was that of the folder
    }
  }
}

function numbersIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Begins one more thread, if there may be one. */
function begin(): void {
  const place = Atomics.load(shared.threads, 0)
  if (place === most) return
  Atomics.store(shared.threads, 0, place + 1)
  pool.run({ shared, place, fd: FIRST_THREAD_FD + place, builds: builds === 1 }).then(end, (error: Error) => {
    process.stderr.write(`${error.stack ?? error}\n`)
    end()
  })
}

function startWatch(): void {
  idleLooks = 0
  watch ??= setInterval(look, LOOK_EVERY_MS)
}

function look(): void {
  const now = Date.now()
  if (shared.entered.some((since) => since > 0 && now - since > 2 * callMs)) kill('time')
  shared.resident[0] = process.memoryUsage.rss()
  if (shared.resident[0] > maxResident) kill('memory')
  if (shared.busy.some((_, place) => Atomics.load(shared.busy, place) === 1)) idleLooks = 0
  else if (++idleLooks > IDLE_LOOKS) {
    clearInterval(watch)
    watch = undefined
    Atomics.store(shared.watched, 0, 0) // whoever goes to work from here on asks again
  }
}

/** Tells the engine why, and ends the process. What is written is in the hands of the kernel by then, and arrives afterwards. */
function kill(reason: 'time' | 'memory'): never {
  for (const part of frame({ type: 'killed', reason })) pipe.write(part)
  end()
}

/** Ends the process. Not by exit: that would wait for threads that don't end. */
function end(): never {
  process.kill(process.pid, 'SIGKILL')
  throw new Error('ended')
}
