/** Access tokens for SASL OAUTHBEARER, by the client credentials grant (RFC 6749, 4.4): kept until shortly before they end. */
import { EngineError } from '../../errors.ts'
import { fieldsOf } from '../../json.ts'

type TokenEndpoint = Readonly<{ url: string; clientId: string; clientSecret: string; scope?: string | undefined }>

const LIMIT_MS = 10_000
/** A token that ends sooner is not handed out any more. */
const SPARE_MS = 30_000
const DEFAULT_LIFETIME_S = 300

/** Makes a function that asks an OAuth endpoint for a token. @throws EngineError LOG_UNREACHABLE: no answer; LOG_REFUSED: no token in it */
export function tokenFrom({ url, clientId, clientSecret, scope }: TokenEndpoint): () => Promise<string> {
  let held: { token: string; until: number } | undefined
  let asking: Promise<string> | undefined
  const credentials = Buffer.from(`${encodeURIComponent(clientId)}:${encodeURIComponent(clientSecret)}`).toString('base64')
  const ask = async () => {
    const response = await fetch(url, {
      method: 'POST',
      headers: { authorization: `Basic ${credentials}`, 'content-type': 'application/x-www-form-urlencoded' },
      body: new URLSearchParams({ grant_type: 'client_credentials', ...(scope === undefined ? {} : { scope }) }),
      redirect: 'error',
      signal: AbortSignal.timeout(LIMIT_MS),
    }).catch((cause: unknown) => {
      throw new EngineError('LOG_UNREACHABLE', 'the token endpoint of KAFKA_SASL_OAUTH_URL does not answer', {}, { cause })
    })
    const { access_token: token, expires_in: lifetimeS } = fieldsOf(await response.json().catch(() => undefined))
    if (typeof token !== 'string')
      throw new EngineError(
        response.status >= 500 ? 'LOG_UNREACHABLE' : 'LOG_REFUSED',
        `the token endpoint of KAFKA_SASL_OAUTH_URL answered ${response.status} without a token`,
        { status: response.status },
      )
    const lifetimeMs = 1000 * (typeof lifetimeS === 'number' ? lifetimeS : DEFAULT_LIFETIME_S)
    held = { token, until: performance.now() + lifetimeMs - SPARE_MS }
    return token
  }
  return async () => {
    if (held && performance.now() < held.until) return held.token
    asking ??= ask().finally(() => (asking = undefined))
    return asking
  }
}
