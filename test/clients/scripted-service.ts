/** A service that answers as it is told, for what a real one does rarely: refuse, break off, be slow. */
import type { Retry } from '../../clients/typescript/consume.ts'
import { HttpReceiver, type Reply } from '../services/http-receiver.ts'

const EMPTY = '{"data":[]}'
/** An answer. */
export const json = (body: unknown): Reply => ({ headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })
/** A message of an answer. */
export const wire = (id: string, record: object = {}) => ({ ack_id: id, record, changes: null, action: 'insert', metadata: {} })

/** A service that hands out answers in their order, and then none; it keeps what was acked and nacked. */
export async function scripted(
  answers: readonly Reply[],
  { ackWaitMs = 30_000, settle = () => json({ success: true }) }: { ackWaitMs?: number; settle?: () => Reply } = {},
) {
  const left = [...answers]
  const acked: string[] = []
  const nacked: string[] = []
  const calls: string[] = []
  const receiver = await HttpReceiver.start(({ path, body }) => {
    const call = path.split('/').at(-1) ?? ''
    calls.push(call)
    if (call === 'rows') return json({ ack_wait_ms: ackWaitMs })
    if (call === 'receive') return left.shift() ?? { body: EMPTY, delayMs: 50 }
    const reply = settle()
    const isTaken = typeof reply === 'object' && (reply.status ?? 200) === 200
    if (isTaken) (call === 'ack' ? acked : nacked).push(...(JSON.parse(String(body)) as { ack_ids: string[] }).ack_ids)
    return reply
  })
  const stop = new AbortController()
  const retries: Retry[] = []
  const options = { url: receiver.url, sink: 'rows', token: 'x', signal: stop.signal, onRetry: (retry: Retry) => void retries.push(retry) }
  return { receiver, options, stop, retries, acked, nacked, calls, [Symbol.asyncDispose]: () => receiver[Symbol.asyncDispose]() }
}
