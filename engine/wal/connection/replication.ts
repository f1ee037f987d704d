/**
 * One replication connection: bytes of the write-ahead log come in, confirmations go out. It decides nothing about
 * their meaning. pg-logical-replication makes the connection, and the frames of the stream come straight from the wire
 * (replication-wire.ts); this file keeps its traps shut (docs/rules.md, rules 7 and 8):
 *
 *  - its timer and its acknowledge are off; status messages are our own: the LSN exactly (the library confirms LSN + 1
 *    and so skips a transaction whose commit record touches the confirmed one), with PostgreSQL's epoch;
 *  - START_REPLICATION always names 0/0, so that the slot's own position rules;
 *  - status goes out by timer, every third of wal_sender_timeout, because a paused socket can't read the server's question;
 *  - a chunk is a view of a buffer that is reused: it is valid only during the call;
 *  - a throw while handling a chunk ends this connection with a typed error, not the process;
 *  - the end never waits for the other side: the socket is destroyed.
 */
import { LogicalReplicationService } from 'pg-logical-replication'
import { escapeIdentifier, type Client, type ClientConfig } from 'pg'
import type { BusyShare } from '../../busy-share.ts'
import { EngineError, errorText } from '../../errors.ts'
import type { Lsn } from '../../lsn.ts'
import { Chunk } from '../decode/chunk.ts'
import { ReplicationWire } from './replication-wire.ts'
import { toSourceError } from './source-error.ts'

/** Holds what a replication connection is made of. */
export type ReplicationOptions = Readonly<{
  /** with the pinned settings and wal_sender_timeout (source-client.ts) */
  client: ClientConfig
  slot: string
  publication: string
  /** what the session asked for; the interval of status messages and the watchdog follow from it */
  walSenderTimeoutMs: number
  /** gets the time in which what was read is handled */
  decoding?: BusyShare
}>

/** Gets what the stream brings. */
export type StreamListener = Readonly<{
  /** @param chunk one pgoutput message, valid during the call */
  onMessage: (chunk: Chunk) => void
  /** everything committed below `walEnd` has been sent before this */
  onKeepalive: (walEnd: Lsn) => void
}>

type Plugin = Parameters<LogicalReplicationService['subscribe']>[0]

const OPEN_TIMEOUT_MS = 20_000
/**
 * After so many silent rounds of the timer (each a third of wal_sender_timeout) the server is given up; it is asked for a sign of
 * life after one.
 */
const SILENT_ROUNDS = 5
const XLOG_DATA = 0x77 // w
const KEEPALIVE = 0x6b // k
/** tag, start, end, time */
const XLOG_DATA_HEADER = 25
const KEEPALIVE_BYTES = 18
const POSTGRES_EPOCH_MS = Date.UTC(2000, 0, 1)

/** Connects for one run, may be asked about the server, and then streams the slot's changes until it ends. */
export class ReplicationConnection {
  readonly #options: ReplicationOptions
  readonly #service: LogicalReplicationService
  readonly #end = Promise.withResolvers<EngineError | undefined>()
  readonly #wire: ReplicationWire
  readonly #chunk = new Chunk()
  readonly #connected = Promise.withResolvers<Client>()
  readonly #streamAsked = Promise.withResolvers<void>()
  readonly #started = Promise.withResolvers<void>()
  #listener: StreamListener = { onMessage: () => undefined, onKeepalive: () => undefined }
  /** what every status carries: saved, durable, exact, growing */
  #confirmed: Lsn = 0n
  #deadline: NodeJS.Timeout | undefined
  #timer: NodeJS.Timeout | undefined
  #phase: 'idle' | 'connecting' | 'starting' | 'streaming' | 'ended' = 'idle'
  #paused = false
  /** of the wire at the last round: any byte is a sign of life, for a great row may take minutes on a slow line (docs/rules.md, rule 40) */
  #bytesBefore = 0
  #silentRounds = 0

