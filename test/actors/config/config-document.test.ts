import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { test } from 'node:test'
import { stringify } from 'yaml'
import { parseConfig } from '../../../actors/config/config-document.ts'
import type { GivenConfig } from '../../../actors/config/config-edits.ts'
import { readGivenConfig } from '../../../actors/config/given-config.ts'
import { DatabaseForm } from '../../../actors/resources/database-form.ts'
import { FunctionForm } from '../../../actors/resources/function-form.ts'
import { EndpointIn } from '../../../actors/resources/endpoint-form.ts'
import { SinkPatch } from '../../../actors/resources/sink-form.ts'
import { EngineError } from '../../../engine/errors.ts'
import { authority } from '../../services/tls-postgres.ts'
import fc from '../../services/fast-check.ts'

const VALID = `
account:
  name: shop
api_tokens:
  - name: main
    token: secret-token
databases:
  - name: shop
    hostname: pg.internal
    port: 5433
    database: shop_production
    username: cdc
    password: "12345"
    ssl: verify-full
    slot: { name: cdc_slot, create_if_not_exists: true }
    publication: { name: cdc_pub, create_if_not_exists: true }
sinks:
  - name: goods
    database: shop
    source: { include_tables: [public.goods] }
    destination: { type: sequin_stream }
`
const parse = (source: string, env: Record<string, string> = {}) => parseConfig(source, 'tailrace.yaml', env)
const refused = (source: string, message: RegExp, env: Record<string, string> = {}) =>
  assert.throws(
    () => parse(source, env),
    (error) => {
      assert.ok(error instanceof EngineError)
      assert.equal(error.code, 'CONFIG_INVALID')
      assert.match(error.message, message)
      return true
    },
  )

test('a configuration becomes resources with their defaults filled in', () => {
  const { account, tokens, databases, sinks } = parse(VALID)
  assert.equal(account, 'shop')
  assert.deepEqual(tokens, [{ name: 'main', token: 'secret-token', scopes: ['admin'], sinks: [], line: 5 }])
  assert.equal(databases[0]?.input.connection.port, 5433)
  assert.equal(databases[0]?.input.connection.ssl, 'verify-full')
  assert.equal(databases[0]?.createSlot, true)
  const sink = sinks[0]?.input
  assert.equal(sink?.ack_wait_ms, 30_000)
  assert.deepEqual(sink?.actions, ['insert', 'update', 'delete'])
  assert.deepEqual(sink?.destination, { type: 'sequin_stream' })
})

test('older spellings and the url of a database are understood', () => {
  const { databases, sinks } = parse(`
account: { name: a }
databases:
  - { name: d, url: "postgresql://user:p%40ss@host:6000/db", slot_name: s, publication_name: p }
sinks:
  - { name: x, database: d, table: goods, schema: sales, destination: { type: stream }, transform: none, message_grouping: "false" }
`)
  assert.deepEqual(databases[0]?.input.connection, {
    hostname: 'host',
    port: 6000,
    database: 'db',
    username: 'user',
    password: 'p@ss',
    ssl: 'prefer',
  })
  assert.deepEqual(sinks[0]?.input.source, { include_tables: ['sales.goods'] })
  assert.equal(sinks[0]?.input.message_grouping, false)
})

test('anchors and merge keys work, and a section that holds an anchor is tolerated', () => {
  const { sinks } = parse(`
account: { name: a }
defaults: &defaults
  database: d
  source: {}
  destination: { type: sequin_stream }
sinks:
  - { <<: *defaults, name: one }
  - { <<: *defaults, name: two }
`)
  assert.deepEqual(
    sinks.map(({ input }) => input.name),
    ['one', 'two'],
  )
})

test('what a sender who put in what anchors hold leaves of their mapping is ignored, and told; a list is most likely misspelt', () => {
  const { sinks, notices } = parse(`
account: { name: a }
base_sink: { batch_size: 3, actions: [insert] }
databases: [{ name: d, hostname: h, database: d, slot: { name: s }, publication: { name: p } }]
sinks: [{ name: n, database: d, batch_size: 3, actions: [insert], destination: { type: stream } }]
`)
  assert.equal(sinks[0]?.input.batch_size, 3)
  assert.deepEqual(notices, [
    'tailrace.yaml:3: "base_sink" is not a section and is ignored; known are account, api_tokens, change_retentions, databases, functions, http_endpoints, sinks, users',
  ])
  refused(`${VALID}snks: [{ name: n }]\n`, /unknown section "snks"/)
})

