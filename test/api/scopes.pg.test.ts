/** Which token may ask what: every route that is served, with every scope, with none, and from another account. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Operation } from '../../api/http/operation.ts'
import { allows, SCOPES } from '../../engine/state/tokens.ts'
import { serveEverything, TOKENS } from './served-everything.ts'

/**
 * What is asked of a route. @property allowed the statuses of who may ask: 200, and what a repeated or empty request gets
 * @property other the statuses of another account's admin, who may ask but has no such resource
 */
type Row = Readonly<{ scope: Operation['scope']; body?: unknown; allowed?: readonly number[]; other?: readonly number[] }>

const FOREIGN = [404] as const
const LIST = { scope: 'read', other: [200] } as const
const READ = { scope: 'read', other: FOREIGN } as const
const MANAGE = { scope: 'manage', other: FOREIGN } as const
const OPEN = { scope: 'open', other: [200] } as const
/** Pages of nothing: what is asked for is not there, or asks for too little. */
const MISSING = [404] as const
const REFUSED = [422] as const

/** Each operation by its id: a route that is added has to say here, too, who may ask it. */
const ROWS: Readonly<Record<string, Row>> = {
  about: OPEN,
  health: OPEN,
  ready: OPEN,
  version: OPEN,
  openapi: OPEN,
  info: LIST,
  receive: { scope: 'receive', body: {}, other: FOREIGN },
  receiveByGet: { scope: 'receive', other: FOREIGN },
  ack: { scope: 'receive', body: { ack_ids: ['x'] }, other: FOREIGN },
  nack: { scope: 'receive', body: { ack_ids: ['x'] }, other: FOREIGN },
  receiveNested: { scope: 'receive', body: {}, other: FOREIGN },
  receiveByGetNested: { scope: 'receive', other: FOREIGN },
  ackNested: { scope: 'receive', body: { ack_ids: ['x'] }, other: FOREIGN },
  nackNested: { scope: 'receive', body: { ack_ids: ['x'] }, other: FOREIGN },
  listChangeRetentions: LIST,
  createChangeRetention: { scope: 'manage', body: {}, allowed: REFUSED, other: REFUSED },
  getChangeRetention: { ...READ, allowed: MISSING },
  updateChangeRetention: { ...MANAGE, body: {}, allowed: MISSING },
  deleteChangeRetention: { ...MANAGE, allowed: MISSING },
  testChangeRetention: { ...MANAGE, allowed: MISSING },
  listSinks: LIST,
  createSink: { scope: 'manage', body: {}, allowed: REFUSED, other: REFUSED },
  getSink: READ,
  updateSink: { ...MANAGE, body: {} },
  deleteSink: { ...MANAGE, allowed: [200, 404] },
  testSink: MANAGE,
  replaySink: { ...MANAGE, body: { time: '2025-02-03T04:05:06Z' } },
  listBackfills: READ,
  createBackfill: { ...MANAGE, body: { table: 'public.missing' }, allowed: REFUSED },
  getBackfill: { ...READ, allowed: MISSING },
  updateBackfill: { ...MANAGE, body: { state: 'cancelled' }, allowed: MISSING },
  deleteBackfill: { ...MANAGE, allowed: MISSING },
  listMessages: READ,
  tailMessages: READ,
  verifySink: { ...MANAGE, body: { table: 'public.goods' } },
  getMessage: { ...READ, allowed: MISSING },
  redeliverMessage: { ...MANAGE, allowed: MISSING },
  acknowledgeMessage: { ...MANAGE, allowed: MISSING },
  acknowledgeMessages: { ...MANAGE, body: { state: 'open' } },
  discardMessage: { ...MANAGE, allowed: MISSING },
  redeliverMessages: { ...MANAGE, body: { state: 'open' } },
  discardMessages: { ...MANAGE, body: { state: 'open' } },
  listFunctions: LIST,
  createFunction: { scope: 'manage', body: {}, allowed: REFUSED, other: REFUSED },
  getFunction: { ...READ, allowed: MISSING },
  updateFunction: { ...MANAGE, body: {}, allowed: MISSING },
  deleteFunction: { ...MANAGE, allowed: MISSING },
  testFunction: { scope: 'manage', body: {}, allowed: REFUSED, other: REFUSED },
  testStoredFunction: { ...MANAGE, body: {}, allowed: MISSING },
  planConfig: { scope: 'manage', body: { yaml: '- no mapping' }, allowed: REFUSED, other: REFUSED },
  applyConfig: { scope: 'manage', body: { yaml: '- no mapping' }, allowed: REFUSED, other: REFUSED },
  exportConfig: LIST,
  listHttpEndpoints: LIST,
  createHttpEndpoint: { scope: 'manage', body: {}, allowed: REFUSED, other: REFUSED },
  getHttpEndpoint: { ...READ, allowed: MISSING },
  updateHttpEndpoint: { ...MANAGE, body: {}, allowed: MISSING },
  deleteHttpEndpoint: { ...MANAGE, allowed: MISSING },
  testHttpEndpoint: { ...MANAGE, allowed: MISSING },
  listDatabases: LIST,
  createDatabase: { scope: 'manage', body: {}, allowed: REFUSED, other: REFUSED },
  getDatabase: READ,
  updateDatabase: { ...MANAGE, body: {} },
  deleteDatabase: { ...MANAGE, allowed: REFUSED },
  testDatabase: { ...MANAGE, allowed: REFUSED },
  refreshTables: MANAGE,
  listTables: READ,
  listReplications: LIST,
  getReplication: { ...READ, allowed: MISSING },
  listLocalTunnels: LIST,
  checkDatabase: READ,
  acceptGap: { ...MANAGE, allowed: [409] },
  retrySource: MANAGE,
  listApiKeys: { scope: 'admin', other: [200] },
  createApiKey: { scope: 'admin', body: { name: 'no blanks are allowed' }, allowed: REFUSED, other: REFUSED },
  getSession: OPEN,
  signIn: { scope: 'open', body: {}, allowed: REFUSED, other: REFUSED },
  signOut: OPEN,
  beginOidcSignIn: { scope: 'open', allowed: [404], other: FOREIGN },
  endOidcSignIn: { scope: 'open', allowed: [404], other: FOREIGN },
  changePassword: { scope: 'open', body: {}, allowed: [401], other: [401] },
  setUp: { scope: 'open', body: {}, allowed: REFUSED, other: REFUSED },
  acceptInvitation: { scope: 'open', body: {}, allowed: REFUSED, other: REFUSED },
  listUsers: { scope: 'admin', other: [200] },
  updateUser: { scope: 'admin', body: { role: 'viewer' }, allowed: MISSING, other: FOREIGN },
  deleteUser: { scope: 'admin', allowed: MISSING, other: FOREIGN },
  listInvitations: { scope: 'admin', other: [200] },
  createInvitation: { scope: 'admin', body: {}, allowed: REFUSED, other: REFUSED },
  deleteInvitation: { scope: 'admin', allowed: MISSING, other: FOREIGN },
  listAuditLog: { scope: 'admin', other: [200] },
  deleteApiKey: { scope: 'admin', allowed: MISSING, other: FOREIGN },
}

