/** `tailrace config`, as a user types it, against the real service. */
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { parse } from 'yaml'
import { Service, TOKEN } from '../faults/service.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'

const ESCAPE = '\u001B'

const started = new AsyncDisposableStack()
let folder: string
let source: TestDatabase
let service: Service

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tailrace-config-'))
  started.defer(() => rm(folder, { recursive: true }))
  source = started.use(await createDatabase('create table goods (id int primary key, email text)'))
  const state = started.use(await createState())
  service = started.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'first' }] }))
  await service.startReady()
})
after(() => started.disposeAsync())

type Given = Readonly<{ input?: string; env?: Readonly<Record<string, string>> }>
async function config(args: readonly string[], { input = '', env = {} }: Given = {}) {
  const { NO_COLOR: _no, FORCE_COLOR: _force, ...own } = process.env
  const access = args[0] === 'interpolate' ? [] : ['--token', TOKEN, '--url', service.origin]
  const child = spawn(process.execPath, [COMMAND, 'config', ...args, ...access], {
    cwd: folder,
    env: { ...own, TAILRACE_DATA: folder, ...env },
  })
  child.stdin.on('error', () => undefined) // it ended without reading
  child.stdin.end(input)
  const [[code], out, err] = await Promise.all([once(child, 'close') as Promise<[number]>, text(child.stdout), text(child.stderr)])
  return { code, out, err }
}
const write = (name: string, content: string) => writeFile(join(folder, name), content)
/** Takes a message and acknowledges it: a busy machine may take longer than its visibility timeout, and it would come again. */
const received = async (sink: string) => {
  const path = `/api/http_pull_consumers/${sink}`
  const [message] = ((await service.post(`${path}/receive`, { batch_size: 1, wait_for: 60_000 })).body as any).data // oxlint-disable-line typescript/no-explicit-any
  await service.post(`${path}/ack`, { ack_ids: [message.ack_id] })
  return message
}

const hasEsbuild = (() => {
  try {
    return createRequire(import.meta.url).resolve('esbuild') !== ''
  } catch {
    return false
  }
})()

test('a file with functions beside it is planned, applied, changed and exported by the command', { skip: !hasEsbuild }, async () => {
  await mkdir(join(folder, 'functions'), { recursive: true })
  await mkdir(join(folder, 'node_modules', 'shout'), { recursive: true })
  await write('node_modules/shout/package.json', '{"name": "shout", "version": "1.0.0", "main": "index.js"}')
  await write('node_modules/shout/index.js', 'module.exports = (text) => text.toUpperCase()')
  await write('functions/masked.ts', `import shout from 'shout'\nexport default (action: string, record: { id: number }) => ({ id: shout(\`\${record.id}a\`) })\n`) // prettier-ignore
  const yaml = (team: string) => `# what the shop streams
functions:
  - { name: masked, type: transform, file: functions/masked.ts }
sinks:
  - name: goods
    database: source
    source: { include_tables: [goods] }
    transform: masked
    destination: { type: stream }
    annotations: { team: "${team}", price: '$\${NOT}', stage: "\${STAGE:-test}" }
`
  await write('tailrace.yaml', yaml('${TEAM}'))
  const env = { TEAM: 'search' }
  const unset = await config(['plan'])
  assert.deepEqual([unset.code, unset.out], [1, ''])
  assert.match(unset.err, /^CONFIG_INVALID: tailrace\.yaml:10:26: the variable TEAM is not set/)

  const planned = await config(['apply'], { env })
  assert.equal(planned.code, 1)
  assert.match(planned.err, /there is no terminal to ask at; --auto-approve/)
  assert.equal((await service.get('/api/sinks/goods')).status, 404)
  assert.match(
    planned.out,
    /^\+ function masked\n( {4}\+ .*\n)* {4}\+ code: "?\(bundled: \d+ bytes\)"?\n\+ sink goods\n( {4}\+ .*\n)* {4}\+ {3}team: search\n/m,
  )
  assert.match(
    planned.out,
    /· database source is not in the file, and stays\n· sink first .*\n\n2 to create; 2 not in the file, which stay\.\n$/,
  )
  assert.ok(!planned.out.includes(ESCAPE), 'no colours outside of a terminal')

  const applied = await config(['apply', 'tailrace.yaml', '--auto-approve'], { env })
  assert.equal(applied.code, 0, applied.err)
  assert.match(applied.out, /2 to create.*\nApplied\.\n$/)
  await source.query(`insert into goods values (1, 'a@b.c')`)
  assert.deepEqual((await received('goods')).data, { id: '1A' })
  assert.equal((await config(['plan'], { env })).out, '· database source is not in the file, and stays\n· sink first is not in the file, and stays\n\nNothing to change; 2 not in the file, which stay.\n') // prettier-ignore

  const changed = await config(['apply', '-', '--auto-approve'], { input: yaml('shop') })
  assert.equal(changed.code, 0, changed.err)
  assert.match(changed.out, /^~ sink goods\n( {6}.*\n)* {4}- {3}team: search\n {4}\+ {3}team: shop\n( {6}.*\n)*·/)
  await source.query(`insert into goods values (2, 'a@b.c')`)
  assert.deepEqual((await received('goods')).data, { id: '2A' })
  const { annotations } = (await service.get('/api/sinks/goods')).body as { annotations: object }
  assert.deepEqual(annotations, { team: 'shop', price: '${NOT}', stage: 'test' })

  const exported = await config(['export', '--show-sensitive'])
  assert.equal(parse(exported.out).databases[0].password, source.connection.password)
  assert.deepEqual(parse(exported.out).sinks.map(({ name }: { name: string }) => name), ['first', 'goods']) // prettier-ignore
  assert.equal((await config(['plan', '-'], { input: exported.out })).out, 'Nothing to change.\n')
})