test('null is the same as absent, in every field that may be left out', () => {
  const nullsOf = ({ properties }: { properties: object }) => Object.fromEntries(Object.keys(properties).map((name) => [name, null]))
  const file = (nulls: boolean) => {
    const all = <T extends object>(form: { properties: object }, entry: T, more: object = {}) => ({
      ...(nulls && { ...nullsOf(form), ...more }),
      ...entry,
    })
    const slot = { name: 's', ...(nulls && { create_if_not_exists: null }) }
    const database = { name: 'shop', hostname: 'h', database: 'd', slot, publication: { name: 'p', ...(nulls && { init_sql: null }) } }
    const sink = { name: 'goods', database: 'shop', source: {}, destination: { type: 'stream', ...(nulls && { api_key: null }) } }
    return stringify({
      ...(nulls && { users: null, change_retentions: null, transforms: null, base: null }),
      account: { name: 'a' },
      databases: [all(DatabaseForm, database, { primary: null })],
      functions: [all(FunctionForm, { name: 'key', type: 'path', path: 'record.id' })],
      http_endpoints: [all(EndpointIn, { name: 'hook', url: 'http://127.0.0.1/in' })],
      sinks: [all(SinkPatch, sink, { initial_backfill: null })],
    })
  }
  const placeless = (source: string) =>
    JSON.parse(JSON.stringify(parse(source), (key, value: unknown) => (['line', 'at'].includes(key) ? undefined : value))) as object
  const { filter, transform, routing, enrichment, ...settings } = (placeless(file(true)) as { sinks: { input: Record<string, unknown> }[] }).sinks[0]!.input // prettier-ignore
  assert.deepEqual([filter, transform, routing, enrichment], [null, null, null, null], 'these say so themselves: none')
  const plain = placeless(file(false)) as { sinks: { input: object }[] }
  assert.deepEqual(settings, plain.sinks[0]?.input)
  assert.deepEqual({ ...placeless(file(true)), sinks: [] }, { ...plain, sinks: [] })
})

test('an anchor on a value inside does not excuse a misspelt section; one on a mapping or list does, or on the value itself', () => {
  refused(VALID.replace('sinks:', 'snks:').replace('name: goods', 'name: &name goods'), /^tailrace\.yaml:17:1: unknown section "snks"/)
  refused(`<<: { extra: 1 }\n${VALID}`, /unknown section "extra"/)
  for (const holder of ['tables: &t [public.goods]', 'shared: { sink: &s { source: {} } }', 'host: &h pg.internal', 'all: [&a { b: 1 }]'])
    assert.equal(parse(`${holder}\n${VALID}`).account, 'shop')
})

test('a routing function is of one type of sink; one that has it may leave its target to it', () => {
  const routed = `
functions:
  - { name: by-tenant, type: routing, sink_type: meilisearch, code: "export default (a, r) => ({ index_name: r.tenant })" }
sinks:
  - { name: s, database: shop, source: {}, routing: by-tenant, destination: { type: meilisearch, endpoint_url: "http://h", api_key: key } }
`
  const { functions, sinks } = parse(VALID.replace(/sinks:[^]*/, routed.trimStart()))
  assert.deepEqual([functions[0]?.type, functions[0]?.sinkType], ['routing', 'meilisearch'])
  assert.equal(sinks[0]?.input.routing, 'by-tenant')
  const wrong = (from: string, to: string) => VALID.replace(/sinks:[^]*/, routed.trimStart()).replace(from, to)
  refused(wrong('routing: by-tenant, ', ''), /destination\.index_name is missing/)
  refused(wrong('sink_type: meilisearch, ', ''), /sink_type is missing/)
  refused(
    wrong('sink_type: meilisearch', 'sink_type: pigeons'),
    /sink_type is "pigeons", which is no type of destination: functions route to webhook, /,
  )
  refused(wrong('sink_type: meilisearch', 'sink_type: stream'), /sink_type must be one of webhook, /)
  refused(wrong('type: routing, ', 'type: filter, '), /function "by-tenant": sink_type is only for functions of type routing/)
  refused(VALID.replace('source: {', 'routing: by-tenant\n    source: {'), /routing is not supported by sinks of type sequin_stream/)
})