/** The path of a request, for resources of the account "shop". */
const pathOf = ({ id }: Operation, path: string): string => {
  const named = id === 'deleteSink' ? 'spare' : path.includes('postgres_databases') ? 'shop' : 'goods'
  return path.replace('{id_or_name}', named).replaceAll(/\{\w+\}/g, '00000000-0000-4000-8000-000000000000')
}

let served: Awaited<ReturnType<typeof serveEverything>>
before(async () => {
  served = await serveEverything()
})
after(() => served[Symbol.asyncDispose]())

const requests = () =>
  served.api.operations.flatMap((operation) =>
    operation.methods.flatMap((method) =>
      operation.paths.map((path) => ({ operation, row: ROWS[operation.id], method, path: pathOf(operation, path) })),
    ),
  )

test('each route that is served has a row here, which says the same scope, and no row is of a route that is gone', () => {
  const ids = served.api.operations.map(({ id }) => id)
  assert.deepEqual(ids.toSorted(), Object.keys(ROWS).toSorted())
  for (const { id, scope } of served.api.operations) assert.equal(scope, ROWS[id]?.scope, id)
})

test('without a token, with an unknown one and with another scheme a route answers 401, unless anyone may ask it', async () => {
  for (const { row, method, path } of requests()) {
    const headers: readonly Readonly<Record<string, string>>[] = [
      {},
      { authorization: 'Bearer of-nobody' },
      { authorization: 'Basic dXNlcjpwYXNz' },
      { authorization: 'Bearer' },
    ]
    for (const given of headers) {
      const { status, body } = await served.call(method, path, { headers: given, body: method === 'GET' ? undefined : row?.body })
      if (row?.scope === 'open') assert.ok((row.allowed ?? [200]).includes(status), `${method} ${path}: ${status}`)
      else assert.deepEqual([status, body.code], [401, 'TOKEN_INVALID'], `${method} ${path}`)
    }
  }
})

test('another account may ask, and finds nothing of this one', async () => {
  for (const { row, method, path } of requests()) {
    const { status, text } = await served.call(method, path, { token: TOKENS.other, body: method === 'GET' ? undefined : row?.body })
    assert.ok((row?.other ?? []).includes(status), `${method} ${path}: ${status} ${text}`)
    if (row?.scope !== 'open' && status === 200) assert.doesNotMatch(text, /goods|spare|search/, `${method} ${path}`)
  }
})

test('a route answers who has its scope, or one that has it in it, and others learn which scope they lack', async () => {
  for (const { row, method, path } of requests()) {
    for (const scope of SCOPES) {
      const { status, body, text } = await served.call(method, path, {
        token: TOKENS[scope],
        body: method === 'GET' ? undefined : row?.body,
      })
      const what = `${method} ${path} with ${scope}: ${status} ${text}`
      const wanted = row?.scope ?? 'open'
      if (wanted === 'open' || allows({ scopes: [scope] }, wanted)) assert.ok((row?.allowed ?? [200]).includes(status), what)
      else assert.deepEqual([status, body.code, body.required_scope], [403, 'SCOPE_MISSING', wanted], what)
    }
  }
})