test('what is wrong is told at its place in the file, or in the function’s own file, and nothing is applied', async () => {
  const before = await config(['export'])
  await write('bad.ts', 'export default (a, r) => {\n  return 1 +\n}\n')
  await write('wrong.yaml', 'functions:\n  - { name: bad, type: filter, file: bad.ts }\nsinks:\n  - { name: x, database: source, colour: red, destination: { type: stream } }\n') // prettier-ignore
  for (const verb of [['plan'], ['apply', '--auto-approve']]) {
    const refused = await config([...verb, 'wrong.yaml'])
    assert.equal(refused.code, 1)
    assert.match(
      refused.err,
      /^CONFIG_INVALID:\nwrong\.yaml:2:38: function "\w+": bad\.ts:3:1: .*\nwrong\.yaml:4:42: sink "\w+": colour is not a field of a sink\n/,
    )
  }
  await write(
    'gone.yaml',
    'functions:\n  - { name: gone, type: filter, file: gone.ts }\n  - { name: "${UNSET}", type: path, path: record }\n',
  )
  const gone = await config(['plan', 'gone.yaml'])
  assert.match(
    gone.err,
    /gone\.yaml:2:39: function "gone": file gone\.ts can't be read: ENOENT.*\ngone\.yaml:3:13: the variable UNSET is not set/,
  )
  assert.match((await config(['plan', 'nothing.yaml'])).err, /^ARGUMENT_INVALID: can't read nothing\.yaml: there is no such file/)
  await write('bare.yaml', 'sinks:\n  - { name: ${NAME} }\n')
  assert.match(
    (await config(['plan', 'bare.yaml'])).err,
    /bare\.yaml:2:14: .*; between braces or brackets a variable needs quotes: "\$\{VAR\}"/,
  )
  const more = await config(['export', 'more'])
  assert.deepEqual([more.code, more.err.startsWith('config export takes no file ("more" came)')], [2, true], more.err)
  assert.equal((await config(['export'])).out, before.out)
})

test('interpolate prints the file with its variables replaced, comments and the code of functions as they are', async () => {
  await write(
    'vars.yaml',
    '# one\nsinks:\n  - name: "${NAME}" # two\n    batch_size: ${SIZE:-5}\n    note: $${KEPT}\nfunctions:\n  - code: |\n      `${NAME}`\n',
  )
  const { code, out } = await config(['interpolate', 'vars.yaml'], { env: { NAME: 'a: "b" ${NOT}' } })
  assert.equal(code, 0)
  assert.match(out, /^# one\nsinks:\n.* # two\n/)
  assert.ok(out.includes('`${NAME}`'))
  const again = await config(['interpolate', '-', '--output', 'out.yaml'], { input: out })
  assert.deepEqual([again.code, again.out], [0, ''])
  const twice = await config(['interpolate', 'out.yaml'])
  assert.equal(twice.out, out, 'what it prints means itself')
  assert.deepEqual(parse(out).sinks, [{ name: 'a: "b" $${NOT}', batch_size: 5, note: '$${KEPT}' }])
  assert.match((await config(['interpolate', 'vars.yaml'])).err, /^CONFIG_INVALID: vars\.yaml:3:11: the variable NAME is not set/)
})

const hasTerminals = spawnSync('script', ['--version']).status === 0
test('in a terminal apply asks in colours, and takes no other answer than yes', { skip: !hasTerminals }, async () => {
  await write('asked.yaml', 'sinks:\n  - { name: asked, database: source, destination: { type: stream } }\n')
  const typed = async (answer: string, env: object = {}) => {
    const command = [process.execPath, COMMAND, 'config', 'apply', 'asked.yaml', '--token', TOKEN, '--url', service.origin].join(' ')
    const { PATH } = process.env // no more of it: Node asks a dozen variables about colours, CI among them
    const child = spawn('script', ['-qec', command, '/dev/null'], {
      cwd: folder,
      env: { PATH, TAILRACE_DATA: folder, TERM: 'xterm', ...env },
    })
    let out = ''
    child.stdout.setEncoding('utf8').on('data', (part: string) => {
      out += part
      if (out.includes('(yes or no)') && !child.stdin.writableEnded) child.stdin.end(`${answer}\r`)
    })
    const [code] = (await once(child, 'close')) as [number]
    return { code, out }
  }
  const refused = await typed('no')
  assert.equal(refused.code, 1, refused.out)
  assert.ok(refused.out.includes(`${ESCAPE}[32m+${ESCAPE}[39m sink`))
  assert.match(refused.out, /Nothing was applied\./)
  assert.equal((await service.get('/api/sinks/asked')).status, 404)
  const applied = await typed('yes', { NO_COLOR: '1' })
  assert.equal(applied.code, 0, applied.out)
  assert.match(applied.out, /\+ sink asked\r\n/)
  assert.match(applied.out, /Applied\./)
  assert.equal((await service.get('/api/sinks/asked')).status, 200)
})
