/**
 * One connection to one broker, for one purpose: a broker answers the requests of a connection one after the other, so what
 * waits on purpose (a fetch, a join) has a connection of its own. Every call has a deadline; when it passes, the connection
 * is cut, because an answer that comes late would hold up the next ones. A link that failed stays closed: its owner makes
 * another.
 */
import { connect as connectTcp, isIP, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { EngineError } from '../../errors.ts'
import { addressOf, type BrokerAddress, type KafkaConnection } from './connection.ts'
import { within } from '../../within.ts'
import { toLogError } from './failure.ts'
import { makeBroker, type Broker } from './kafkajs.ts'

const CONNECT_TIMEOUT_MS = 10_000
const REQUEST_TIMEOUT_MS = 15_000
const KEEP_ALIVE_MS = 30_000
/** A link is replaced when so much of the time its authentication holds has passed. */
const RETIRE_AT = 0.8

/** A connection to one broker. */
export class Link {
  readonly address: BrokerAddress
  readonly #broker: Broker
  readonly #socket: () => Socket | undefined
  readonly #retiresAt: number
  #closed = false

  private constructor(address: BrokerAddress, broker: Broker, socket: () => Socket | undefined, retiresAt: number) {
    this.address = address
    this.#broker = broker
    this.#socket = socket
    this.#retiresAt = retiresAt
    socket()?.once('close', () => (this.#closed = true))
  }

  /** Connects and authenticates. @throws EngineError LOG_UNREACHABLE, LOG_REFUSED, STOPPING: aborted meanwhile */
  static async open(connection: KafkaConnection, address: BrokerAddress, signal?: AbortSignal): Promise<Link> {
    let socket: Socket | undefined
    const { broker, sessionLifetimeMs } = makeBroker({
      ...address,
      clientId: connection.clientId,
      connectTimeoutMs: CONNECT_TIMEOUT_MS,
      sasl: saslOf(connection),
      socketFactory: ({ onConnect }) => (socket = dial(connection, address, onConnect)),
    })
    const cut = () => socket?.destroy(new Error('the connection to the broker was cut'))
    signal?.addEventListener('abort', cut, { once: true })
    try {
      if (signal?.aborted) throw stopped(address)
      await answered(CONNECT_TIMEOUT_MS, broker.connect(), () => cut())
      const lifetimeMs = sessionLifetimeMs()
      const retiresAt = lifetimeMs > 0 ? performance.now() + lifetimeMs * RETIRE_AT : Infinity
      return new Link(address, broker, () => socket, retiresAt)
    } catch (error) {
      cut()
      throw signal?.aborted ? stopped(address) : toLogError(error, { broker: addressOf(address) })
    } finally {
      signal?.removeEventListener('abort', cut)
    }
  }

  /** Whether it may be used for the next call. */
  get usable(): boolean {
    return !this.#closed && performance.now() < this.#retiresAt
  }

  /**
   * @param waitsMs how long the broker is asked to wait before it answers, beyond the limit of any request
   * @throws EngineError as `toLogError` says
   */
  async call<T>(what: (broker: Broker) => Promise<T>, waitsMs = 0): Promise<T> {
    const context = { broker: addressOf(this.address) }
    if (this.#closed) throw new EngineError('LOG_UNREACHABLE', `the connection to the Kafka broker ${context.broker} is closed`, context)
    try {
      return await answered(REQUEST_TIMEOUT_MS + waitsMs, what(this.#broker), () => this.close())
    } catch (error) {
      throw toLogError(error, context)
    }
  }

  /** Cuts the connection: open calls fail. */
  close(): void {
    this.#closed = true
    const socket = this.#socket()
    if (socket && !socket.destroyed) socket.destroy(new Error('the connection was closed')) // without an error kafkajs would not reject what is open
  }
}

function dial({ tls }: KafkaConnection, { host, port }: BrokerAddress, onConnect: () => void): Socket {
  const socket = tls
    ? connectTls(
        {
          host,
          port,
          ...(isIP(host) ? {} : { servername: host }),
          ...(tls.ca === undefined ? {} : { ca: tls.ca }),
          ...(tls.cert === undefined ? {} : { cert: tls.cert }),
          ...(tls.key === undefined ? {} : { key: tls.key }),
          rejectUnauthorized: tls.verify ?? true,
        },
        onConnect,
      )
    : connectTcp({ host, port }, onConnect)
  return socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_MS)
}

function saslOf({ sasl }: KafkaConnection): object | null {
  if (!sasl) return null
  if (sasl.mechanism !== 'oauthbearer') return sasl
  return { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: await sasl.token() }) }
}

/** Waits for a broker. @param late what is done when it doesn't answer in time */
const answered = <T>(limitMs: number, work: Promise<T>, late: () => void): Promise<T> =>
  within(limitMs, work, () => {
    late()
    return new EngineError('LOG_UNREACHABLE', `a Kafka broker has not answered within ${limitMs} ms`)
  })

const stopped = (address: BrokerAddress) => new EngineError('STOPPING', `connecting to the Kafka broker ${addressOf(address)} was given up`)
