/**
 * Looks every minute at what a source is set up with: its slot, publication and tables, in the process that has the source. What it finds
 * stands in the health of the database.
 */
import { Client } from 'pg'
import { isPooled } from '../../engine/postgres/pooler.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { Rounds } from '../../engine/bell.ts'
import type { Database } from '../../engine/state/resources.ts'
import {
  failoverFindings,
  POOLED,
  publicationFindings,
  readFailover,
  readPublication,
} from '../../engine/wal/connection/database-findings.ts'
import type { Finding } from '../../engine/wal/connection/finding.ts'
import { readSlotFacts, slotFindings } from '../../engine/wal/connection/slot.ts'
import { asIfUnread } from '../../engine/wal/connection/slot-check.ts'
import { sourceClient } from '../../engine/wal/connection/source-client.ts'
import { sourceTables } from '../../engine/wal/source-tables.ts'

const EVERY_MS = 60_000
/** A server with very many tables is asked less often: what is asked of it takes no more than this share of the time. */
const MOST_SHARE = 0.02
const LIMIT_MS = 30_000

/** A database and its slot as they were seen: what was found, but for what the slot costs, which is asked more often. */
export type Seen = Readonly<{ findings: readonly Finding[] }>

/** Looks at a source each minute, and after a ring. */
export class SourceSight extends Rounds {
  readonly #database: Database
  readonly #isOurs: () => boolean
  /** undefined: it was not looked at yet, or can't be asked now */
  seen: Seen | undefined

  /** @param isOurs false: another process has the source, and looks itself */
  constructor(database: Database, isOurs: () => boolean) {
    super()
    this.#database = database
    this.#isOurs = isOurs
  }

  protected override async round(): Promise<number> {
    if (!this.#isOurs()) {
      this.seen = undefined
      return EVERY_MS
    }
    const from = performance.now()
    this.seen = await look(this.#database)
    return Math.max(EVERY_MS, (performance.now() - from) / MOST_SHARE)
  }

  /** Its source tells why it can't be asked. */
  protected override failed(): number {
    this.seen = undefined
    return EVERY_MS
  }
}

async function look({ connection, slot }: Database): Promise<Seen> {
  const client = new Client({ ...sourceClient(connection, `tailrace checks ${slot.name}`), query_timeout: LIMIT_MS })
  client.on('error', () => undefined) // the query hears of it
  const query: Query = (sql, params) => client.query<Record<string, unknown>>(sql, params && [...params])
  try {
    await client.connect()
    const facts = await readSlotFacts(query, slot.name, slot.publication)
    const publication = await readPublication(query, slot.publication)
    return {
      findings: [
        ...((await isPooled(client)) ? [POOLED] : []),
        ...slotFindings(asIfUnread(facts), { slot: slot.name, publication: slot.publication }),
        ...(publication ? publicationFindings(slot.publication, publication, await sourceTables(query, slot.publication)) : []),
        ...failoverFindings(slot.name, await readFailover(query, slot.name)),
      ],
    }
  } finally {
    await client.end().catch(() => undefined)
  }
}
