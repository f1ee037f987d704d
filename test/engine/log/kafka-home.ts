/** Logs in Kafka for tests: each with topics and a state database of its own. */
import assert from 'node:assert/strict'
import { channel } from 'node:diagnostics_channel'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { openKafkaLog, type KafkaLogOptions } from '../../../engine/log/kafka/kafka-log.ts'
import { parseBroker, type KafkaConnection } from '../../../engine/log/kafka/connection.ts'
import type { Log } from '../../../engine/log/log.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import { openStore } from '../../../engine/state/store.ts'
import { kafkaBrokers } from '../../services/kafka.ts'
import { createState } from '../../services/postgres.ts'
import { at, pack, type LogHome } from './conformance.ts'

export interface KafkaHome extends LogHome {
  open(options?: Partial<KafkaLogOptions>): Promise<Log>
  readonly connection: KafkaConnection
  readonly prefix: string
  readonly query: Query
  /** what the logs told */
  readonly notices: string[]
}

/** Those that this process opens meanwhile. */
export class Connections implements Disposable {
  readonly #sockets = new Set<Socket>()
  readonly #opened = (message: unknown) => this.#sockets.add((message as { socket: Socket }).socket)

  constructor() {
    channel('net.client.socket').subscribe(this.#opened)
  }

  /** What has come over them. */
  get bytes(): number {
    return [...this.#sockets].reduce((sum, { bytesRead }) => sum + bytesRead, 0)
  }
  /** Settles when so many of them are open that the condition holds. */
  async until(condition: (open: number) => boolean): Promise<void> {
    for (;;) {
      const open = [...this.#sockets].filter(({ destroyed }) => !destroyed)
      if (condition(open.length)) return
      await Promise.race(open.map((socket) => once(socket, 'close').catch(() => undefined)))
    }
  }
  [Symbol.dispose](): void {
    channel('net.client.socket').unsubscribe(this.#opened)
  }
}

/** @param brokers others than those that all tests share */
export async function kafkaHome(brokers?: readonly string[], security: Pick<KafkaConnection, 'tls' | 'sasl'> = {}): Promise<KafkaHome> {
  const parts = new AsyncDisposableStack()
  const database = parts.use(await createState())
  const store = parts.use(await openStore(database.connection, 4, () => undefined))
  const connection = {
    brokers: (brokers ?? (await kafkaBrokers())).map((text) => parseBroker(text) as NonNullable<ReturnType<typeof parseBroker>>),
    clientId: 'tailrace-test',
    ...security,
  }
  const notices: string[] = []
  const prefix = `${database.name}.`
  const opened: Log[] = []
  return {
    connection,
    prefix,
    query: store.query,
    notices,
    async open(options = {}) {
      const log = await openKafkaLog({
        ...{ connection, prefix, query: store.query, appendTimeoutMs: 30_000 },
        notice: (text, error) => notices.push(error instanceof Error ? `${text}: ${error.message}` : text),
        ...options,
      })
      opened.push(log)
      return log
    },
    async failAppend(log, source) {
      await assert.rejects(log.append([{ topic: 'missing.1', partition: 0, pack: pack(2) }], { source, position: at(2) }), {
        code: 'LOG_TOPIC_UNKNOWN',
      })
    },
    async [Symbol.asyncDispose]() {
      for (const log of opened) await log[Symbol.asyncDispose]()
      await using log = await openKafkaLog({ connection, prefix, query: store.query })
      for (const { topic } of await log.topics()) await log.deleteTopic(topic)
      await parts.disposeAsync()
    },
  }
}
