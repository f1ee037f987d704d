/** The management of functions served over HTTP, on a real state database and with real sandboxes. */
import { randomBytes, randomUUID } from 'node:crypto'
import { ResourceEdits } from '../../actors/resources/resource-edits.ts'
import type { RecentAsked, RecentMessage } from '../../actors/recent-messages.ts'
import { startApi } from '../../api/server.ts'
import { newSink } from '../../actors/resources/sink-form.ts'
import { createLogger } from '../../engine/logger.ts'
import { ResourceCache } from '../../engine/state/resource-cache.ts'
import { ResourceStore } from '../../engine/state/resource-store.ts'
import { Vault } from '../../engine/state/secrets.ts'
import { TokenMemory } from '../../engine/state/token-memory.ts'
import { saveToken } from '../../engine/state/token-store.ts'
import { openStore } from '../../engine/state/store.ts'
import { createState } from '../services/postgres.ts'
import { pool as newPool } from '../transforms/function-fixture.ts'
import { ScriptedEngine } from './scripted-engine.ts'
import { STORED_DESTINATIONS } from '../../sinks/destination-types.ts'
import { checkedFetch } from './checked-fetch.ts'

const MEILISEARCH = { type: 'meilisearch', endpoint_url: 'http://search:7700', api_key: 'a-good-key' }

export const RECENT = [1, 9007199254740993n].map((id) => ({
  at: String(id),
  text: `{"record":{"id":${id}},"changes":null,"action":"insert","metadata":{"table_schema":"public","table_name":"goods","record_pks":["${id}"]}}`,
}))

export async function serve() {
  const stack = new AsyncDisposableStack()
  const { connection } = stack.use(await createState())
  const store = stack.use(await openStore(connection, 3, () => undefined))
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  const pool = stack.use(newPool())
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'shop')
    await saveToken(query, account, { name: 'main', token: 'a-good-token' })
    const other = await resources.saveAccount(query, 'other')
    await saveToken(query, other, { name: 'main', token: 'another-token' })
    const database = { name: 'shop', poolSize: 1, annotations: {}, slotName: 's', publicationName: 'p', connection }
    await resources.save(query, 'database', { account, input: database })
    await resources.save(query, 'sink', {
      account,
      input: newSink({ name: 'goods', database: 'shop', transform: 'doc', destination: { type: 'stream' } }),
    })
    await resources.save(query, 'sink', {
      account,
      input: newSink({ name: 'search', database: 'shop', destination: { ...MEILISEARCH, index_name: 'all' } }),
    })
  })
  const cache = new ResourceCache(await resources.load(store.query))
  const tokens = stack.use(new TokenMemory({ query: store.query, onError: () => undefined }))
  await tokens.load()
  let reloads = 0
  const reload = async () => {
    reloads++
    cache.replace(await resources.load(store.query))
  }
  const recent = { list: [] as readonly RecentMessage[] }
  const edits = new ResourceEdits({ store, resources, cache, takeIn: reload })
  const functions = { resources: cache, pool }
  const engine = Object.assign(new ScriptedEngine(), {
    recent: async (asked: RecentAsked) => ('sinkIds' in asked || asked.table === 'public.goods' ? recent.list : []),
  })
  const identity = { version: '0', nodeId: randomUUID(), nodeName: 'test' }
  const logger = createLogger({ level: 'fatal', format: 'json' })
  const api = stack.use(
    await startApi({ host: '127.0.0.1', port: 0, engine, resources: cache, tokens, edits, functions, logger, identity }),
  )
  const call = async (method: string, path: string, body?: unknown, token = 'a-good-token') => {
    const answer = await checkedFetch(`${api.url}/api${path}`, {
      method,
      headers: { authorization: `Bearer ${token}` },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
    const text = await answer.text()
    return { status: answer.status, text, body: JSON.parse(text) as any } // oxlint-disable-line typescript/no-explicit-any
  }
  return { call, url: api.url, recent, cache, store, reload, reloads: () => reloads, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}
