/** Configuration as code over HTTP, on the real service: what a file changes, what takes effect, what an export is good for. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import { parse, stringify } from 'yaml'
import { Service, SLOT, TOKEN } from '../faults/service.ts'
import { calmMs } from '../services/calm-clock.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { pass, until } from '../waiting.ts'

const LOGIN = 'http://user-name:pass-word@127.0.0.1:9/in?api_key=key-in-the-query'
const WHSEC = `whsec_${Buffer.alloc(24, 7).toString('base64')}`
const FILE = {
  http_endpoints: [{ name: 'login', url: LOGIN }, { name: 'shop', url: 'http://127.0.0.1:9/in', headers: { 'x-shop': 'a' }, encrypted_headers: { 'x-key': 'a-long-header-secret' } }],
  functions: [
    { name: 'masked', type: 'transform', code: 'export default (action, record) => ({ id: record.id, v: 1 })\n' },
    { name: 'way', type: 'routing', sink_type: 'webhook', description: 'by id', code: 'export default (a, r) => ({ endpoint_path: `/${r.id}` })' },
    { name: 'key', type: 'path', path: 'record.id' },
  ],
  sinks: [
    { name: 'goods', database: 'source', source: { include_tables: ['goods'] }, transform: 'masked', destination: { type: 'stream' }, annotations: { note: '${NOT_A_VARIABLE} costs $5' } },
    {
      name: 'hook', database: 'source', status: 'paused', source: { include_tables: ['public.goods'] }, routing: 'way', replay_window: '2h',
      tables: [{ name: 'goods', group_column_names: ['shop'] }],
      destination: { type: 'webhook', http_endpoint: 'shop', signing_secrets: [WHSEC] },
    },
    {
      name: 'search', database: 'source', status: 'paused', source: {},
      destination: { type: 'elasticsearch', endpoint_url: 'http://127.0.0.1:9', index_name: 'goods', auth_type: 'basic', auth_value: 'elastic:a-password' },
    },
  ],
} // prettier-ignore

const started = new AsyncDisposableStack()
let source: TestDatabase
let state: TestDatabase
let service: Service

before(async () => {
  source = started.use(await createDatabase('create table goods (id int primary key, shop int)'))
  state = started.use(await createState())
  service = started.use(
    await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'other', tables: ['public.goods'] }] }),
  )
  await service.startReady()
})
after(() => started.disposeAsync())

type Change = { resource_type: string; action: string; name: string; old: any; new: any } // oxlint-disable-line typescript/no-explicit-any
type Body = {
  changes: Change[]
  actions: { description: string }[]
  notices: string[]
  resources: Record<string, unknown>[]
  summary: string
}

const call = async (verb: 'plan' | 'apply', config: unknown, more: object = {}) => {
  const yaml = typeof config === 'string' ? config : stringify(config)
  const { status, body } = await service.post(`/api/config/${verb}`, { yaml, ...more })
  return { status, ...(body as Body) }
}
const exported = async (query = '') => ((await service.get(`/api/config/export${query}`)).body as { yaml: string }).yaml
const told = ({ changes }: Body) =>
  changes.filter(({ action }) => action !== 'delete').map((c) => `${c.action} ${c.resource_type} ${c.name}`)
const stored = (table: string) => state.query(`select xmin::text, * from tailrace.${table} order by name`)
/** Takes a message and acknowledges it: a busy machine may take longer than its visibility timeout, and it would come again. */
const received = async (sink: string) => {
  const path = `/api/http_pull_consumers/${sink}`
  const { body } = await service.post(`${path}/receive`, { batch_size: 1, wait_for: 60_000 })
  const answer = body as { data: any[] } // oxlint-disable-line typescript/no-explicit-any
  await service.post(`${path}/ack`, { ack_ids: answer.data.map(({ ack_id }) => ack_id) })
  return answer
}

test('a plan tells what would change and what the file lacks, and changes nothing', async () => {
  const [sinks, functions] = [await stored('sink'), await stored('function')]
  const database = { name: 'copy', ...source.connection, slot: { name: `${SLOT}_2`, create_if_not_exists: true }, publication: { name: 'copy', create_if_not_exists: true } } // prettier-ignore
  const plan = await call('plan', { ...FILE, databases: [database], api_tokens: [{ name: 'second', token: 'a-second-token' }] })
  assert.equal(plan.status, 200, plan.summary)
  assert.deepEqual(
    plan.changes.map((c) => [c.action, c.resource_type, c.name]),
    [
      ['create', 'api_token', 'second'],
      ['create', 'database', 'copy'],
      ['create', 'http_endpoint', 'login'],
      ['create', 'http_endpoint', 'shop'],
      ...['key', 'masked', 'way'].map((name) => ['create', 'function', name]),
      ...['goods', 'hook', 'search'].map((name) => ['create', 'sink', name]),
      ['delete', 'database', 'source'],
      ['delete', 'sink', 'other'],
    ],
  )
  assert.deepEqual(
    plan.actions.map(({ description }) => description),
    ['create the publication "copy" in the database "copy"', `create the slot "${SLOT}_2" in the database "copy"`, ...plan.notices],
  )
  assert.match(plan.notices.join(), /the HTTP endpoint "login" has what looks like a key in its URL/)
  for (const secret of [WHSEC, 'a-password', 'a-long-header-secret', 'a-second-token']) assert.ok(!JSON.stringify(plan).includes(secret))
  assert.deepEqual([await stored('sink'), await stored('function')], [sinks, functions])
  assert.deepEqual(await source.query(`select from pg_publication where pubname = 'copy'`), [])
  assert.deepEqual(await source.query('select from pg_replication_slots where slot_name = $1', [`${SLOT}_2`]), [])
})

