/** `/metrics` on a port of its own, so that figures can be fetched where the API must not be reachable. Basic auth when a
 *  user or a password is set. */
import { hash, timingSafeEqual } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Logger } from '../engine/logger.ts'
import type { Metrics } from '../engine/metrics.ts'
import { createServer, createTlsServer, urlOf } from '../engine/net/http.ts'
import type { Certificate } from './http/certificate.ts'
import { portUnavailable } from './http/error-answers.ts'
import { Strangers } from './http/strangers.ts'

type MetricsServerOptions = Readonly<{
  host: string
  /** 0: none */
  port: number
  user: string | undefined
  password: string | undefined
  metrics: Metrics
  logger: Logger
  /** absent: it speaks HTTP without TLS */
  certificate?: Certificate | undefined
}>

interface MetricsServer extends AsyncDisposable {
  readonly url: string
  stop(): Promise<void>
}

/**
 * At most so many connections are open, and further ones are closed as they come: few clients scrape, and one that takes all of
 * these takes none of the API's.
 */
const MAX_CONNECTIONS = 100
/** of one client: each is milliseconds of work */
const MAX_REQUESTS = 10

/** Starts the server of metrics as the settings say. @returns undefined when the port is 0. @throws EngineError PORT_UNAVAILABLE */
export async function startMetricsServer(options: MetricsServerOptions): Promise<MetricsServer | undefined> {
  return options.port === 0 ? undefined : listenForMetrics(options)
}

/** Serves the metrics; port 0 is any free one. @throws EngineError PORT_UNAVAILABLE */
export async function listenForMetrics({
  host,
  port,
  user,
  password,
  metrics,
  logger,
  certificate,
}: MetricsServerOptions): Promise<MetricsServer> {
  const expected = user === undefined && password === undefined ? undefined : digest(`${user ?? ''}:${password ?? ''}`)
  const contentType = await metrics.open()
  const strangers = new Strangers({ connections: MAX_CONNECTIONS, requests: MAX_REQUESTS })
  const handle = (request: IncomingMessage, response: ServerResponse): void => {
    if (!strangers.admit(request.socket, response)) return
    const answer = (status: number, body: string, headers: Record<string, string> = {}) => {
      response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', 'content-length': Buffer.byteLength(body), ...headers })
      response.end(request.method === 'HEAD' ? undefined : body)
    }
    if (request.url?.split('?')[0] !== '/metrics' || (request.method !== 'GET' && request.method !== 'HEAD'))
      return answer(404, 'Not Found\n')
    if (expected && !isAllowed(request, expected)) return answer(401, 'Unauthorized\n', { 'www-authenticate': 'Basic realm="metrics"' })
    metrics.text().then(
      (text) => answer(200, text, { 'content-type': contentType }),
      (error: unknown) => {
        logger.error({ err: error }, 'the metrics could not be collected')
        answer(500, 'Internal Server Error\n')
      },
    )
  }
  const server = newServer(certificate, handle)
  server.maxConnections = MAX_CONNECTIONS
  server.listen(port, host)
  try {
    await once(server, 'listening')
  } catch (cause) {
    throw portUnavailable('TAILRACE_METRICS_PORT', host, port, cause)
  }
  const stop = async () => {
    if (!server.listening) return
    server.close()
    server.closeAllConnections() // a scrape lost is a gap of one point
    await once(server, 'close')
  }
  return { url: `${urlOf(server)}/metrics`, stop, [Symbol.asyncDispose]: stop }
}

const TIMES = { requestTimeout: 10_000, headersTimeout: 5_000, keepAliveTimeout: 75_000 } as const

function newServer(certificate: Certificate | undefined, handle: (request: IncomingMessage, response: ServerResponse) => void): Server {
  if (!certificate) return createServer(TIMES, handle)
  const server = createTlsServer({ ...TIMES, ...certificate.options, handshakeTimeout: TIMES.headersTimeout }, handle)
  certificate.renew(server)
  return server
}

const digest = (text: string): Buffer => hash('sha256', text, 'buffer')

function isAllowed(request: IncomingMessage, expected: Buffer): boolean {
  const encoded = /^Basic +([A-Za-z0-9+/=]+) *$/i.exec(request.headers.authorization ?? '')?.[1]
  return encoded !== undefined && timingSafeEqual(digest(Buffer.from(encoded, 'base64').toString('utf8')), expected)
}
