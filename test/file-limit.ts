/**
 * Preloaded into the process of each test file by test/run.ts: one that still runs after its limit says what keeps it, and
 * ends. The runner itself would wait for ever for a process whose tests are over but which holds on to something, or in
 * which a loop lets nothing else run. In the latter no timer fires either, so a thread beside it looks where it is.
 */
import { writeSync } from 'node:fs'
import { Session } from 'node:inspector'
import { isMainThread, Worker, workerData } from 'node:worker_threads'

const { argv, env, stderr } = process
const limitMs = Number(env['TAILRACE_TEST_FILE_LIMIT_MS'])
const file = isMainThread ? (argv[1] ?? '') : String(workerData)
/** So long a process whose event loop turns has to end by itself. */
const GRACE_MS = 10_000
/** The main thread stops at the next statement, if it runs any. */
const PAUSES_WITHIN_MS = 2_000

if (limitMs > 0 && file.endsWith('.test.ts')) {
  if (!isMainThread) setTimeout(endBlocked, limitMs + GRACE_MS)
  else {
    setTimeout(endLate, limitMs).unref()
    new Worker(new URL(import.meta.url), { execArgv: [], workerData: file }).unref()
  }
}

function endLate(): void {
  const counts = Map.groupBy(process.getActiveResourcesInfo(), (kind) => kind)
  const held = [...counts].map(([kind, all]) => `${all.length} × ${kind}`).join(', ')
  stderr.write(`${file} still runs after ${limitMs / 1_000} s, and is ended; it holds ${held}\n`, () => process.exit(1))
}

function endBlocked(): void {
  const end = (where: string) => {
    writeSync(2, `${file} has blocked its event loop, and is ended after ${(limitMs + GRACE_MS) / 1_000} s. It is at ${where}\n`)
    process.kill(process.pid, 'SIGKILL')
  }
  const urls = new Map<string, string>()
  const session = new Session()
  session.connectToMainThread()
  session.on('Debugger.scriptParsed', ({ params: { scriptId, url } }) => urls.set(scriptId, url))
  session.on('Debugger.paused', ({ params: { callFrames } }) => {
    const frames = callFrames.map(
      ({ functionName, location }) => `${functionName} (${urls.get(location.scriptId)}:${location.lineNumber + 1})`,
    )
    if (frames.some((frame) => frame.includes('(file:'))) end(frames.join(' < '))
    else session.post('Debugger.stepInto') // between two steps of a loop that awaits
  })
  session.post('Debugger.enable')
  session.post('Debugger.pause')
  setTimeout(() => end('no statement: a call of native code'), PAUSES_WITHIN_MS)
}
