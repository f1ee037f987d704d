/** Tests the connection of a sink by the very calls a delivery would need, and nothing delivered. The result changes nothing. */
import { EngineError } from '../../engine/errors.ts'
import type { Egress } from '../../engine/net/egress.ts'
import { HttpPool } from '../../engine/net/http-pool.ts'
import { withoutAddress, type HttpEndpoint } from '../../engine/state/destinations.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { PUSH_TYPES } from '../../sinks/destination-types.ts'

const LIMIT_MS = 15_000

/** Tries to reach the destination of a sink. @returns what is wrong, in the destination's own words; undefined: nothing */
export async function testConnection(
  of: Readonly<{ sink: Sink; database: Database; endpoint: HttpEndpoint | undefined; target?: Database | undefined; egress: Egress }>,
): Promise<string | undefined> {
  const type = PUSH_TYPES.get(of.sink.destination.type)
  if (!type) return undefined // its clients come to us
  try {
    const wire = type.open({ ...of, concurrency: 1, warn: () => undefined })
    try {
      return (await wire.test(AbortSignal.timeout(LIMIT_MS)))?.message
    } finally {
      await wire.close()
    }
  } catch (error) {
    if (error instanceof EngineError) return error.message
    throw error
  }
}

/** Tries to reach an HTTP endpoint. @returns what is wrong; undefined: nothing */
export async function testEndpoint(endpoint: HttpEndpoint, egress: Egress): Promise<string | undefined> {
  const lacking = withoutAddress(endpoint)
  if (lacking !== undefined) return lacking
  const pool = new HttpPool({ origin: new URL(endpoint.url).origin, connections: 1, egress })
  try {
    return (await pool.reach(AbortSignal.timeout(LIMIT_MS)))?.message
  } finally {
    await pool.close()
  }
}
