/**
 * pg's connection, cut short for what makes up all of a replication stream: a CopyData frame goes to its reader as it lies
 * in memory, and every other frame takes pg's own way. That way makes several objects of each frame (its parser, its
 * events, and those of pg-logical-replication on top); for small rows they cost as much as decoding the row.
 *
 *  - Without TLS the socket reads into one buffer again and again: nothing is allocated for what arrives.
 *  - A frame's bytes are valid during the call.
 *  - A backlog doesn't keep the thread: after so many bytes whatever else waits gets its turn. Node by itself reads a socket
 *    up to 32 times before anything else runs, which is 60 ms of decoding in which no call of the API is answered.
 */
import { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import { type ClientConfig, Connection } from 'pg'
import type { BusyShare } from '../../busy-share.ts'
import { bodyMemory } from '../../body-memory.ts'
import { GuardedSocket } from '../../postgres/guarded-socket.ts'
import { EngineError } from '../../errors.ts'

const COPY_DATA = 0x64 // d
/** A frame begins with a tag of one byte, and a length of four. */
const HEADER_BYTES = 5
const READ_BYTES = 256 * 1024
/** Measured: 64 KB give nothing more. */
const TURN_BYTES = 256 * 1024

/** The parts of pg's connection that are used here and missing in its type declarations. */
type PgConnection = EventEmitter & {
  stream: { pause(): void; resume(): void }
  attachListeners(stream: EventEmitter): void
  sendCopyFromChunk(chunk: Buffer): void
}
const PgConnection = Connection as unknown as new (config: ClientConfig) => PgConnection

type WireOptions = Readonly<{ decoding?: BusyShare | undefined; readBytes?: number }>

/** The connection of a replication stream. */
export class ReplicationWire extends PgConnection {
  readonly #onCopyData: OnFrame
  readonly #decoding: BusyShare | undefined
  /** a socket of our own: it can be destroyed while pg is still connecting it */
  readonly #socket: Socket
  #bytesRead = 0
  #turnBytes = 0
  #turn: NodeJS.Immediate | undefined
  #isHeld = false

  /**
   * @param onCopyData gets what each CopyData frame holds. @param decoding gets the time that takes, once a read
   * @param readBytes at most so many are read at once, without TLS
   */
  constructor(client: ClientConfig, onCopyData: OnFrame, { decoding, readBytes = READ_BYTES }: WireOptions = {}) {
    const socket = client.ssl ? new GuardedSocket() : reusingSocket(readBytes)
    super({ ...client, stream: () => socket })
    this.#socket = socket
    this.#onCopyData = onCopyData
    this.#decoding = decoding
  }

  /** Called by pg when frames are about to come: with the socket, or with what encrypts it. */
  override attachListeners(stream: EventEmitter): void {
    const others = new EventEmitter()
    super.attachListeners(others)
    const frames = new FrameSplitter((bytes, start, end) => {
      if (bytes[start] === COPY_DATA) this.#onCopyData(bytes, start + HEADER_BYTES, end)
      else others.emit('data', Buffer.from(bytes.subarray(start, end))) // pg keeps parts of it
    })
    stream.on('data', (chunk: Buffer) => {
      this.#bytesRead += chunk.length
      const from = performance.now()
      try {
        frames.push(chunk)
      } catch (error) {
        this.#socket.destroy(error as Error)
      }
      this.#decoding?.add(from, performance.now())
      this.#turnBytes += chunk.length
      this.#turn ??= setImmediate(() => this.#nextTurn())
      if (this.#turnBytes >= TURN_BYTES) this.stream.pause()
    })
  }

  /** Reads no more until `resume`. */
  pause(): void {
    this.#isHeld = true
    this.stream.pause()
  }

  resume(): void {
    this.#isHeld = false
    if (this.#turnBytes < TURN_BYTES) this.stream.resume()
  }

  /** All that came, frames that are not whole yet included: a sign that the server lives. */
  get bytesRead(): number {
    return this.#bytesRead
  }

  destroy(): void {
    clearImmediate(this.#turn)
    this.#socket.destroy()
  }

  #nextTurn(): void {
    const isOver = this.#turnBytes >= TURN_BYTES
    this.#turn = undefined
    this.#turnBytes = 0
    if (isOver && !this.#isHeld) this.stream.resume()
  }
}

/** Its chunks are events as of any socket, but all of them views of the same memory. */
function reusingSocket(readBytes: number): Socket {
  const socket: Socket = new GuardedSocket({
    onread: {
      buffer: Buffer.allocUnsafeSlow(readBytes),
      callback: (bytes, buffer) => socket.emit('data', buffer.subarray(0, bytes)),
    },
  })
  return socket
}

const USUAL_BYTES = 64 * 1024
/** The server builds a message in one buffer (MaxAllocSize, below 1 GiB); the length counts itself. */
const MAX_LENGTH = 0x3fff_ffff + 4

/** Gets one whole frame, or the part of it that concerns the reader; the bytes are valid during the call. */
type OnFrame = (bytes: Buffer, start: number, end: number) => void

/**
 * Cuts a stream of bytes into the frames of Postgres' protocol: a tag of one byte, a length of four that counts itself and
 * the body. A frame that lies in one chunk is not copied; one that chunks cut is put together, where the one before it was. What a large
 * one took is used again, or freed, as soon as it was read: left to the garbage collector it would be there for a hundred others.
 * @see PostgreSQL manual, "Message Formats"
 */
export class FrameSplitter {
  readonly #onFrame: OnFrame
  readonly #usual: Buffer = Buffer.allocUnsafeSlow(USUAL_BYTES)
  /** the beginning of a frame that goes on in the next chunk */
  #begun = this.#usual
  #length = 0

  constructor(onFrame: OnFrame) {
    this.#onFrame = onFrame
  }

  /** @throws EngineError MESSAGE_MALFORMED: a length below four or above 1 GiB; and what `onFrame` throws */
  push(chunk: Buffer): void {
    let at = this.#length > 0 ? this.#complete(chunk) : 0
    while (chunk.length - at >= HEADER_BYTES) {
      const end = at + frameBytes(chunk, at)
      if (end > chunk.length) break
      const start = at
      at = end
      this.#onFrame(chunk, start, end)
    }
    if (at < chunk.length) this.#keep(chunk, at, chunk.length)
  }

  /** Takes what the begun frame lacks. @returns how many bytes of the chunk that is */
  #complete(chunk: Buffer): number {
    let used = 0
    if (this.#length < HEADER_BYTES) {
      used = Math.min(HEADER_BYTES - this.#length, chunk.length)
      this.#keep(chunk, 0, used)
      if (this.#length < HEADER_BYTES) return used
    }
    const bytes = frameBytes(this.#begun, 0)
    const from = used
    used = Math.min(from + bytes - this.#length, chunk.length)
    this.#keep(chunk, from, used)
    if (this.#length < bytes) return used
    const frame = this.#begun
    this.#begun = this.#usual
    this.#length = 0
    this.#onFrame(frame, 0, bytes)
    if (frame !== this.#usual) bodyMemory.give(frame)
    return used
  }

  #keep(chunk: Buffer, from: number, to: number): void {
    const length = this.#length + to - from
    if (length > this.#begun.length) {
      // at once, or a great row would be moved again with each chunk of it
      const grown = bodyMemory.take(this.#length === 0 ? frameBytes(chunk, from) : frameBytes(this.#begun, 0))
      this.#begun.copy(grown, 0, 0, this.#length)
      this.#begun = grown
    }
    chunk.copy(this.#begun, this.#length, from, to)
    this.#length = length
  }
}

function frameBytes(bytes: Buffer, at: number): number {
  const length = bytes.readUInt32BE(at + 1)
  if (length < 4 || length > MAX_LENGTH)
    throw new EngineError('MESSAGE_MALFORMED', `Postgres sent a protocol message with a length of ${length} bytes`)
  return length + 1
}
