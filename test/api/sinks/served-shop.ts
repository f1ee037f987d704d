/** A shop whose engine runs and is served over HTTP, with everything that can be set up there. */
import { Shop } from '../../actors/shop.ts'
import { resources } from '../../actors/engine-node.ts'
import { saveToken } from '../../../engine/state/token-store.ts'
import { startApi } from '../../../api/server.ts'
import { createLogger } from '../../../engine/logger.ts'
import { checkedFetch } from '../checked-fetch.ts'

export const TOKEN = 'a-good-token'
export const OTHER_TOKEN = 'another-token'

export type ShownBackfill = Readonly<{
  id: string
  sink_consumer: string
  state: string
  table: string
  rows_initial_count: number | null
  rows_processed_count: number
  rows_ingested_count: number
  rows_per_second: number | null
  seconds_left: number | null
  waiting: string | null
  error: Readonly<{ code: string; message: string }> | null
}>
export type Called = Readonly<{
  status: number
  body: any // oxlint-disable-line typescript/no-explicit-any
}>

/** @param sinks as Shop.open takes them */
export async function serveShop(sinks: readonly string[]) {
  await using stack = new AsyncDisposableStack()
  const shop = stack.use(await Shop.open(sinks))
  const { engine, edits, backfills, cache, tokens, store } = shop.node
  await store.transaction(async (query) => {
    const account = await resources.saveAccount(query, 'shop')
    await saveToken(query, account, { name: 'main', token: TOKEN })
    await saveToken(query, await resources.saveAccount(query, 'other'), { name: 'main', token: OTHER_TOKEN })
  })
  await tokens.load()
  const logger = createLogger({ level: 'fatal', format: 'json' })
  const identity = { version: '0', nodeId: 'id-1', nodeName: 'test' }
  const api = stack.use(
    await startApi({ host: '127.0.0.1', port: 0, engine, resources: cache, tokens, edits, backfills, logger, identity }),
  )
  const call = async (method: string, path: string, body?: unknown, token = TOKEN): Promise<Called> => {
    const answer = await checkedFetch(`${api.url}/api${path}`, {
      method,
      headers: { authorization: `Bearer ${token}` },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
    return { status: answer.status, body: await answer.json() }
  }
  const owned = stack.move()
  return { shop, call, url: api.url, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}
