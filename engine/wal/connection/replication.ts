/**
 * One replication connection: bytes of the write-ahead log come in, confirmations go out. It decides nothing about
 * their meaning. pg-logical-replication makes the connection, and the frames of the stream come straight from the wire
 * (replication-wire.ts); this file keeps its traps shut (design, decision 3):
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
import { EngineError } from '../../errors.ts'
import type { Lsn } from '../../lsn.ts'
import { Chunk } from '../decode/chunk.ts'
import { ReplicationWire } from './replication-wire.ts'
import { toSourceError } from './source-error.ts'

export type ReplicationOptions = Readonly<{
  /** pinned settings and wal_sender_timeout included (session.ts) */
  client: ClientConfig
  slot: string
  publication: string
  /** what the session asked for; the interval of status messages and the watchdog follow from it */
  walSenderTimeoutMs: number
  /** runs on this connection before START_REPLICATION: IDENTIFY_SYSTEM and TIMELINE_HISTORY work only here */
  prepare?: (query: ReplicationQuery) => Promise<void>
  /** the LSN that every status carries: saved, durable, exact, growing */
  confirmed: () => Lsn
  /** one pgoutput message, valid during the call */
  onMessage: (chunk: Chunk) => void
  /** everything committed below `walEnd` has been sent before this */
  onKeepalive: (walEnd: Lsn) => void
  /** told of the time in which what was read is handled */
  busy?: BusyShare
}>

type ReplicationQuery = (sql: string) => Promise<readonly Readonly<Record<string, unknown>>[]>

type Plugin = Parameters<LogicalReplicationService['subscribe']>[0]

const OPEN_TIMEOUT_MS = 20_000
/** Silent rounds of the timer (each a third of wal_sender_timeout): ask after one, give up after this many. */
const SILENT_ROUNDS = 5
const XLOG_DATA = 0x77 // w
const KEEPALIVE = 0x6b // k
/** tag, start, end, time */
const XLOG_DATA_HEADER = 25
const KEEPALIVE_BYTES = 18
const POSTGRES_EPOCH_MS = Date.UTC(2000, 0, 1)

export class ReplicationConnection {
  readonly #options: ReplicationOptions
  readonly #service: LogicalReplicationService
  readonly #end = Promise.withResolvers<EngineError | undefined>()
  readonly #wire: ReplicationWire
  readonly #chunk = new Chunk()
  #timer: NodeJS.Timeout | undefined
  #phase: 'idle' | 'opening' | 'streaming' | 'ended' = 'idle'
  #isConnected = false
  #paused = false
  /** of the wire at the last round: any byte is a sign of life, for a great row may take minutes on a slow line (correctness 40) */
  #bytesHeard = 0
  #silentRounds = 0