test('functions in their older form are understood: another section, fields below transform or function', () => {
  const { functions } = parse(`${VALID}
transforms:
  - { name: key, transform: { type: path, path: record.id } }
  - { name: doc, description: all, function: { type: function, code: "export default (a, r) => r" } }
  - { name: flat, type: transform, code: "export default (a, r) => r" }
`)
  assert.deepEqual(
    functions.map(({ name, type, code, description }) => [name, type, code, description]),
    [
      ['key', 'path', 'record.id', null],
      ['doc', 'transform', 'export default (a, r) => r', 'all'],
      ['flat', 'transform', 'export default (a, r) => r', null],
    ],
  )
  const retention =
    '[{ name: a, source_database: shop, source_table_schema: public, source_table_name: goods, destination_database: shop, destination_table_schema: public, destination_table_name: events }]'
  const { retentions } = parse(`${VALID}change_retentions: ${retention}`)
  for (const section of ['wal_pipelines', 'change_capture_pipelines']) {
    assert.deepEqual(parse(`${VALID}${section}: ${retention}`).retentions, retentions)
    refused(`${VALID}change_retentions: []\n${section}: []\n`, new RegExp(`${section} is the older name of change_retentions`))
  }
  refused(`${VALID}functions: []\ntransforms: []\n`, /transforms is the older name of functions/)
  refused(`${VALID}transforms: [{ name: x, transform: { type: path, colour: red } }]\n`, /colour is not a known field/)
})

test('names that Postgres would cut are refused', () => {
  refused(VALID.replace('cdc_slot', 's'.repeat(64)), /^tailrace\.yaml:15:\d+: database "shop": slot .* is not a slot name: up to 63/)
  refused(
    VALID.replace('cdc_pub', 'p'.repeat(64)),
    /^tailrace\.yaml:16:\d+: database "shop": publication .* is too long: .* up to 63 bytes/,
  )
  refused(VALID.replace('cdc_pub', 'ü'.repeat(32)), /up to 63 bytes/)
  assert.equal(parse(VALID.replace('cdc_pub', 'p'.repeat(63))).databases[0]?.input.publicationName.length, 63)
})

test('a ca_cert has to be a certificate, and is taken with its lines', async () => {
  const pem = await authority('ca')
  const withCa = (text: string) => VALID.replace('ssl: verify-full', `ssl: verify-full\n    ca_cert: ${JSON.stringify(text)}`)
  assert.equal(parse(withCa(pem)).databases[0]?.input.connection.caCert, pem)
  refused(withCa('/etc/ssl/ca.pem'), /^tailrace\.yaml:15:\d+: database "shop": ca_cert is not a certificate in PEM/)
  refused(withCa(pem.replace(/[A-Z]{3}/g, 'AAA').replace(/AAAIN AAATIFICATE/, 'BEGIN CERTIFICATE')), /ca_cert is not a certificate/)
})

test('variables are replaced in values, with their defaults, and a port stays a number', () => {
  const source = VALID.replace('5433', '${PORT:-6543}').replace('pg.internal', '${HOST}')
  const [database] = parse(source, { HOST: 'db.example' }).databases
  assert.equal(database?.input.connection.port, 6543)
  assert.equal(database?.input.connection.hostname, 'db.example')
  refused(source, /^tailrace\.yaml:9:15: the variable HOST is not set/)
})

test('a doubled dollar sign makes a text of what looks like a variable', () => {
  const { databases } = parse(
    VALID.replace('"12345"', () => '"a$${HOST}$$${HOST}${HOST}$"'),
    { HOST: 'h' },
  )
  assert.equal(databases[0]?.input.connection.password, 'a${HOST}$${HOST}h$')
})