test('an applied file is at work when the answer comes, and the next one changes sinks without a restart', async () => {
  const applied = await call('apply', FILE)
  assert.equal(applied.status, 200, applied.summary)
  assert.deepEqual(
    applied.resources.map((r) => [r['resource_type'], r['name'], typeof r['id']]),
    [
      'http_endpoint login',
      'http_endpoint shop',
      'function key',
      'function masked',
      'function way',
      'sink goods',
      'sink hook',
      'sink search',
    ].map((words) => [...words.split(' '), 'string']),
  )
  assert.match(applied.notices.join('\n'), /"login" has what looks like a key in its URL \(api_key\)/)
  const since = async () =>
    ((await service.get('/info')).body as any).nodes[0].actors // oxlint-disable-line typescript/no-explicit-any
      .filter(({ name }: { name: string }) => ['source', 'other', 'goods'].includes(name))
      .map((actor: Record<string, unknown>) => [actor['id'], actor['since']])
  const [other] = await state.query(`select * from tailrace.sink where name = 'other'`)
  await source.query('insert into goods values (1, 1)')
  assert.deepEqual((await received('goods')).data[0].data, { id: 1, v: 1 })
  const actors = await since()
  assert.equal(actors.length, 3)
  const edited = structuredClone(FILE)
  Object.assign(edited.functions[0] as object, { code: 'export default (action, record) => ({ id: record.id, v: 2 })' })
  const again = await call('apply', edited)
  assert.deepEqual(told(again), ['update function masked'])
  assert.match(again.changes[0]?.old.code, /v: 1/)
  await source.query('insert into goods values (2, 1)')
  assert.deepEqual((await received('goods')).data[0].data, { id: 2, v: 2 })
  assert.deepEqual(await since(), actors, 'nothing was restarted')
  assert.deepEqual((await state.query(`select * from tailrace.sink where name = 'other'`))[0], other)
  assert.equal((await received('other')).data[0].record.id, 1)
})

test('a file as the client of the original sends it is taken: anchors put in, exported keys, nulls, the schema before a table', async () => {
  const exported = { id: 'x', account_id: 'x', inserted_at: '2025-02-03T04:05:06Z', health: { status: 'healthy' }, batch_size: null }
  const legacy = { name: 'legacy', database: 'source', table: 'public.goods', destination: { type: 'sequin_stream' } }
  const file = {
    base_sink_config: { database: 'source', actions: ['insert'] },
    users: null,
    functions: [{ id: 'x', name: 'its', description: null, function: { type: 'path', path: 'record.id', code: null } }],
    sinks: [{ ...exported, active_backfills: [], replication_slot_id: 'x', sequence_id: null, max_retry_count: null, source: null, tables: null, ...legacy }],
  } // prettier-ignore
  const outcome = await call('apply', file)
  assert.equal(outcome.status, 200, outcome.summary)
  assert.deepEqual(outcome.notices.map((text) => text.slice(0, 50)), ['yaml:1: "base_sink_config" is not a section and is']) // prettier-ignore
  const { source: filter } = (await service.get('/api/sinks/legacy')).body as { source: { include_tables: unknown } }
  assert.deepEqual(filter.include_tables, ['public.goods'])
  assert.deepEqual(told(await call('plan', file)), [])
})

