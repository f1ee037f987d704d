/** Which test files share a process. */
import assert from 'node:assert/strict'
import { mkdir, mkdtempDisposable, readFile, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { together } from './together.ts'

test('a file that needs a server, has hooks at its top or touches its process runs alone, and the others share one', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-together-'))
  const texts = {
    'test/engine/lsn.test.ts': `test('a', () => {})`,
    'test/sinks/routing.test.ts': `describe('b', () => {\n  before(() => {})\n})`,
    'test/engine/hooks.test.ts': `before(() => {})`,
    'test/engine/settings.test.ts': `test('c', () => void process.env)`,
    'test/actors/clock.test.ts': `test('d', ({ mock }) => mock.timers.enable())`,
    'test/actors/sink.pg.test.ts': `test('e', () => {})`,
    'test/cli/main.test.ts': `test('f', () => {})`,
  }
  for (const [file, text] of Object.entries(texts)) {
    await mkdir(dirname(join(folder.path, file)), { recursive: true })
    await writeFile(join(folder.path, file), text)
  }
  const files = Object.keys(texts)
  const run = together(files, folder.path, folder.path)
  const made = run.shift() ?? ''
  assert.deepEqual(run, files.slice(2))
  const imported = [...(await readFile(made, 'utf8')).matchAll(/^import "file:.*\/(test\/.*)"$/gm)].map(([, file]) => file)
  assert.deepEqual(imported, files.slice(0, 2))
  assert.deepEqual(together(files.slice(1), folder.path, folder.path), files.slice(1), 'one alone shares nothing')
})