test('a secret that an export shows in part is never taken for the secret', () => {
  const hook = (secret: string) => `${VALID}http_endpoints: [{ name: e, url: "http://h", encrypted_headers: ${secret} }]\n`
  for (const shown of ['***', '*****', 's****t', 'sec********t']) {
    refused(
      VALID.replace('12345', shown),
      /^tailrace\.yaml:13:15: database "shop": password is a shortened secret, as answers show secrets: give the whole secret$/,
    )
    refused(hook(`{ x-key: "${shown}" }`), /^tailrace\.yaml:22:\d+: HTTP endpoint "e": encrypted_headers is a shortened secret/)
    refused(hook(`[{ key: x-key, value: "${shown}" }]`), /encrypted_headers is a shortened secret/)
  }
  refused(hook('"(2 encrypted header(s)) - sha256sum: 12345678"'), /encrypted_headers is a summary, which has only the number of headers/)
  const url = 'databases: [{ name: d, url: "postgresql://u:sec********t@h/d", slot_name: s, publication_name: p }]'
  refused(`account: { name: a }\n${url}`, /url has a password that is a shortened secret/)
  for (const whole of ['s*t', '**a**', 'a*b*c*d'])
    assert.equal(parse(VALID.replace('12345', whole)).databases[0]?.input.connection.password, whole)
})

test('all mistakes of a file are told at once, in its order, each with its line', () => {
  const wrong = VALID.replace('name: shop', 'nam: shop')
    .replace('port: 5433', 'port: no')
    .replace('ssl: verify-full', 'ssl: sometimes')
    .replace('pg.internal', '${NO_HOST}')
    .replace('cdc_pub, create_if_not_exists: true', 'cdc_pub, create_if_not_exists: yes, colour: 1')
    .replace('include_tables: [public.goods]', 'include_tables: []')
    .replace('sequin_stream', 'pigeons')
  assert.throws(
    () => parse(`${wrong}  - { name: 7, colour: red, batch_size: 0 }\nsnks: []\n`),
    (error) => {
      assert.ok(error instanceof EngineError)
      assert.deepEqual(error.message.split('\n'), [
        'tailrace.yaml:2:1: account: name is missing',
        'tailrace.yaml:3:8: account: nam is not a known field',
        'tailrace.yaml:9:15: the variable NO_HOST is not set; give it a default as in ${NO_HOST:-value}',
        'tailrace.yaml:10:11: database "shop": port must be a whole number, got a text',
        'tailrace.yaml:14:10: database "shop": ssl must be true, false, "disable", "prefer", "require", "verify-ca" or "verify-full"',
        'tailrace.yaml:16:57: database "shop": publication.create_if_not_exists must be true or false, got a text',
        'tailrace.yaml:16:70: database "shop": publication.colour is not a known field',
        'tailrace.yaml:20:15: sink "goods": source.include_tables must have at least one item or be null',
        'tailrace.yaml:21:26: sink "goods": destination.type is "pigeons", which is no type of destination: the sink "goods" can have sequin_stream, webhook, elasticsearch, meilisearch',
        'tailrace.yaml:22:5: sinks, entry 2: database is missing',
        'tailrace.yaml:22:5: sinks, entry 2: destination is missing',
        'tailrace.yaml:22:13: sinks, entry 2: name must be a text, got a number',
        'tailrace.yaml:22:24: sinks, entry 2: colour is not a field of a sink',
        'tailrace.yaml:22:41: sinks, entry 2: batch_size must be at least 1, got 0',
        'tailrace.yaml:23:1: unknown section "snks"; known are account, api_tokens, change_retentions, databases, functions, http_endpoints, sinks, users, and mappings of other names are ignored',
      ])
      assert.deepEqual(error.context, { file: 'tailrace.yaml', line: 2, column: 1 })
      return true
    },
  )
  refused('a: [1\nb: {c\n', /^tailrace\.yaml:2:1: .*\ntailrace\.yaml:3:1: /)
  refused(VALID + '  - 1\n'.repeat(60), /sinks, entry \d+: must be a mapping\n… and 10 more$/)
})

test('what has no effect in files of Sequin is left out, and told with its line', () => {
  const { notices: told } = parse(
    `${VALID}users: [{ account: shop, email: a@b.example, password: a-password }]\n`.replace(/token: .*/, 'token: secret'),
  )
  assert.deepEqual(
    told.map((notice) => notice.replace(/^\S+ /, '').slice(0, 60)),
    ['the API token "main" has fewer than 8 characters, and can be', 'user "a@b.example": account is ignored: users are of the acc'],
  )
  const { notices, databases } = parse(
    VALID.replace('name: cdc_pub,', 'name: cdc_pub, schemas: [public],').replace(
      'ssl: verify-full',
      'ssl: verify-full\n    tables: [{ table_name: goods }]',
    ),
  )
  assert.equal(databases[0]?.input.publicationName, 'cdc_pub')
  assert.deepEqual(notices, [
    'tailrace.yaml:15: database "shop": tables is ignored: the publication says which tables are streamed',
    'tailrace.yaml:17: database "shop": publication.schemas is ignored: a publication that is made has all tables, unless init_sql has another statement',
  ])
})