  constructor(options: ReplicationOptions) {
    this.#options = options
    this.#wire = new ReplicationWire(options.client, (bytes, start, end) => this.#receive(bytes, start, end), options.busy)
    const client: ClientConfig & { connection: ReplicationWire } = { ...options.client, connection: this.#wire }
    this.#service = new LogicalReplicationService(client, { acknowledge: { auto: false, timeoutSeconds: 0 } })
    this.#service.on('error', (error) => this.#fail(error))
  }

  /** The error that ended the connection; undefined after `stop`. Never rejects. */
  get ended(): Promise<EngineError | undefined> {
    return this.#end.promise
  }

  get paused(): boolean {
    return this.#paused
  }

  /**
   * Settles when the server has begun to stream.
   * @throws EngineError SOURCE_UNREACHABLE, SOURCE_UNABLE, SOURCE_LOGIN_REFUSED, SOURCE_REFUSED, SLOT_IN_USE, or what `prepare` throws
   */
  async open(): Promise<void> {
    this.#phase = 'opening'
    const started = Promise.withResolvers<void>()
    this.#service.on('start', () => {
      if (this.#phase !== 'opening') return
      this.#phase = 'streaming'
      if (this.#paused) this.#wire.pause() // not before: the server's word that it streams has to be read
      this.#timer = setInterval(() => this.#round(), Math.max(50, Math.floor(this.#options.walSenderTimeoutMs / 3)))
      started.resolve()
    })
    const timeout = setTimeout(
      () => this.#fail(new EngineError('SOURCE_UNREACHABLE', `no replication stream within ${OPEN_TIMEOUT_MS} ms`)),
      OPEN_TIMEOUT_MS,
    )
    // settles only when the stream ends: by the server's word or by an error
    this.#service.subscribe(this.#plugin(), this.#options.slot, '0/0').then(
      () => this.#fail(new EngineError('SOURCE_UNREACHABLE', 'the server ended the replication stream')),
      (error: unknown) => this.#fail(error),
    )
    const error = await Promise.race([started.promise, this.ended])
    clearTimeout(timeout)
    if (error) throw error
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

  /** Tells the server what is confirmed; with `ask` it answers at once. */
  sendStatus(ask = false): void {
    if (this.#phase !== 'streaming') return
    this.#wire.sendCopyFromChunk(statusMessage(this.#options.confirmed(), Date.now(), ask))
  }

  /** Ends the connection now, whatever the other side does. */
  stop(): void {
    this.#close(undefined)
  }

  #plugin(): Plugin {
    const { slot, publication } = this.#options
    const plugin = {
      name: 'pgoutput',
      start: async (client: Client) => {
        this.#isConnected = true
        if (this.#phase !== 'opening') return
        await this.#options.prepare?.(async (sql) => (await client.query(sql)).rows as Record<string, unknown>[])
        if (this.#phase !== 'opening') return
        const options = `proto_version '1', publication_names '${escapeIdentifier(publication).replaceAll("'", "''")}', messages 'true'`
        await client.query(`START_REPLICATION SLOT ${escapeIdentifier(slot)} LOGICAL 0/0 (${options})`)
      },
      parse: () => undefined, // what it would get is taken from the wire before
    }
    return plugin as unknown as Plugin // AbstractPlugin isn't exported; these three are all that is called
  }

  /** What one CopyData frame holds, from `start` to `end`. */
  #receive(bytes: Buffer, start: number, end: number): void {
    if (this.#phase !== 'streaming') return
    try {
      const tag = bytes[start]
      if (tag === XLOG_DATA) this.#options.onMessage(this.#chunk.set(bytes, start + XLOG_DATA_HEADER, end))
      else if (tag === KEEPALIVE && end - start >= KEEPALIVE_BYTES) {
        this.#options.onKeepalive(bytes.readBigUInt64BE(start + 1))
        if (bytes[start + 17] === 1) this.sendStatus()
      } // the protocol knows no others; one that it learns is not ours to stop at
    } catch (error) {
      this.#fail(asDecodingError(error))
    }
  }

  /** Every third of wal_sender_timeout: says we live, and notices when the server doesn't. */
  #round(): void {
    const { bytesRead } = this.#wire
    if (this.#paused || bytesRead > this.#bytesHeard) this.#silentRounds = 0
    else this.#silentRounds++
    this.#bytesHeard = bytesRead
    if (this.#silentRounds > SILENT_ROUNDS) {
      const silentMs = Math.round((this.#silentRounds * this.#options.walSenderTimeoutMs) / 3)
      this.#fail(new EngineError('SOURCE_UNREACHABLE', `the server has been silent for ${silentMs} ms, though asked`, { silentMs }))
    } else this.sendStatus(this.#silentRounds > 0)
  }

  #fail(error: unknown): void {
    this.#close(
      toSourceError(error, this.#phase === 'streaming' ? 'streaming' : this.#isConnected ? 'starting' : 'connecting', {
        slot: this.#options.slot,
      }),
    )
  }

  #close(error: EngineError | undefined): void {
    if (this.#phase === 'ended') return
    this.#phase = 'ended'
    clearInterval(this.#timer)
    this.#wire.destroy() // the library's stop() waits for an end that a half-open socket never sends
    this.#end.resolve(error)
  }
}

/**
 * Standby status update: 'r', three LSNs (written, flushed, applied), microseconds since 2000-01-01, reply flag.
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
  const text = error instanceof Error ? error.message : String(error)
  return new EngineError(error instanceof RangeError ? 'MESSAGE_MALFORMED' : 'INTERNAL', `while decoding: ${text}`, {}, { cause: error })
}
