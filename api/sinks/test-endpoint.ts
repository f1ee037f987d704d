/** An address at the public test service webhook.site, made by its own API. Only when a user asks for it. */
import { EngineError } from '../../engine/errors.ts'
import type { Egress } from '../../engine/net/egress.ts'
import { HttpPool } from '../../engine/net/http-pool.ts'

const SERVICE = 'https://webhook.site'
const LIMIT_MS = 10_000

/**
 * Asks the test service for a fresh address. @throws EngineError DESTINATION_UNREACHABLE: it does not answer, or otherwise than
 * expected
 */
export async function makeTestUrl(egress: Egress, service = SERVICE): Promise<string> {
  const pool = new HttpPool({ origin: service, connections: 1, egress })
  try {
    const headers = ['accept', 'application/json', 'content-type', 'application/json']
    const { answer, failure } = await pool.request({
      method: 'POST',
      path: '/token',
      headers,
      body: Buffer.from('{}'),
      timeoutMs: LIMIT_MS,
      keepBytes: 65_536,
    })
    if (failure) throw new EngineError('DESTINATION_UNREACHABLE', `${service} does not answer: ${failure.message}`)
    const uuid = answer.status < 300 ? /"uuid"\s*:\s*"([0-9a-f-]{36})"/.exec(answer.body.toString())?.[1] : undefined
    if (uuid === undefined)
      throw new EngineError('DESTINATION_UNREACHABLE', `${service} answers with status ${answer.status} and without an address`)
    return `${service}/${uuid}`
  } finally {
    await pool.close()
  }
}