test('every mistake is named with file, line and what was expected', () => {
  refused('', /the file must be a mapping/)
  refused('account: [', /^tailrace\.yaml:\d+:\d+: /)
  refused('sinks: []', /section "account" is missing/)
  refused(VALID.replace('sinks:', 'sink:'), /^tailrace\.yaml:17:1: unknown section "sink"; known are account/)
  refused(`${VALID}change_retentions:\n  - name: f\n`, /^tailrace\.yaml:23:5: change retention "f": source_database is missing/)
  refused(VALID.replace('port: 5433', 'port: no'), /^tailrace\.yaml:10:11: database "shop": port must be a whole number/)
  refused(VALID.replace('port: 5433', 'prt: 5433'), /prt is not a known field/)
  refused(
    VALID.replace('sequin_stream', 'kafak'),
    /^tailrace\.yaml:21:\d+: sink "goods": destination\.type is "kafak", .* the sink "goods" can have sequin_stream, webhook/,
  )
  refused(
    VALID.replace('database: shop\n    source', 'database: shop\n    batch_size: 0\n    source'),
    /^tailrace\.yaml:20:17: .*batch_size must be at least 1/,
  )
  refused(VALID.replace('destination: {', 'routing: mine\n    destination: {'), /routing is not supported by sinks of type sequin_stream/)
  const first = (list: string) => VALID.replace('destination: {', `initial_backfill: ${list}\n    destination: {`)
  refused(first('soon'), /^tailrace\.yaml:21:23: .*initial_backfill must be true, false or a list, got a text/)
  refused(
    first('[{ table: goods, type: partial, sort_column: id }]'),
    /^tailrace\.yaml:21:\d+: .*start_position is missing: type is partial/,
  )
  refused(first('[{ table: goods, sort_column: id, start_position: 1 }]'), /type must be "partial" beside sort_column and start_position/)
  refused(first('[{ table: goods }, { table: public.goods }]'), /initial_backfill\.1\.table names public\.goods a second time/)
  refused(first('[{ table: other.bads }]'), /names other\.bads, which the sink does not take/)
  refused(first('[{ table: goods, where: a }]'), /initial_backfill\.0\.where is not a known field/)
  refused(VALID.replace('destination: {', 'colour: red\n    destination: {'), /colour is not a field of a sink/)
  refused(VALID.replace('hostname: pg.internal', 'hostname: pg.internal\n    url: postgresql://a:b@c/d'), /hostname is given beside url/)
  refused(VALID.replace('cdc_slot', 'CDC-slot'), /is not a slot name/)
  refused(`${VALID}  - { name: goods, database: shop, destination: { type: sequin_stream } }\n`, /the name "goods" is given twice/)
})

test('whatever a file holds, it is applied or refused with a place, and never a crash', () => {
  const value = fc.letrec((tie) => ({
    any: fc.oneof(
      { maxDepth: 3 },
      fc.constantFrom<unknown>(null, true, 0, -1, 1e300, '', 'shop', '${X:-1}', 'none', 'sequin_stream'),
      fc.string(),
      fc.array(tie('any'), { maxLength: 3 }),
      fc.dictionary(
        fc.oneof(fc.constantFrom('name', 'type', 'database', 'source', 'destination', 'slot', 'token', 'tables', 'url'), fc.string()),
        tie('any'),
        { maxKeys: 5 },
      ),
    ),
  })).any
  const sections = fc.record({ account: value, api_tokens: value, databases: value, sinks: value, other: value }, { requiredKeys: [] })
  const survives = (source: string) => {
    try {
      parse(source)
    } catch (error) {
      assert.ok(error instanceof EngineError && error.code === 'CONFIG_INVALID', String(error))
      assert.match(error.message, /^tailrace\.yaml:\d+:\d+: /)
    }
  }
  fc.assert(
    fc.property(sections, (document) => survives(stringify(document))),
    { numRuns: 300 },
  )
  fc.assert(fc.property(fc.string({ maxLength: 200 }), survives), { numRuns: 300 })
  fc.assert(
    fc.property(fc.nat(VALID.length), fc.string({ maxLength: 5 }), (at, text) => survives(VALID.slice(0, at) + text + VALID.slice(at))),
    { numRuns: 300 },
  )
})