test('an export planned again is empty, with its secrets shown or not, and applied again it keeps them', async () => {
  assert.equal((await call('apply', FILE)).status, 200)
  const secrets = () =>
    state.query(`select 'sink' as kind, name, secrets is null as empty from tailrace.sink union all select 'endpoint', name, false from tailrace.http_endpoint order by 1, 2`) // prettier-ignore
  const [shown, whole] = [await exported(), await exported('?show-sensitive=true')]
  const before = await secrets()
  assert.ok(
    !whole.includes('user-name') && !JSON.stringify(await state.query('select url from tailrace.http_endpoint')).includes('pass-word'),
  )
  for (const yaml of [shown, whole]) {
    const plan = await call('plan', yaml)
    assert.deepEqual([plan.status, plan.changes, plan.actions.length], [200, [], plan.notices.length], plan.summary)
    const applied = await call('apply', yaml)
    assert.deepEqual([applied.status, applied.changes], [200, []])
  }
  assert.deepEqual(await secrets(), before)
  assert.equal(await exported('?show-sensitive=true'), whole, 'no secret has become asterisks')
  for (const secret of [WHSEC, 'elastic:a-password', 'a-long-header-secret', source.connection.password, 'key-in-the-query']) {
    assert.ok(whole.includes(secret))
    assert.ok(secret.length < 6 || !shown.includes(secret), 'shown in part')
  }
  assert.deepEqual(Object.keys(parse(whole)), ['databases', 'http_endpoints', 'functions', 'sinks'])
  const { sinks } = parse(whole)
  assert.deepEqual(sinks[0], { ...FILE.sinks[0], source: { include_tables: ['public.goods'] }, destination: { type: 'sequin_stream' }, annotations: { note: '$${NOT_A_VARIABLE} costs $5' } }) // prettier-ignore
  assert.equal((await call('plan', whole, { variables: {} })).changes.length, 0, 'no text of it is taken for a variable')
})

test('asterisks never become a secret: those of no stored one are refused at their place; a changed secret is told', async () => {
  assert.equal((await call('apply', FILE)).status, 200)
  const whole = await exported('?show-sensitive=true')
  const foreign = (await exported())
    .replace('ela**************d', 'xla**************d')
    .replace('x-key: a-l', 'x-key: b-l')
    .replace('name: shop\n', 'name: shop\n    # one\n')
  const refused = await call('apply', foreign, { file: 'shop.yaml' })
  assert.equal(refused.status, 422)
  assert.match(
    refused.summary,
    /^shop\.yaml:\d+:\d+: HTTP endpoint "\w+": encrypted_headers is a shortened secret.*\nshop\.yaml:\d+:\d+: sink "\w+": destination\.auth_value is a shortened secret/,
  )
  assert.equal(await exported('?show-sensitive=true'), whole)
  const plan = await call('plan', whole.replace('elastic:a-password', 'elastic:b-password'))
  assert.deepEqual(told(plan), ['update sink search'])
  assert.equal(plan.changes[0]?.new.destination.auth_value, 'ela**************d (another one)')
})

test('all that is wrong is told at once with its place, and nothing of the file is taken', async () => {
  const before = await exported('?show-sensitive=true')
  const yaml = `account: { name: somebody }
functions:
  - { name: bad, type: transform, code: "export default (" }
  - { name: gone, type: transform, file: gone.ts }
  - { name: broken, type: filter, file: broken.ts }
sinks:
  - { name: new, database: source, source: {}, destination: { type: stream }, colour: red }
snks: []
`
  const refused = await call('apply', yaml, { file: 'shop.yaml', files: { 'broken.ts': 'export default () =>\n  1 +' } })
  assert.equal(refused.status, 422)
  assert.deepEqual(
    refused.summary.split('\n').map((line) => line.slice(0, 48)),
    [
      'shop.yaml:1:18: account.name is "somebody", and the API token is of the account "faults"',
      'shop.yaml:3:58: function "bad": Expression expected',
      'shop.yaml:4:42: function "gone": file gone.ts can\'t be read: the request does not contain this file',
      'shop.yaml:5:41: function "broken": broken.ts:2:6: Expression expected',
      'shop.yaml:7:87: sink "new": colour is not a field of a sink',
      'shop.yaml:8:1: unknown section "snks"; known are account, api_tokens',
    ].map((line) => line.slice(0, 48)),
  )
  const names = await call(
    'apply',
    'sinks:\n  - { name: new, database: source, source: { include_tables: [goodz] }, destination: { type: stream } }\n  - { name: new2, database: nowhere, source: {}, transform: nothing, destination: { type: stream } }\nfunctions:\n  - { name: masked, type: filter, code: "export default () => true" }\n',
  )
  assert.equal(names.status, 422)
  assert.match(
    names.summary,
    /^yaml:2: sink "new": .*public\.goodz.*\nyaml:3: sink "new2": there is no database "nowhere"\nyaml:5: function "masked": the sink "goods" uses this function: transform names "masked", which is a function of type filter$/,
  )
  assert.equal(await exported('?show-sensitive=true'), before)
  assert.equal((await call('plan', 'sinks: [')).status, 422)
  assert.equal((await service.post('/api/config/plan', { yml: '' })).status, 422)
  assert.equal((await service.get('/api/config/export?show-sensitive=perhaps')).status, 400)
  const { paths } = (await service.get('/api/openapi.json')).body as { paths: Record<string, object> }
  assert.deepEqual(['plan', 'apply', 'export'].map((verb) => Object.keys(paths[`/api/config/${verb}`] ?? {})), [['post'], ['post'], ['get']]) // prettier-ignore
})