test('a token that receives from named sinks reaches no other, by name or by id, and learns of none', async () => {
  const id = served.cache.sinks.find(({ name }) => name === 'goods')?.id ?? assert.fail('no sink')
  for (const { operation, row, method, path } of requests()) {
    if (operation.scope !== 'receive') continue
    const ask = async (token: string, sink: string) =>
      (await served.call(method, path.replace('goods', sink), { token, body: row?.body })).status
    for (const name of ['goods', id]) {
      assert.equal(await ask(TOKENS.receive, name), 200, path)
      assert.equal(await ask(TOKENS.receiveAll, name), 200, path)
      assert.equal(await ask(TOKENS.receiveElsewhere, name), 403, path)
    }
    assert.equal(await ask(TOKENS.receive, 'missing'), 403)
    assert.equal(await ask(TOKENS.receiveAll, 'missing'), 404)
  }
})

test('secrets, and files with tokens, are for admins', async () => {
  const shown = (token: string, value: string) => served.call('GET', `/api/config/export?show-sensitive=${value}`, { token })
  assert.equal((await shown(TOKENS.read, 'false')).status, 200)
  assert.equal((await shown(TOKENS.admin, 'true')).status, 200)
  for (const token of [TOKENS.read, TOKENS.manage]) assert.equal((await shown(token, 'true')).body.required_scope, 'admin')
  for (const path of ['', '/shop'])
    for (const token of [TOKENS.read, TOKENS.manage, TOKENS.admin]) {
      const { body, text } = await served.call('GET', `/api/postgres_databases${path}?show_sensitive=true`, { token })
      assert.deepEqual([body.required_scope === 'admin', text.includes(served.db.connection.password)], token === TOKENS.admin ? [false, true] : [true, false]) // prettier-ignore
    }
  const yaml = 'api_tokens: [{ name: mine, token: a-token-of-mine }]'
  for (const verb of ['plan', 'apply']) {
    const { status, body } = await served.call('POST', `/api/config/${verb}`, { token: TOKENS.manage, body: { yaml } })
    assert.deepEqual([status, body.code, body.required_scope], [403, 'SCOPE_MISSING', 'admin'])
  }
  assert.equal((await served.call('POST', '/api/config/plan', { token: TOKENS.admin, body: { yaml } })).status, 200)
})

test('whoever is no admin has a stored password sent to no other server, over the API or by a file', async () => {
  const { hostname, port, database, username, password } = served.db.connection
  const elsewhere = hostname === 'localhost' ? '127.0.0.1' : 'localhost'
  const patch = async (token: string, body: object) => served.call('PATCH', '/api/postgres_databases/moved', { token, body })
  const slots = [{ slot_name: `s_${served.db.name}`, publication_name: 'moved', create_if_not_exists: true, status: 'disabled' }]
  const login = { hostname, port, database, username, password, ssl: false }
  const made = await served.call('POST', '/api/postgres_databases', {
    token: TOKENS.manage,
    body: { name: 'moved', ...login, primary: login, replication_slots: slots },
  })
  assert.equal(made.status, 201, made.text)
  const hidden = String((await patch(TOKENS.manage, { annotations: { team: 'search' } })).body.password)
  assert.notEqual(hidden, password)
  const link = `postgresql://${username}:${hidden}@${elsewhere}:${port}/${database}`
  const moves = [{ hostname: elsewhere }, { port: 9 }, { ssl: 'require' }, { hostname: elsewhere, password: hidden }, { url: link }]
  for (const move of [...moves, ...moves.map((primary) => ({ primary }))]) {
    const { status, body, text } = await patch(TOKENS.manage, move)
    assert.deepEqual([status, body.code], [422, 'VALIDATION_FAILED'], JSON.stringify(move))
    assert.match(text, /must be given again in full/, JSON.stringify(move))
  }
  const shown = { ...login, password: hidden, slot: { name: slots[0]?.slot_name, status: 'disabled' }, publication: { name: 'moved' } }
  const yamlAt = (host: string) =>
    JSON.stringify({ databases: [{ name: 'moved', ...shown, hostname: host, primary: { ...login, password: hidden, hostname: host } }] })
  const [yaml, moved] = [yamlAt(hostname), yamlAt(elsewhere)]
  for (const verb of ['plan', 'apply']) {
    const { status, text } = await served.call('POST', `/api/config/${verb}`, { token: TOKENS.manage, body: { yaml: moved } })
    assert.equal(status, 422)
    assert.match(text, /database \\"moved\\": password must be given again in full/)
    assert.match(text, /database \\"moved\\": primary.password must be given again in full/)
  }
  assert.equal((await served.call('POST', '/api/config/plan', { token: TOKENS.manage, body: { yaml } })).status, 200)
  assert.equal((await served.call('POST', '/api/config/plan', { token: TOKENS.admin, body: { yaml: moved } })).status, 200)

  assert.equal((await patch(TOKENS.manage, { hostname: elsewhere, password, primary: null })).body.hostname, elsewhere)
  assert.equal((await patch(TOKENS.admin, { hostname })).body.hostname, hostname)
})
