/** `tailrace function test` as a shell sees it. */
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'

const bin = join(dirname(dirname(import.meta.dirname)), 'cli', 'tailrace.mjs')

async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'tailrace-function-'))
  return { write: async (name: string, text: string) => (await writeFile(join(path, name), text), join(path, name)), [Symbol.asyncDispose]: () => rm(path, { recursive: true }) } // prettier-ignore
}
const run = (...args: string[]) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [bin, 'function', ...args], { encoding: 'utf8' })
  return { code: status, out: stdout, err: stderr }
}

test('a function in a file runs on messages from another, and shows results, prints and failures', async () => {
  await using f = await folder()
  const file = await f.write(
    'cents.ts',
    'export default (a: string, r: { id: number; price: string }) => {\n  console.log(a)\n  return { id: r.id, cents: r.price.length }\n}',
  )
  const good = run('test', file, '--input', await f.write('one.json', '{"data": [{"ack_id": "x", "record": {"id": 7, "price": "1.50"}}]}'))
  assert.equal(good.code, 0, good.err)
  assert.match(good.out, /^ {2}insert\n\{\n {2}"id": 7,\n {2}"cents": 4\n\} +\d+ µs\n$/)
  const lines = run('test', file, '--input', await f.write('two.ndjson', '{"record": {"id": 1, "price": ""}}\n{"record": {"id": 2}}\n'))
  assert.equal(lines.code, 1)
  assert.match(lines.out, /✗ TypeError: Cannot read properties of undefined .*\(line 3, column \d+\)/)
  const broken = run('test', await f.write('broken.ts', 'export default (a => 1'))
  assert.deepEqual([broken.code, /^✗ .*broken\.ts: code Expected/.test(broken.out)], [1, true], broken.out)
  assert.deepEqual([run('test').code, run('try', file).code], [2, 2])
})

test('with --watch it runs again when its file changes', async () => {
  await using f = await folder()
  const file = await f.write('f.ts', 'export default () => "first"')
  const child = spawn(process.execPath, [bin, 'function', 'test', file, '--watch'], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    let out = ''
    const says = async (text: string) => {
      while (!out.includes(text)) out += String((await once(child.stdout, 'data'))[0])
    }
    await says('"first"')
    await f.write('f.ts', 'export default () => "second"')
    await says('"second"')
  } finally {
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
})
