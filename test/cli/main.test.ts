/** The command as a shell sees it: what it prints, where, and its exit code. */
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, mkdtempDisposable, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'

const root = dirname(dirname(import.meta.dirname))
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }

function tailrace(...args: string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(root, 'cli', 'tailrace.mjs'), ...args], { encoding: 'utf8' })
  return { code: status, out: stdout, err: stderr }
}

test('"version" prints the version of package.json, and so does --version', () => {
  assert.deepEqual(tailrace('version'), { code: 0, out: `${version}\n`, err: '' })
  assert.deepEqual(tailrace('--version'), { code: 0, out: `${version}\n`, err: '' })
})

test('"help" and no command at all list every command', () => {
  for (const { code, out } of [tailrace('help'), tailrace()]) {
    assert.equal(code, 0)
    for (const command of ['start', 'demo write', 'version', 'help']) assert.match(out, new RegExp(`tailrace ${command}`))
  }
})

test('an unknown command or option is named on stderr and exits with 2', () => {
  const command = tailrace('strat')
  assert.equal(command.code, 2)
  assert.match(command.err, /unknown command "strat"/)
  const inherited = tailrace('constructor')
  assert.match(inherited.err, /unknown command "constructor"/)
  const option = tailrace('start', '--prot', '80')
  assert.equal(option.code, 2)
  assert.match(option.err, /--prot/)
})

test('the help of every command has a line for each option that it takes, and an example', () => {
  for (const command of ['start', 'demo', 'source', 'sink', 'backfill', 'function', 'types']) {
    const { code, out } = tailrace(command, '--help')
    assert.equal(code, 0)
    assert.match(
      out,
      new RegExp(`^usage: tailrace ${command}[^]*\\n {2}--help {3,}prints this\\n\\nexamples?:\\n {2}.*tailrace ${command}`),
    )
  }
  const { out } = tailrace('help', 'function')
  for (const option of ['type TYPE', 'sink-type TYPE', 'input FILE', 'database DATABASE', 'table TABLE', 'watch', 'output FILE', 'minify'])
    assert.match(out, new RegExp(`\\n {2}--${option} +\\S+.*\\w`))
})

test('"start --help" says what start does and starts nothing', () => {
  const { code, out } = tailrace('start', '--help')
  assert.equal(code, 0)
  assert.match(out, /usage: tailrace start/)
})

test('a command that fails tells its code and the remedy, not a stack', () => {
  const { status, stderr } = spawnSync(process.execPath, [join(root, 'cli', 'tailrace.mjs'), 'demo', 'token'], {
    encoding: 'utf8',
    env: { ...process.env, TAILRACE_DATA: join(root, 'test', 'no-such-folder') },
  })
  assert.equal(status, 1)
  assert.match(stderr, /^DEMO_MISSING: /)
  assert.match(stderr, /npm start/)
  assert.doesNotMatch(stderr, /\n\s+at /)
})

test('a failure that nobody catches ends the service with one line that has its code', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'tailrace-main-'))
  const broken = `process.on('newListener', (name) => name === 'uncaughtException' && setImmediate(() => { throw new RangeError('broken') }))`
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(root, 'cli', 'tailrace.mjs'), 'start'], {
    encoding: 'utf8',
    env: {
      ...{
        PATH: process.env['PATH'],
        TAILRACE_DATA: folder.path,
        SERVER_PORT: '0',
        TAILRACE_METRICS_PORT: '0',
        TAILRACE_LOG_FORMAT: 'json',
      },
      ...{
        PG_URL: 'postgresql://nobody:none@127.0.0.1:1/none',
        NODE_OPTIONS: `--import data:text/javascript,${encodeURIComponent(broken)}`,
      },
    },
  })
  assert.equal(status, 1, stderr)
  const lines = stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
  assert.deepEqual(lines.map(({ level, code }) => [level, code]), [['fatal', 'INTERNAL']]) // prettier-ignore
  assert.equal((lines[0]?.['err'] as { message?: string }).message, 'broken')
})

