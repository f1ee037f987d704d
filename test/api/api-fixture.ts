/** A served API over the scripted engine, and a client of it; both end with the scope. */
import { Writable } from 'node:stream'
import { createLogger } from '../../engine/logger.ts'
import { Metrics } from '../../engine/metrics.ts'
import { startApi, type ApiOptions, type ApiServer } from '../../api/server.ts'
import type { Limits } from '../../api/limits.ts'
import { GOODS_ID, ScriptedEngine, TOKEN, type ScriptedSink } from './scripted-engine.ts'
import { checkedFetch } from './checked-fetch.ts'

export type Answer = { status: number; headers: Headers; body: unknown; text: string }
export type CallOptions = {
  method?: string
  body?: unknown
  raw?: string | Uint8Array
  headers?: Record<string, string>
  token?: string | null
  signal?: AbortSignal
}

export type Fixture = AsyncDisposable & {
  engine: ScriptedEngine
  goods: ScriptedSink
  api: ApiServer
  metrics: Metrics
  log: string[]
  call: (path: string, options?: CallOptions) => Promise<Answer>
}

/** One sink "goods" that runs, for the account of TOKEN. */
export async function serve(
  limits: Partial<Limits> = {},
  more: Pick<ApiOptions, 'certificate' | 'corsOrigins' | 'trustedProxies'> = {},
): Promise<Fixture> {
  const engine = new ScriptedEngine()
  const goods = engine.add({ id: GOODS_ID, name: 'goods' })
  const log: string[] = []
  const destination = new Writable({ write: (chunk, _encoding, done) => (log.push(String(chunk)), done()) })
  const metrics = new Metrics({ version: '9.9.9', processMetrics: false })
  const api = await startApi({
    host: '127.0.0.1',
    port: 0,
    engine,
    resources: engine,
    tokens: engine.tokens,
    edits: engine.resourceEdits,
    metrics,
    logger: createLogger({ level: 'info', format: 'json', destination }),
    identity: { version: '9.9.9', nodeId: 'id-1', nodeName: 'node-1' },
    limits,
    ...more,
  })
  const call: Fixture['call'] = async (path, { method, body, raw, headers = {}, token = TOKEN, signal } = {}) => {
    const sent = raw ?? (body === undefined ? undefined : JSON.stringify(body))
    const answer = await checkedFetch(`${api.url}${path}`, {
      method: method ?? (sent === undefined ? 'GET' : 'POST'),
      headers: { ...(token !== null && { authorization: `Bearer ${token}` }), ...headers },
      ...(sent !== undefined && { body: sent as string }),
      ...(signal && { signal }),
    })
    const text = await answer.text()
    return { status: answer.status, headers: answer.headers, text, body: text === '' ? undefined : (JSON.parse(text) as unknown) }
  }
  return { engine, goods, api, metrics, log, call, [Symbol.asyncDispose]: () => api.stop(1_000) }
}

/** Settles when `met` is true, asked again at each change of what waits in the sink. */
export function waitingCount(sink: ScriptedSink, count: number): Promise<void> {
  if (sink.waiting === count) return Promise.resolve()
  return new Promise((resolve) => {
    sink.onWaiting = () => sink.waiting === count && resolve()
  })
}
