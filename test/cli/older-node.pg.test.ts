/** The command under a Node that is too old to run it: it starts the Node that came along, and is one with it. */
import assert from 'node:assert/strict'
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { globSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { test, type TestContext } from 'node:test'
import { createDatabase } from '../services/postgres.ts'

const COMMAND = join(dirname(dirname(import.meta.dirname)), 'cli', 'tailrace.mjs')
const older = (process.env['PATH'] ?? '')
  .split(delimiter)
  .flatMap((folder) => globSync(join(folder, 'node')))
  .find((node) => Number(/^v(\d+)/.exec(spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout)?.[1]) < 24)

type Service = Readonly<{
  outer: ChildProcess
  ended: Promise<[number | null, NodeJS.Signals | null]>
  inner: number
  innerEnded: Promise<unknown>
}>

async function started(t: TestContext, stateUrl: string, folder: string): Promise<Service> {
  const env = { ...process.env, PG_URL: stateUrl, TAILRACE_DATA: folder, SERVER_PORT: '0', TAILRACE_METRICS_PORT: '0' }
  const outer = spawn(older as string, [COMMAND, 'start'], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  t.after(() => outer.kill('SIGKILL'))
  const ended = once(outer, 'exit') as Service['ended']
  const lines = createInterface(outer.stdout)
  const innerEnded = once(lines, 'close') // both have the same standard output
  const up = Promise.withResolvers<void>()
  lines.on('line', (line) => line.includes(' is up') && up.resolve())
  await Promise.race([up.promise, innerEnded.then(() => Promise.reject(new Error('it ended before it was up')))])
  return { outer, ended, inner: Number(await readFile(join(folder, 'lock.pid'), 'utf8')), innerEnded }
}

test(
  'signals reach what runs, how it ended is how the command ends, and it does not outlive the command',
  { skip: older === undefined, timeout: 60_000 },
  async (t) => {
    await using state = await createDatabase()
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-older-'))
    try {
      for (const signal of ['SIGINT', 'SIGTERM'] as const) {
        const { outer, ended, innerEnded, inner } = await started(t, state.url, folder)
        assert.notEqual(inner, outer.pid)
        outer.kill(signal)
        assert.deepEqual(await ended, [0, null])
        await innerEnded
      }
      const crashed = await started(t, state.url, folder)
      process.kill(crashed.inner, 'SIGKILL')
      assert.deepEqual(await crashed.ended, [null, 'SIGKILL'])

      const killed = await started(t, state.url, folder)
      killed.outer.kill('SIGKILL')
      await killed.innerEnded
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  },
)

test(
  'a Ctrl-C that arrives from the terminal and from the command is one; it ends cleanly',
  { skip: older === undefined, timeout: 60_000 },
  async (t) => {
    await using state = await createDatabase()
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-older-'))
    try {
      const { outer, ended, inner } = await started(t, state.url, folder)
      process.kill(inner, 'SIGINT')
      outer.kill('SIGINT')
      assert.deepEqual(await ended, [0, null])
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  },
)
