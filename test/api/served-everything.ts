/** All that the API has, served on a real state database over a scripted engine: two accounts, and tokens of each kind. */
import { randomBytes, randomUUID } from 'node:crypto'
import { ConfigEdits } from '../../actors/config/config-edits.ts'
import { BackfillEdits } from '../../actors/resources/backfill-edits.ts'
import { DatabaseEdits } from '../../actors/resources/database-edits.ts'
import { ResourceEdits } from '../../actors/resources/resource-edits.ts'
import { newSink } from '../../actors/resources/sink-form.ts'
import { UserEdits } from '../../actors/resources/user-edits.ts'
import { TokenEdits } from '../../actors/resources/token-edits.ts'
import { startApi } from '../../api/server.ts'
import { createLogger } from '../../engine/logger.ts'
import { auditEntries, record } from '../../engine/state/audit.ts'
import { ResourceCache } from '../../engine/state/resource-cache.ts'
import { ResourceStore } from '../../engine/state/resource-store.ts'
import { Vault } from '../../engine/state/secrets.ts'
import { openStore } from '../../engine/state/store.ts'
import { TokenMemory } from '../../engine/state/token-memory.ts'
import { saveToken } from '../../engine/state/token-store.ts'
import type { Scope } from '../../engine/state/tokens.ts'
import { DESTINATIONS } from '../../sinks/destination-types.ts'
import { createState } from '../services/postgres.ts'
import { pool as newPool } from '../transforms/function-fixture.ts'
import { ScriptedEngine, ScriptedSink } from './scripted-engine.ts'
import { checkedFetch } from './checked-fetch.ts'

/** The texts of the tokens, by what they may do. */
export const TOKENS = {
  admin: 'token-with-admin',
  manage: 'token-with-manage',
  read: 'token-with-read',
  receive: 'token-with-receive-of-goods',
  receiveAll: 'token-with-receive-of-all',
  receiveElsewhere: 'token-with-receive-of-search',
  other: 'token-of-another-account',
} as const

export type Answered = Readonly<{
  status: number
  text: string
  headers: Headers
  body: any // oxlint-disable-line typescript/no-explicit-any
}>

/** @param wrongTokens of a minute that are not slowed */
export async function serveEverything({ wrongTokens = Infinity, trustedProxies = [] as readonly string[] } = {}) {
  await using stack = new AsyncDisposableStack()
  const db = stack.use(await createState())
  const { connection } = db
  const store = stack.use(await openStore(connection, 4, () => undefined))
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: DESTINATIONS })
  const pool = stack.use(newPool())
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'shop')
    const other = await resources.saveAccount(query, 'other')
    const rights = (...scopes: readonly Scope[]) => ({ scopes })
    await saveToken(query, account, { name: 'admin', token: TOKENS.admin })
    await saveToken(query, account, { name: 'manage', token: TOKENS.manage, ...rights('manage') })
    await saveToken(query, account, { name: 'read', token: TOKENS.read, ...rights('read') })
    await saveToken(query, account, { name: 'receive', token: TOKENS.receive, ...rights('receive'), sinks: ['goods'] })
    await saveToken(query, account, { name: 'all', token: TOKENS.receiveAll, ...rights('receive'), sinks: ['*'] })
    await saveToken(query, account, { name: 'elsewhere', token: TOKENS.receiveElsewhere, ...rights('receive'), sinks: ['search'] })
    await saveToken(query, other, { name: 'main', token: TOKENS.other })
    const database = { name: 'shop', poolSize: 1, annotations: {}, slotName: 's', publicationName: 'p', connection }
    await resources.save(query, 'database', { account, input: database })
    for (const name of ['goods', 'spare', 'search'])
      await resources.save(query, 'sink', { account, input: newSink({ name, database: 'shop', destination: { type: 'sequin_stream' } }) })
  })
  const cache = new ResourceCache(await resources.load(store.query))
  const tokens = stack.use(new TokenMemory({ query: store.query, onError: () => undefined }))
  await tokens.load()
  const reload = async () => {
    await tokens.load()
    cache.replace(await resources.load(store.query))
  }
  const engine = new ScriptedEngine()
  engine.databases = cache.databases
  for (const { id } of cache.sinks) engine.running.set(id, new ScriptedSink())
  const lines: Record<string, unknown>[] = []
  const logger = createLogger({
    level: 'info',
    format: 'json',
    destination: { write: (line: string) => void lines.push(JSON.parse(line) as Record<string, unknown>) },
  })
  const edits = new ResourceEdits({ store, resources, cache, takeIn: reload })
  const users = new UserEdits({ store, resources, vaultKey: Buffer.alloc(32, 5) })
  const api = stack.use(
    await startApi({
      host: '127.0.0.1',
      port: 0,
      engine,
      resources: cache,
      tokens,
      tokenEdits: new TokenEdits({ store, memory: tokens, takeIn: () => tokens.load() }),
      users,
      audit: {
        entries: (accountId, filter) => auditEntries(store.query, accountId, filter),
        note: (change) => record(store.query, [change]),
      },
      edits,
      databases: new DatabaseEdits({ edits, logger, unstored: { during: (work) => work(async () => undefined) } }),
      backfills: new BackfillEdits({ store, resources, takeIn: reload }),
      functions: { resources: cache, pool },
      config: new ConfigEdits({ store, resources, pool, signal: new AbortController().signal, takeIn: reload, logger }),
      logger,
      limits: { wrongTokens },
      trustedProxies,
      identity: { version: '0', nodeId: randomUUID(), nodeName: 'test' },
    }),
  )
  /** @param token undefined: none is sent */
  const call = async (
    method: string,
    path: string,
    {
      token,
      body,
      headers = {},
    }: Readonly<{ token?: string | undefined; body?: unknown; headers?: Readonly<Record<string, string>> }> = {},
  ): Promise<Answered> => {
    const answer = await checkedFetch(`${api.url}${path}`, {
      method,
      redirect: 'manual',
      headers: { ...(token !== undefined && { authorization: `Bearer ${token}` }), ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
    const text = await answer.text()
    return { status: answer.status, text, headers: answer.headers, body: text.startsWith('{') ? (JSON.parse(text) as unknown) : undefined }
  }
  const owned = stack.move()
  return { db, api, call, cache, tokens, users, store, resources, engine, lines, reload, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}
