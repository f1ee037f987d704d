/** A member of the group of topic "sink.1" until it is killed; tells its parent what it is assigned. */
import { openKafkaLog } from '../../../engine/log/kafka/kafka-log.ts'
import type { BrokerAddress } from '../../../engine/log/kafka/connection.ts'

const { brokers, prefix, sessionTimeoutMs, folder } = JSON.parse(process.argv[2] as string) as {
  brokers: BrokerAddress[]
  prefix: string
  sessionTimeoutMs: number
  folder?: string
}
const query = async () => ({ rows: [] })
const log = await openKafkaLog({ connection: { brokers, clientId: 'tailrace-test' }, prefix, sessionTimeoutMs, folder, query })
await log.subscribe('sink.1', {
  assigned: (partition) => void process.send?.(`+${partition}`),
  revoked: (partition) => void process.send?.(`-${partition}`),
})
