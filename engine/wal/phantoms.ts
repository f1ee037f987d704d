/** Counts what was received above a timeline switch: messages the log holds that never happened for the new primary. */
import type { Log, TopicName } from '../log/log.ts'
import { Pack } from '../log/pack.ts'
import type { Position } from '../position.ts'

/** @returns messages of `from.history` or before at or above `from`, as far as the topics still keep them */
export async function countMessagesFrom(log: Log, named: ReadonlySet<TopicName>, from: Position): Promise<number> {
  let messages = 0
  for (const { topic, partitions } of await log.topics()) {
    if (named.has(topic)) {
      for (let partition = 0; partition < partitions; partition++) messages += await countIn(log, topic, partition, from)
    }
  }
  return messages
}

async function countIn(log: Log, topic: TopicName, partition: number, from: Position): Promise<number> {
  const { next } = await log.stats(topic, partition)
  const offset = await log.offsetFor(topic, partition, { position: from })
  if (offset >= next) return 0
  let messages = 0
  for await (const record of log.read(topic, partition, offset, NEVER, next)) {
    const pack = Pack.decode(record.pack)
    for (let i = 0; i < pack.count; i++) if (pack.header.history === from.history && pack.compare(i, from) > 0) messages++
  }
  return messages
}

const NEVER = new AbortController().signal