  constructor(options: ReplicationOptions) {
    this.#options = options
    this.#wire = new ReplicationWire(options.client, (bytes, start, end) => this.#receive(bytes, start, end), {
      decoding: options.decoding,
    })
    const client: ClientConfig & { connection: ReplicationWire } = { ...options.client, connection: this.#wire }
    this.#service = new LogicalReplicationService(client, { acknowledge: { auto: false, timeoutSeconds: 0 } })
    this.#service.on('error', (error) => this.#fail(error))
    this.#service.on('start', () => this.#start())
  }

  /** The error that ended the connection; undefined after `stop`. Never rejects. */
  get ended(): Promise<EngineError | undefined> {
    return this.#end.promise
  }

  get paused(): boolean {
    return this.#paused
  }

  /**
   * Connects; `stream` has to follow before long. Settles also when the connection is stopped.
   * @throws EngineError SOURCE_UNREACHABLE, SOURCE_UNABLE, SOURCE_LOGIN_REFUSED
   */
  async connect(): Promise<void> {
    this.#phase = 'connecting'
    this.#deadline = setTimeout(
      () => this.#fail(new EngineError('SOURCE_UNREACHABLE', `Postgres did not begin the replication stream within ${OPEN_TIMEOUT_MS} ms`)),
      OPEN_TIMEOUT_MS,
    )
    // settles only when the stream ends: by the server's word or by an error
    this.#service.subscribe(this.#plugin(), this.#options.slot, '0/0').then(
      () => this.#fail(new EngineError('SOURCE_UNREACHABLE', 'Postgres ended the replication stream')),
      (error: unknown) => this.#fail(error),
    )
    await this.#unlessEnded(this.#connected.promise)
  }

  /** Asks on the connection before it streams: IDENTIFY_SYSTEM and TIMELINE_HISTORY work on no other kind. */
  readonly query = async (sql: string): Promise<readonly Readonly<Record<string, unknown>>[]> => {
    const client = await this.#connected.promise
    return (await client.query<Record<string, unknown>>(sql)).rows
  }

  /**
   * Settles when the server has begun to stream to the listener, or the connection is stopped.
   * @param confirmed what each status tells the server until `confirm`
   * @throws EngineError SOURCE_UNREACHABLE, SOURCE_UNABLE, SOURCE_REFUSED, SLOT_IN_USE
   */
  async stream(listener: StreamListener, confirmed: Lsn): Promise<void> {
    this.#listener = listener
    this.#confirmed = confirmed
    this.#streamAsked.resolve()
    await this.#unlessEnded(this.#started.promise)
  }

  /** Stops reading; what the socket's last read brought is still handed over. Status messages go on. */
  pause(): void {
    if (this.#paused || this.#phase === 'ended') return
    this.#paused = true
    if (this.#phase === 'streaming') this.#wire.pause()
  }

  resume(): void {
    if (!this.#paused || this.#phase === 'ended') return
    this.#paused = false
    this.#silentRounds = 0 // silence while we didn't listen says nothing about the server
    this.#wire.resume()
  }

  /** Tells the server that everything below `lsn` is saved. */
  confirm(lsn: Lsn): void {
    this.#confirmed = lsn
    this.#sendStatus(false)
  }

  /** Ends the connection now, whatever the other side does. @param error why */
  stop(error?: EngineError): void {
    if (this.#phase === 'ended') return
    this.#phase = 'ended'
    clearTimeout(this.#deadline)
    clearInterval(this.#timer)
    this.#wire.destroy() // the library's stop() waits for an end that a half-open socket never sends
    this.#end.resolve(error)
  }

  #plugin(): Plugin {
    const { slot, publication } = this.#options
    const plugin = {
      name: 'pgoutput',
      start: async (client: Client) => {
        if (this.#phase !== 'connecting') return
        this.#phase = 'starting'
        this.#connected.resolve(client)
        await this.#streamAsked.promise
        if (this.#phase !== 'starting') return
        const options = `proto_version '1', publication_names '${escapeIdentifier(publication).replaceAll("'", "''")}', messages 'true'`
        await client.query(`START_REPLICATION SLOT ${escapeIdentifier(slot)} LOGICAL 0/0 (${options})`)
      },
      parse: () => undefined, // what it would get is taken from the wire before
    }
    return plugin as unknown as Plugin // AbstractPlugin isn't exported; these three are all that is called
  }

  /** The server streams: what it sends in the same packet is read already. */
  #start(): void {
    if (this.#phase !== 'starting') return
    this.#phase = 'streaming'
    clearTimeout(this.#deadline)
    if (this.#paused) this.#wire.pause() // not before: the server's word that it streams has to be read
    this.#timer = setInterval(() => this.#round(), Math.max(50, Math.floor(this.#options.walSenderTimeoutMs / 3)))
    this.#started.resolve()
  }

  /** @throws the error that ends the connection before `step` */
  async #unlessEnded(step: Promise<unknown>): Promise<void> {
    const error = await Promise.race([step.then(() => undefined), this.ended])
    if (error) throw error
  }

  /** Handles what one CopyData frame holds, from `start` to `end`. */
  #receive(bytes: Buffer, start: number, end: number): void {
    if (this.#phase !== 'streaming') return
    try {
      const tag = bytes[start]
      if (tag === XLOG_DATA) this.#listener.onMessage(this.#chunk.set(bytes, start + XLOG_DATA_HEADER, end))
      else if (tag === KEEPALIVE && end - start >= KEEPALIVE_BYTES) {
        this.#listener.onKeepalive(bytes.readBigUInt64BE(start + 1))
        if (bytes[start + 17] === 1) this.#sendStatus(false)
      } // the protocol knows no others; one that it learns is not ours to stop at
    } catch (error) {
      this.#fail(asDecodingError(error))
    }
  }

  /** Every third of wal_sender_timeout: says we live, and notices when the server doesn't. */
  #round(): void {
    const { bytesRead } = this.#wire
    if (this.#paused || bytesRead > this.#bytesBefore) this.#silentRounds = 0
    else this.#silentRounds++
    this.#bytesBefore = bytesRead
    if (this.#silentRounds > SILENT_ROUNDS) {
      const silentMs = Math.round((this.#silentRounds * this.#options.walSenderTimeoutMs) / 3)
      this.#fail(
        new EngineError('SOURCE_UNREACHABLE', `Postgres has sent nothing for ${silentMs} ms, although it was asked to answer`, {
          silentMs,
        }),
      )
    } else this.#sendStatus(this.#silentRounds > 0)
  }

  /** @param ask the server answers at once */
  #sendStatus(ask: boolean): void {
    if (this.#phase === 'streaming') this.#wire.sendCopyFromChunk(statusMessage(this.#confirmed, Date.now(), ask))
  }

  #fail(error: unknown): void {
    const { slot } = this.#options
    this.stop(toSourceError(error, this.#phase === 'streaming' || this.#phase === 'starting' ? this.#phase : 'connecting', { slot }))
  }
}

/**
 * Makes a standby status update: 'r', three LSNs (written, flushed, applied), microseconds since 2000-01-01, reply flag.
 * @see PostgreSQL manual, "Streaming Replication Protocol"
 */
export function statusMessage(confirmed: Lsn, nowMs: number, ask: boolean): Buffer {
  const message = Buffer.allocUnsafe(34)
  message[0] = 0x72
  message.writeBigUInt64BE(confirmed, 1)
  message.writeBigUInt64BE(confirmed, 9)
  message.writeBigUInt64BE(confirmed, 17)
  message.writeBigInt64BE(BigInt(nowMs - POSTGRES_EPOCH_MS) * 1000n, 25)
  message[33] = ask ? 1 : 0
  return message
}

/** Reading past the end of a message is a malformed one; anything else that isn't ours is a defect of ours. */
function asDecodingError(error: unknown): EngineError {
  if (error instanceof EngineError) return error
  const text = errorText(error)
  return new EngineError(
    error instanceof RangeError ? 'MESSAGE_MALFORMED' : 'INTERNAL',
    `a replication message could not be decoded: ${text}`,
    {},
    { cause: error },
  )
}
