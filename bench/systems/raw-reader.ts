/** The process of raw.ts: counts row changes by their first byte and keeps nothing. */
import { Client } from 'pg'
import { receiveTask, Recorder, runReader } from '../reader.ts'
import type { Task } from '../system.ts'

/** The part of pg's client that speaks the copy protocol; its type declarations leave it out. */
type Wire = {
  on(event: 'copyData', handler: (message: { chunk: Buffer }) => void): void
  sendCopyFromChunk(chunk: Buffer): void
}

const [COPY_DATA, KEEPALIVE] = [0x77, 0x6b] // 'w', 'k'
const CHANGES = new Set([0x49, 0x55, 0x44]) // 'I', 'U', 'D'
const COMMIT = 0x43 // 'C'
const HEADER = 25 // 'w', three int64

runReader(async () => {
  const { database, slot, publication, changes } = await receiveTask<Task>()
  const recorder = new Recorder(changes)
  const client = new Client({ ...database, replication: 'database' } as ConstructorParameters<typeof Client>[0])
  await client.connect()
  const wire = (client as unknown as { connection: Wire }).connection
  let open = 0
  wire.on('copyData', ({ chunk }) => {
    if (chunk[0] === COPY_DATA) {
      const tag = chunk[HEADER] as number
      if (CHANGES.has(tag)) open++
      else if (tag === COMMIT) {
        recorder.add(open)
        open = 0
      }
    } else if (chunk[0] === KEEPALIVE && chunk[17] === 1) wire.sendCopyFromChunk(status())
  })
  await client.query(
    `START_REPLICATION SLOT ${client.escapeIdentifier(slot)} LOGICAL 0/0 (proto_version '1', publication_names ${client.escapeLiteral(publication)}, messages 'true')`,
  )
})

/** A standby status that confirms nothing: the line stays open, the slot stays where it is. */
function status(): Buffer {
  const message = Buffer.alloc(34)
  message[0] = 0x72 // 'r'
  return message
}