test('"demo write" while nothing runs says so, not a stack', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-main-'))
  try {
    await writeFile(join(folder, 'demo.json'), JSON.stringify({ databaseUrl: 'postgresql://u:p@127.0.0.1:1/demo' }))
    const env = { ...process.env, TAILRACE_DATA: folder }
    const { status, stderr } = spawnSync(process.execPath, [join(root, 'cli', 'tailrace.mjs'), 'demo', 'write'], { encoding: 'utf8', env })
    assert.equal(status, 1)
    assert.match(stderr, /^SERVICE_UNREACHABLE: the demo .* does not answer: connect ECONNREFUSED/)
    assert.doesNotMatch(stderr, /\n\s+at /)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

const WITH_FUNCTIONS = `account: { name: shop }
snks: []
functions:
  - name: block
    type: transform
    code: |

      export default (a, r) => {
        return (r.id }
      }
      // the end
  - { name: line, type: filter, code: "export default () => =" }
  - { name: file, type: transform, description: 'a file', file: doc.ts }
  - { name: query, type: enrichment, code: select 1 }
  - { name: key, type: path, path: row.id }
  - { name: good, type: filter, code: "export default () => true" }
`

test('a wrong configuration file is told, with all its mistakes, before anything is made or started', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-main-'))
  try {
    const file = join(folder, 'shop.yaml')
    const data = join(folder, 'data')
    await writeFile(file, 'account: { name: shop }\nsnks: []\ndatabases: [{ name: shop, ssl: sometimes }]\n')
    const env = { ...process.env, CONFIG_FILE_PATH: file, TAILRACE_DATA: data }
    const start = () =>
      spawnSync(process.execPath, [join(root, 'cli', 'tailrace.mjs'), 'start'], { encoding: 'utf8', env, timeout: 60_000 })
    const { status, stderr } = start()
    assert.equal(status, 1)
    assert.match(stderr, /^CONFIG_INVALID:\n\S+shop\.yaml:2:1: unknown section "snks".*\n\S+shop\.yaml:3:.*ssl must be true, false, /)
    await writeFile(join(folder, 'doc.ts'), '\nexport default (a: string) => =\n')
    await writeFile(file, WITH_FUNCTIONS)
    const told = start()
      .stderr.split('\n')
      .map((line) => line.replace(`${file}:`, ''))
    assert.deepEqual(told.slice(1, 8), [
      '2:1: unknown section "snks"; known are account, api_tokens, change_retentions, databases, functions, http_endpoints, sinks, users, and mappings of other names are ignored',
      `9:22: function "block": Expected ',', got '}'`,
      '12:61: function "line": Expression expected',
      '13:65: function "file": doc.ts:2:31: Expression expected',
      '14:44: function "query": code must contain $1, the values of the first column of the primary key',
      '15:36: function "key": path must begin with one of record, changes, action, metadata',
      '  The message names file, line and reason of every mistake. Correct them and apply the file again.',
    ])
    await rm(file)
    assert.match(start().stderr, /^CONFIG_INVALID: \S+shop\.yaml: ENOENT/)
    assert.equal(existsSync(data), false)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('a start loads no HTTP client that it does not use: each takes longer than the rest of Node', () => {
  const script = `await import(${JSON.stringify(new URL('../../cli/start.ts', import.meta.url).href)})
    const { createRequire } = await import('node:module')
    const files = Object.keys(createRequire(${JSON.stringify(import.meta.url)}).cache)
    console.log(process.moduleLoadList.filter((name) => name.includes('undici')).concat(files.filter((file) => /undici.(index|lib.(web|mock))/.test(file))).join())
    process.exit(0)`
  assert.equal(execFileSync(process.execPath, ['--input-type=module', '--eval', script], { encoding: 'utf8' }).trim(), '')
})
