/** The variables of what stands between the service and those who ask it, checked against each other. */
import type { CertificateFiles } from '../api/http/certificate.ts'
import { TrustedProxies } from '../api/http/proxies.ts'
import { LIMITS, type Limits } from '../api/limits.ts'
import { EngineError } from '../engine/errors.ts'

/** Says how the service is reached. */
export type EdgeSettings = Readonly<{
  /** absent: HTTP without TLS */
  tls: CertificateFiles | undefined
  /** the port of /metrics speaks TLS, too */
  hasMetricsTls: boolean
  /** in PEM, of the authority that signs the certificates of a cluster; absent: any that Node trusts */
  peerCaFile: string | undefined
  limits: Partial<Limits>
  /** pages of them may read answers */
  corsOrigins: readonly string[]
  /** addresses and ranges */
  trustedProxies: readonly string[]
}>

/** The variable of each limit. @property least, most it takes */
export const LIMIT_VARIABLES = {
  TAILRACE_HTTP_HEADERS_MS: {
    limit: 'headersMs',
    least: 1_000,
    most: 600_000,
    says: 'the headers of a request must be there within this, ms (20000)',
  },
  TAILRACE_HTTP_REQUEST_MS: {
    limit: 'requestMs',
    least: 1_000,
    most: 3_600_000,
    says: 'a whole request must be there within this, ms (60000)',
  },
  TAILRACE_HTTP_KEEP_ALIVE_MS: {
    limit: 'keepAliveMs',
    least: 5_000,
    most: 3_600_000,
    says: 'a connection is closed when no request comes for so long, ms (75000)',
  },
  TAILRACE_HTTP_IDLE_MS: {
    limit: 'silenceMs',
    least: 310_000,
    most: 86_400_000,
    says: 'a connection is closed when no byte goes either way for so long, ms (330000); a receive waits up to 300000',
  },
  TAILRACE_HTTP_HEADER_BYTES: {
    limit: 'headerBytes',
    least: 4_096,
    most: 1_048_576,
    says: 'all headers of a request, with its path, bytes (16384)',
  },
  TAILRACE_HTTP_CONNECTIONS: {
    limit: 'connections',
    least: 10,
    most: 1_000_000,
    says: 'connections that are open at once (20000); further ones are closed as they come',
  },
  TAILRACE_HTTP_CONNECTIONS_WITHOUT_TOKEN: {
    limit: 'strangers',
    least: 1,
    most: 1_000_000,
    says: 'of these, connections of one address on which no known token has come yet (1000)',
  },
  TAILRACE_HTTP_REQUESTS_WITHOUT_TOKEN: {
    limit: 'strangeRequests',
    least: 1,
    most: 1_000_000,
    says: 'requests without a known token of one address at once (100); the connection of a further one is closed',
  },
} as const satisfies Record<string, { limit: keyof Limits; least: number; most: number; says: string }>

/**
 * Reads the settings of the edge. @param value of a variable; undefined: not set
 * @param wrong told of each wrong variable
 */
export function edgeSettings(value: (name: string) => string | undefined, wrong: (name: string, reason: string) => void): EdgeSettings {
  const certFile = value('TAILRACE_TLS_CERT_FILE')
  const keyFile = value('TAILRACE_TLS_KEY_FILE')
  if ((certFile === undefined) !== (keyFile === undefined))
    wrong(certFile === undefined ? 'TAILRACE_TLS_CERT_FILE' : 'TAILRACE_TLS_KEY_FILE', 'is missing; a certificate and its key go together')
  const tls = certFile !== undefined && keyFile !== undefined ? { certFile, keyFile } : undefined
  const hasMetricsTls = value('TAILRACE_METRICS_TLS') === 'true'
  if (hasMetricsTls && certFile === undefined && keyFile === undefined)
    wrong('TAILRACE_METRICS_TLS', 'needs a certificate: set TAILRACE_TLS_CERT_FILE and TAILRACE_TLS_KEY_FILE')
  if (tls && value('TAILRACE_NODE_ADDRESS')?.startsWith('http:'))
    wrong('TAILRACE_NODE_ADDRESS', 'begins with http, but with TAILRACE_TLS_CERT_FILE the others reach this process by https alone')
  const trustedProxies = listed(value('TAILRACE_TRUSTED_PROXIES'))
  try {
    new TrustedProxies(trustedProxies)
  } catch (error) {
    if (!(error instanceof EngineError)) throw error
    wrong('TAILRACE_TRUSTED_PROXIES', error.message)
  }
  const corsOrigins = listed(value('TAILRACE_CORS_ORIGINS'))
  for (const origin of corsOrigins)
    if (origin !== '*' && !isOrigin(origin))
      wrong('TAILRACE_CORS_ORIGINS', `"${origin.slice(0, 100)}" is not an origin as browsers send it, such as https://shop.example, nor *`)
  const peerCaFile = value('TAILRACE_PEER_CA_FILE')
  return { tls, hasMetricsTls, peerCaFile, limits: limitsOf(value, wrong), corsOrigins, trustedProxies }
}

const listed = (text = ''): string[] =>
  text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '')

const isOrigin = (text: string): boolean => /^https?:/.test(text) && URL.canParse(text) && new URL(text).origin === text

function limitsOf(value: (name: string) => string | undefined, wrong: (name: string, reason: string) => void): Partial<Limits> {
  const limits: { -readonly [name in keyof Limits]?: number } = {}
  for (const [name, { limit }] of Object.entries(LIMIT_VARIABLES)) {
    const given = value(name)
    if (given !== undefined) limits[limit] = Number(given)
  }
  const { headersMs, requestMs } = { ...LIMITS, ...limits }
  if (headersMs > requestMs)
    wrong(
      'TAILRACE_HTTP_REQUEST_MS',
      `is less than the time for headers, ${headersMs} ms (TAILRACE_HTTP_HEADERS_MS), which are a part of a request`,
    )
  return limits
}