test('a configuration that is large, or slow to read, is refused, and everyone else is answered meanwhile', async () => {
  const many = (count: number, entry: (i: number) => string) => Array.from({ length: count }, (_, i) => entry(i)).join('')
  const large = await call('plan', `# ${'x'.repeat(1_100_000)}`)
  assert.deepEqual([large.status, large.summary], [422, 'yaml: the file has 1100002 bytes, more than 1048576'])
  const entries = await call('plan', `http_endpoints:\n${many(1001, (i) => `- {name: e${i}, url: "http://h/"}\n`)}`)
  assert.deepEqual([entries.status, entries.summary], [422, 'yaml:1:1: the file has 1001 entries, more than 1000: apply it in parts'])
  const read = new AbortController()
  const slow = call(
    'apply',
    many(40_000, (i) => `k${i}: 1\n`),
  ).finally(() => read.abort())
  while (!read.signal.aborted) assert.ok((await calmMs(() => service.get('/health'))) < 1_000)
  assert.match((await slow).summary, /^yaml: reading the file takes longer than 10 s; does it have very many keys, anchors or aliases\?$/)
})

test('whoever goes while a database is awaited ends the waiting, and it is never asked without a pause', async () => {
  let asked = 0
  await using server = createServer((socket) => void (asked++, socket.destroy())).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const awaited = (await_database: object) => ({
    databases: [{ name: 'late', hostname: '127.0.0.1', port: (server.address() as AddressInfo).port, database: 'd', ssl: false, slot: { name: 'late' }, publication: { name: 'late' }, await_database }],
  }) // prettier-ignore
  const endless = await call('apply', awaited({ timeout_ms: 9e12, interval_ms: 1 }))
  assert.equal(endless.status, 422)
  assert.match(endless.summary, /timeout_ms must be .* 300000, .*\n.*interval_ms must be .* 500/)
  assert.equal(asked, 0)
  const client = new AbortController()
  const gone = fetch(`${service.origin}/api/config/apply`, {
    method: 'POST',
    headers: { authorization: `Bearer ${TOKEN}` },
    body: JSON.stringify({ yaml: stringify(awaited({ timeout_ms: 300_000 })) }),
    signal: client.signal,
  })
  await once(server, 'connection')
  client.abort()
  await assert.rejects(gone)
  assert.equal((await call('plan', '{}')).status, 200) // those of one account come one after the other
  assert.equal(asked, 1)
})

test('what a database that is not known answers with, or whether it is there, is told to the log alone', async () => {
  await using closing = createServer((socket) => void socket.destroy()).listen(0, '127.0.0.1')
  await once(closing, 'listening')
  const { port } = source.connection
  const places = [
    ['127.0.0.1', 1],
    ['127.0.0.1', (closing.address() as AddressInfo).port],
    ['127.0.0.1', port],
    ['169.254.169.254', 80],
  ] as const
  for (const [hostname, at] of places) {
    const database = { name: 'unknown', hostname, port: at, database: 'd', username: 'nobody_of_this_name', ssl: false, slot: { name: 's' }, publication: { name: 'p' } } // prettier-ignore
    const { status, summary } = await call('apply', { databases: [database] })
    assert.deepEqual([status, summary], [422, `yaml:2: database "unknown": the database d at ${hostname}:${at} could not be reached, or refused the login; the log of the service says why`]) // prettier-ignore
  }
  assert.match(service.log(), /ECONNREFUSED[^]*EGRESS_REFUSED/)
  const folder = await call('plan', { databases: [{ name: 'unknown', hostname: '/var/run', database: 'd', slot: { name: 's' }, publication: { name: 'p' } }] }) // prettier-ignore
  assert.match(folder.summary, /hostname must be a host name or an IP address, not a folder with a Unix socket/)
})

test('sinks that are deleted right after they were made end without a word of trouble', async () => {
  const before = service.log().length
  for (let i = 0; i < 6; i++) {
    const name = `brief_${i}`
    const sink = { name, source: { include_tables: ['public.goods'] }, database: 'source', destination: { type: 'sequin_stream' } }
    assert.equal((await service.post('/api/sinks', { ...sink, partitions: 4, status: 'active' })).status, 200)
    await pass(i * 30, 'it is deleted at another moment of its beginning each time')
    assert.equal((await service.delete(`/api/sinks/${name}`)).status, 200)
  }
  const names = async () => JSON.stringify((await service.get('/info')).body)
  await until('all of them are gone', async () => !(await names()).includes('brief_'))
  const log = service.log().slice(before).split('\n')
  assert.deepEqual(log.filter((line) => /"level":"(warn|error)"|INTERNAL/.test(line)), []) // prettier-ignore
})
