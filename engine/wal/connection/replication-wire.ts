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
import { Connection, type ClientConfig } from 'pg'
import type { BusyShare } from '../../busy-share.ts'
import { GuardedSocket } from '../../postgres/guarded-socket.ts'
import { FrameSplitter, type OnFrame } from './frame-splitter.ts'

const COPY_DATA = 0x64 // d
const READ_BYTES = 256 * 1024
/** Measured: 64 KB give nothing more. */
const TURN_BYTES = 256 * 1024

/** What is used here of pg's connection and not in its type declarations. */
type PgConnection = EventEmitter & {
  stream: { pause(): void; resume(): void }
  attachListeners(stream: EventEmitter): void
  sendCopyFromChunk(chunk: Buffer): void
}
const PgConnection = Connection as unknown as new (config: ClientConfig) => PgConnection

export class ReplicationWire extends PgConnection {
  readonly #onCopyData: OnFrame
  readonly #busy: BusyShare | undefined
  /** a socket of our own: it can be destroyed while pg is still connecting it */
  readonly #socket: Socket
  #bytesRead = 0
  #turnBytes = 0
  #turn: NodeJS.Immediate | undefined
  #isHeld = false

  /** @param onCopyData gets what each CopyData frame holds. @param busy is told of the time that takes, once a read */
  constructor(client: ClientConfig, onCopyData: OnFrame, busy?: BusyShare) {
    const socket = client.ssl ? new GuardedSocket() : reusingSocket()
    super({ ...client, stream: () => socket })
    this.#socket = socket
    this.#onCopyData = onCopyData
    this.#busy = busy
  }

  /** Called by pg when frames are about to come: with the socket, or with what encrypts it. */
  override attachListeners(stream: EventEmitter): void {
    const others = new EventEmitter()
    super.attachListeners(others)
    const frames = new FrameSplitter((bytes, start, end) => {
      if (bytes[start] === COPY_DATA) this.#onCopyData(bytes, start + FrameSplitter.HEADER_BYTES, end)
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
      this.#busy?.add(from, performance.now())
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
function reusingSocket(): Socket {
  const socket: Socket = new GuardedSocket({
    onread: {
      buffer: Buffer.allocUnsafeSlow(READ_BYTES),
      callback: (bytes, buffer) => socket.emit('data', buffer.subarray(0, bytes)),
    },
  })
  return socket
}