test('HTTP endpoints and the webhooks that send to them stand in the file; headers may have values that YAML reads as numbers', () => {
  const { endpoints, sinks } = parse(`${VALID}  - name: hooks
    database: shop
    destination: { type: webhook, http_endpoint: partner, http_endpoint_path: /in, signing_secrets: ["whsec_${Buffer.alloc(24).toString('base64')}"] }
http_endpoints:
  - name: partner
    url: https://partner.example.com/hooks
    headers: { X-Version: 2, X-On: true }
    encrypted_headers: [{ key: Authorization, value: Bearer abc }]
  - { name: here, local: true, path: /dev }
`)
  assert.deepEqual(
    endpoints.map(({ line, input }) => ({ line, ...input })),
    [
      {
        line: 26,
        name: 'partner',
        kind: 'external',
        url: 'https://partner.example.com/hooks',
        headers: { 'X-Version': '2', 'X-On': 'true' },
        encryptedHeaders: { Authorization: 'Bearer abc' },
      },
      { line: 30, name: 'here', kind: 'local', url: '/dev', headers: {}, encryptedHeaders: {} },
    ],
  )
  assert.deepEqual(sinks[1]?.input.destination, {
    type: 'webhook',
    http_endpoint: 'partner',
    http_endpoint_path: '/in',
    batch: true,
    item_results: false,
    signing_secrets: [`whsec_${Buffer.alloc(24).toString('base64')}`],
  })
  refused(`${VALID}http_endpoints: [{ name: a, url: ftp://x }]`, /^tailrace\.yaml:22:\d+: HTTP endpoint "a": url must begin with http/)
  const { endpoints: tests } = parse(`${VALID}http_endpoints: [{ name: a, "webhook.site": "true" }]`)
  assert.equal(tests[0]?.input.url, '', 'nobody asks the test service because of a file')
})

test('what a client sends stays small where variables, aliases and functions repeat a text', async () => {
  const read = (yaml: string, more: Partial<GivenConfig> = {}) =>
    readGivenConfig(
      { yaml: `account: {name: a}\n${yaml}`, file: 'f', variables: {}, ...more },
      { databases: [], endpoints: [], sinks: [] },
      new AbortController().signal,
    )
  const times = (count: number, entry: (i: number) => string) => Array.from({ length: count }, (_, i) => entry(i)).join('\n')
  const text = 'x'.repeat(900_000)
  const endpoints = (value: string) => `http_endpoints:\n${times(400, (i) => `  - {name: e${i}, url: 'http://h', headers: {a: ${value}}}`)}`
  for (const [yaml, more] of [
    [`a: "${'${A}'.repeat(1_000)}"`, { variables: { A: text } }],
    [endpoints('"${A}"'), { variables: { A: text } }],
    [`a: &a "${text.slice(0, 100_000)}"\n${endpoints('*a')}`, {}],
  ] as const)
    await assert.rejects(read(yaml, more), { code: 'CONFIG_INVALID', message: /more than 16777216 characters/ })
  const files = { 'a.js': text }
  const { problems } = await read(`functions:\n${times(20, (i) => `  - {name: f${i}, type: transform, file: a.js}`)}`, { files })
  assert.match(String(problems.at(-1)?.reason), /more than 16777216 characters in total/)
})

test('the thread that has read a configuration reads the next one too, and one that was ended is replaced', async () => {
  let threads = 0
  const counted = () => void threads++
  subscribe('worker_threads', counted)
  const read = (yaml: string, signal = new AbortController().signal) =>
    readGivenConfig({ yaml, file: 'f', variables: {} }, { databases: [], endpoints: [], sinks: [] }, signal)
  const small = async () => assert.equal((await read('account: { name: a }')).document?.account, 'a')
  await small()
  threads = 0
  await small()
  assert.notEqual((await read('account: { name: a, colour: red }')).problems.length, 0)
  await small()
  assert.equal(threads, 0)
  await assert.rejects(read('account: { name: a }', AbortSignal.abort()), { code: 'STOPPING' })
  await small()
  assert.equal(threads, 1)
  await Promise.all([small(), small(), small()])
  await small()
  unsubscribe('worker_threads', counted)
  assert.equal(threads, 3)
})
