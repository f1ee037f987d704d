/**
 * The process of raw.ts: counts row changes by their first byte and keeps nothing. It looks at no more of a frame than that,
 * and pg's client only logs in for it: an event for each frame would cost as much as sending it does.
 */
import type { Socket } from 'node:net'
import { Client } from 'pg'
import { receiveTask, Recorder, runReader } from '../reader.ts'
import type { Task } from '../system.ts'

export type RawTask = Task &
  Readonly<{
    /** after each time that the connection was read empty; 0: none */
    pauseMs: number
  }>

const FRAME_HEADER = 5 // type, int32 length that counts itself
const [QUERY, COPY_DATA, ERROR] = [0x51, 0x64, 0x45] // 'Q', 'd', 'E'
const [XLOG_DATA, KEEPALIVE] = [0x77, 0x6b] // 'w', 'k'
const XLOG_DATA_HEADER = 25 // 'w', three int64
const REPLY_WANTED = 17 // 'k', two int64, one byte
const CHANGES = new Set([0x49, 0x55, 0x44]) // 'I', 'U', 'D'
const COMMIT = 0x43 // 'C'
/** as many as Node reads at once: when fewer come there are no more */
const FULL_READ = 64 * 1024

runReader(async () => {
  const { database, slot, publication, changes, pauseMs } = await receiveTask<RawTask>()
  const recorder = new Recorder(changes)
  const client = new Client({ ...database, replication: 'database' } as ConstructorParameters<typeof Client>[0])
  await client.connect()
  const socket = (client as unknown as { connection: { stream: Socket } }).connection.stream
  socket.removeAllListeners('data')
  let open = 0
  let rest = Buffer.alloc(0)
  const { promise: failed, reject } = Promise.withResolvers<never>()
  socket.on('data', (chunk) => {
    const bytes = rest.length > 0 ? Buffer.concat([rest, chunk]) : chunk
    let at = 0
    while (at + FRAME_HEADER <= bytes.length) {
      const end = at + 1 + bytes.readUInt32BE(at + 1)
      if (end > bytes.length) break
      const body = at + FRAME_HEADER
      if (bytes[at] === ERROR) reject(new Error(bytes.toString('utf8', body, end)))
      if (bytes[at] === COPY_DATA && bytes[body] === XLOG_DATA) {
        const tag = bytes[body + XLOG_DATA_HEADER] as number
        if (CHANGES.has(tag)) open++
        else if (tag === COMMIT) {
          recorder.add(open)
          open = 0
        }
      } else if (bytes[at] === COPY_DATA && bytes[body] === KEEPALIVE && bytes[body + REPLY_WANTED] === 1) {
        socket.write(frame(COPY_DATA, status()))
      }
      at = end
    }
    rest = bytes.subarray(at)
    if (pauseMs === 0 || chunk.length >= FULL_READ) return
    socket.pause() // nothing is to be woken: a thread that slept while the socket was watched cost the walsender as much as no pause
    setTimeout(() => socket.resume(), pauseMs)
  })
  const start = `START_REPLICATION SLOT ${client.escapeIdentifier(slot)} LOGICAL 0/0 (proto_version '1', publication_names ${client.escapeLiteral(publication)}, messages 'true')`
  socket.write(frame(QUERY, Buffer.from(`${start}\0`)))
  await failed
})

function frame(type: number, body: Buffer): Buffer {
  const header = Buffer.alloc(FRAME_HEADER)
  header[0] = type
  header.writeUInt32BE(body.length + FRAME_HEADER - 1, 1)
  return Buffer.concat([header, body])
}

/** A standby status that confirms nothing: the line stays open, the slot stays where it is. */
function status(): Buffer {
  const message = Buffer.alloc(34)
  message[0] = 0x72 // 'r'
  return message
}
