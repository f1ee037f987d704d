/**
 * The process that webhooks are sent to: takes everything, at the least cost it can, for it shares the machine with who sends.
 * Node's own HTTP server took 40 µs for ten messages, most of what sending them takes. It counts messages by a text that each has
 * once, for parsing would cost more than receiving does.
 */
import { createServer } from 'node:net'
import { receiveTask, Recorder, runReader } from '../reader.ts'

export type ReceiverTask = Readonly<{
  port: number
  changes: number
  /** changes after which it is told that all is warm */ warmUp?: number
}>

/** The end of `"idempotency_key":`, which each message has once, and the workload's rows don't. It begins with a rare character: quotes are found everywhere. */
const MARK = Buffer.from('_key":')
/** At least so many bytes of a message follow its mark: names and ids of its sink and database. */
const BEHIND_MARK = 200
const HEAD_ENDS = Buffer.from('\r\n\r\n')
const ANSWER = Buffer.from('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')

runReader(async () => {
  const { port, changes, warmUp } = await receiveTask<ReceiverTask>()
  const recorder = new Recorder(changes, warmUp)
  const server = createServer({ noDelay: true }, (socket) => {
    const connection = new Connection(() => void socket.write(ANSWER))
    socket.on('data', (chunk) => recorder.add(connection.take(chunk)))
    socket.on('error', () => undefined) // who sent is gone
  })
  server.listen(port, '127.0.0.1')
})

/** One connection: requests one after the other, each with a `content-length`. */
class Connection {
  readonly #answer: () => void
  /** of a head that is not whole yet, or the last bytes of a body, which may begin a mark */
  #kept: Buffer = Buffer.alloc(0)
  /** of the body, to come */
  #left = 0
  /** of the body's next bytes, which hold no mark */
  #skipped = 0

  constructor(answer: () => void) {
    this.#answer = answer
  }

  /** @returns how many messages have come with it */
  take(chunk: Buffer): number {
    let rest = this.#kept.length === 0 ? chunk : Buffer.concat([this.#kept, chunk])
    let count = 0
    while (rest.length > 0) {
      if (this.#left === 0) {
        const end = rest.indexOf(HEAD_ENDS)
        if (end < 0) break
        this.#left = lengthOf(rest.toString('latin1', 0, end))
        rest = rest.subarray(end + HEAD_ENDS.length)
        this.#skipped = 0
      } else {
        const body = rest.subarray(0, this.#left)
        const isWhole = body.length === this.#left
        const seen = this.#count(body, isWhole)
        count += seen.marks
        this.#left -= seen.bytes
        rest = rest.subarray(seen.bytes)
        if (!isWhole) break
      }
      if (this.#left === 0) this.#answer()
    }
    this.#kept = rest
    return count
  }

  /** @returns marks in it, and up to where it need not be looked at again */
  #count(body: Buffer, isWhole: boolean): Readonly<{ marks: number; bytes: number }> {
    let marks = 0
    let from = this.#skipped
    for (let at = body.indexOf(MARK, from); at >= 0; at = body.indexOf(MARK, from)) {
      marks++
      from = at + MARK.length + BEHIND_MARK
      if (from >= body.length) break
    }
    const bytes = isWhole ? body.length : Math.max(Math.min(from, body.length), body.length - MARK.length + 1)
    this.#skipped = isWhole ? 0 : Math.max(0, from - bytes)
    return { marks, bytes }
  }
}

function lengthOf(head: string): number {
  const [, length] = /\r\ncontent-length: *(\d+)/i.exec(head) ?? []
  if (length === undefined) throw new Error(`a request without a content-length: ${head.slice(0, 200)}`)
  return Number(length)
}
