/** `tailrace function test` as a shell sees it. */
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, mkdtempDisposable, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { parseConfig } from '../../actors/config/config-document.ts'
import { functionText } from '../../cli/bundle.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { until } from '../waiting.ts'

async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'tailrace-function-'))
  return { path, write: async (name: string, text: string) => (await writeFile(join(path, name), text), join(path, name)), [Symbol.asyncDispose]: () => rm(path, { recursive: true }) } // prettier-ignore
}
const hasEsbuild = (() => {
  try {
    return createRequire(import.meta.url).resolve('esbuild') !== ''
  } catch {
    return false
  }
})()
const run = (...args: string[]) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [COMMAND, 'function', ...args], { encoding: 'utf8' })
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
  const kind = run('test', file, '--type', 'path')
  assert.deepEqual([kind.code, kind.err.startsWith('--type must be one of filter, ')], [2, true], kind.err)
})

test('what it was given is taken as it is shown elsewhere, and what it can not use is told in words', async () => {
  await using f = await folder()
  const route = await f.write('route.ts', 'export default (a, r) => ({ index_name: `goods-${r.id}` })')
  const shown = await f.write('shown.json', '{"id": "1-2-3", "message": {"record": {"id": 1234567890123456789}, "action": "update"}}')
  const routed = run('test', route, '--sink-type', 'meilisearch', '--input', shown)
  assert.equal(routed.code, 0, routed.out + routed.err)
  assert.match(routed.out, /"index_name": "goods-1234567890123456789"/)
  const given = await f.write('given.ts', 'export default (a, r, c, m) => [m.enrichment, m.database.hostname, m.consumer.name]')
  const example = run('test', given)
  assert.match(example.out, /^a transform, on an example .*"price":"19.90".*\n\[\n {2}null,\n {2}"localhost",\n {2}"example"\n\]/)
  for (const [args, words] of [
    [[route, '--input', join(f.path, 'nope.json')], /^ARGUMENT_INVALID: can't read .*nope\.json: there is no such file/],
    [[join(f.path, 'nope.ts')], /^ARGUMENT_INVALID: can't read .*nope\.ts: there is no such file/],
    [[await f.write('query.sql', 'select 1 where 1 = any($1)')], /^✗ .*query\.sql is a query, .*--database DATABASE/],
    [[given, '--table', 'goods'], /^--table needs --database/],
    [[given, '--input', await f.write('broken.json', '{"record": {"id": 1,}}')], /^✗ .*broken\.json is not JSON: .*position 20/],
    [[given, '--input', await f.write('empty.json', '{"row": {}}')], /^✗ .*empty\.json holds no messages/],
    [
      [given, '--input', await f.write('odd.json', '{"record": {}, "action": "insrt"}')],
      /^✗ .*none of insert, update, delete, read: "insrt"/,
    ],
  ] as const) {
    const { code, out, err } = run('test', ...args)
    assert.deepEqual([code, (out + err).includes('    at ')], [args.includes('--table') ? 2 : 1, false])
    assert.match(out + err, words)
  }
})

/** A folder with a package.json and two libraries, an ES module and one of the older kind. */
async function project() {
  const f = await folder()
  const library = async (name: string, file: string, code: string, more: object) => {
    await mkdir(join(f.path, 'node_modules', name), { recursive: true })
    await f.write(join('node_modules', name, 'package.json'), JSON.stringify({ name, version: '1.0.0', ...more }))
    await f.write(join('node_modules', name, file), code)
  }
  await f.write('package.json', '{"name": "mine", "type": "module"}')
  await library('slug', 'index.mjs', 'export const slug = (text) => text.toLowerCase().replaceAll(" ", "-")\nexport const unused = 1', {
    exports: { import: './index.mjs' },
  })
  await library('sum', 'index.js', 'module.exports = (...all) => all.reduce((a, b) => a + b, 0)', { main: 'index.js' })
  await library('reader', 'index.js', 'module.exports = require("fs").readFileSync', { main: 'index.js' })
  return f
}
const WITH_LIBRARIES = `import { slug } from 'slug'
import sum from 'sum'
import type { Transform } from 'tailrace'
const transform: Transform<{ title: string }> = (_action, record) => ({ slug: slug(record.title), sum: sum(1, 2, 3) })
export default transform
`

test('a function that imports libraries is built into one file, which a sandbox takes', { skip: !hasEsbuild && 'npm ci' }, async () => {
  await using f = await project()
  const file = await f.write('doc.ts', WITH_LIBRARIES)
  const input = await f.write('one.json', '{"record": {"title": "A Lamp"}}')
  const built = run('build', file)
  assert.deepEqual([built.code, built.err], [0, ''])
  const target = join(f.path, 'doc.bundle.js')
  const code = await readFile(target, 'utf8')
  assert.equal(built.out, `${target}: ${Buffer.byteLength(code)} bytes\n`)
  assert.doesNotMatch(code, /\bimport\b|unused/)
  for (const one of [target, file]) {
    const { code: status, out } = run('test', one, '--input', input)
    assert.deepEqual([status, /"slug": "a-lamp",\n {2}"sum": 6/.test(out)], [0, true], out)
  }
  const yaml = 'account: { name: a }\nfunctions:\n  - { name: doc, type: transform, file: doc.ts }\n'
  const { functions } = parseConfig(yaml, 'tailrace.yaml', {}, (path) => functionText(join(f.path, path)))
  assert.equal(functions[0]?.code, code)
  await f.write(
    'deep.ts',
    `import { slug } from 'slug'\n\nconst at = (r: { title: string }): string => slug(r.title)\nexport default (a: string, r: { title: string; no: { no: 1 } }) =>\n  at(r) + r.no.no\n`,
  )
  const deep = run('test', join(f.path, 'deep.ts'), '--input', input)
  assert.match(deep.out, /✗ TypeError: .*\(deep\.ts, line 5, column 16\)/)
  const none = await f.write('none.json', '{"record": {}}')
  for (const file of ['deep.ts', 'small.js']) {
    if (file === 'small.js') run('build', join(f.path, 'deep.ts'), '--minify', '--output', join(f.path, file))
    const thrown = run('test', join(f.path, file), '--input', none)
    assert.match(thrown.out, /✗ TypeError: .*\(node_modules\/slug\/index\.mjs, line 1, column 36\)/)
  }
  const small = run('build', file, '--minify', '--output', join(f.path, 'small.js'))
  assert.ok(Number(/: (\d+) bytes/.exec(small.out)?.[1]) < Buffer.byteLength(code), small.out)
})

test('files from outside of its package that come into a bundle are named', { skip: !hasEsbuild && 'npm ci' }, async () => {
  await using f = await project()
  await using own = await mkdtempDisposable(join(f.path, 'own-'))
  await f.write('outside.json', '{"key": "kept"}')
  await writeFile(join(own.path, 'package.json'), '{}')
  await writeFile(join(own.path, 'inside.json'), '{"key": "own"}')
  await writeFile(
    join(own.path, 'fn.ts'),
    `import a from '../outside.json'\nimport b from './inside.json'\nexport default () => [a.key, b.key]\n`,
  )
  const words = `files from outside of its package are in the bundle, with all that they hold:\n  ${join(await realpath(f.path), 'outside.json')}\n`
  for (const command of ['build', 'test']) {
    const { code, err } = run(command, join(own.path, 'fn.ts'))
    assert.deepEqual([code, err], [0, words], command)
  }
  const nowhere = ['--url', 'http://127.0.0.1:1', '--token', 'none'] // told before anything is sent
  const { err } = run('save', join(own.path, 'fn.ts'), ...nowhere)
  assert.ok(err.startsWith(words), err)
  const config = join(own.path, 'tailrace.yaml')
  await writeFile(config, 'functions: [{ name: fn, type: transform, file: fn.ts }]\n')
  const env = {
    PATH: process.env['PATH'],
    CONFIG_FILE_PATH: config,
    TAILRACE_DATA: own.path,
    PG_URL: 'postgresql://nobody:none@127.0.0.1:1/none',
  }
  for (const args of [['config', 'plan', config, ...nowhere], ['start']]) {
    const { stderr } = spawnSync(process.execPath, [COMMAND, ...args], { encoding: 'utf8', env })
    assert.ok(stderr.startsWith(words), `${args[0]}: ${stderr}`)
  }
})

test('what a function may not import is told with its place', { skip: !hasEsbuild && 'npm ci' }, async () => {
  await using f = await project()
  const missing = run('build', await f.write('missing.ts', "import { x } from 'nosuch'\nexport default () => x\n"))
  assert.deepEqual([missing.code, missing.out], [1, ''])
  assert.match(missing.err, /^VALIDATION_FAILED: missing\.ts:1:19: Could not resolve "nosuch"/)
  const reader = run('build', await f.write('reader.ts', "import read from 'reader'\nexport default () => read('/etc/passwd')\n"))
  assert.match(reader.err, /reader\/index\.js:1:26: Could not resolve "fs"/)
  const large = run('build', await f.write('large.ts', `export default () => ${JSON.stringify('x'.repeat(600_000))}\n`))
  assert.match(large.err, /the bundle has \d+ bytes, more than 512000; --minify/)
})

test('with --watch it runs again when its file changes, is replaced, or what it imports changes', async () => {
  await using f = await folder()
  const file = await f.write('f.ts', 'export default () => "first"')
  const child = spawn(process.execPath, [COMMAND, 'function', 'test', file, '--watch'], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    let out = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text)) // also what comes while nobody waits for it
    const says = (text: string) => until(`it says ${text}`, () => out.includes(text))
    await says('"first"')
    await f.write('f.ts', 'export default () => "second"')
    await says('"second"')
    await rm(file)
    await says('there is no such file')
    await f.write('next.ts', 'import { word } from "./word.ts"\nexport default () => word')
    await f.write('word.ts', 'export const word = "third"')
    await rename(join(f.path, 'next.ts'), file)
    await says('"third"')
    await f.write('word.ts', 'export const word = "fourth"')
    await says('"fourth"')
  } finally {
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
})
