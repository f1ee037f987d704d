/** Looks whether a slot could be read, before anybody does: when its database is set up, changed or tested. */
import { Client } from 'pg'
import type { Connection } from '../../postgres/client-config.ts'
import type { Query } from '../../postgres/query.ts'
import { judgeSlot, readSlotFacts, type FitSlot, type SlotFacts } from './slot.ts'
import { sourceClient } from './source-client.ts'
import { REPLICATION_NAME } from './source-lock.ts'

const LIMIT_MS = 10_000

/** @property isOurs a process of ours may be reading from it, and then it is fit */
type Asked = Readonly<{ slot: string; publication: string; isOurs: boolean }>

/** Runs some questions on a session of a source, which ends with them. */
export async function askSource<T>(
  connection: Connection,
  name: string,
  work: (query: Query) => Promise<T>,
  limitMs = LIMIT_MS,
): Promise<T> {
  const client = new Client({ ...sourceClient(connection, name), query_timeout: limitMs })
  client.on('error', () => {}) // the query under way tells it
  try {
    await client.connect()
    return await work((sql, params) => client.query<Record<string, unknown>>(sql, params && [...params]))
  } finally {
    await client.end().catch(() => undefined)
  }
}

/** Looks whether a slot could be read. @throws EngineError those of `judgeSlot`, and whatever the session fails with */
export async function checkSlot(connection: Connection, { slot, publication, isOurs }: Asked): Promise<FitSlot> {
  const facts = await askSource(connection, 'tailrace set-up', (query) => readSlotFacts(query, slot, publication))
  return judgeSlot(isOurs ? asIfUnread(facts) : facts, slot, publication, undefined)
}

/** Leaves out who reads a slot where that is a process of ours, which tells it by the name of its session. */
export function asIfUnread(facts: SlotFacts): SlotFacts {
  const { slot } = facts
  return slot?.reader?.startsWith(`${REPLICATION_NAME} `) ? { ...facts, slot: { ...slot, activePid: null } } : facts
}
