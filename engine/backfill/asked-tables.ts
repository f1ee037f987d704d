/**
 * Asks the source whether it can be backfilled as a user wants it, before that is stored: the table, the column that rows are ordered
 * by, where to begin, and the user's SQL. A refusal has the source's own words.
 */
import { EngineError, errorText } from '../errors.ts'
import type { Connection } from '../postgres/client-config.ts'
import { rowsOf } from '../postgres/rows.ts'
import { faultOf, sqlstateOf } from '../postgres/sqlstate.ts'
import { takesTable, type SourceFilter } from '../state/source-filter.ts'
import { toSourceError } from '../wal/connection/source-error.ts'
import { refuseHeavyPages } from './page-plan.ts'
import { pageQuery } from './page-query.ts'
import { PageSession } from './page-session.ts'
import { describeSource, describeSources, TABLES_AT_ONCE, type TableAsked } from './source-table.ts'
import { refuseVolatileCalls } from './volatile-calls.ts'

/** A source, as far as it has to be known to be asked. */
export type AskedSource = Readonly<{ connection: Connection; publication: string }>
/** The field of a backfill's form that is refused, and why. */
type RefusedPart = Readonly<{ part: 'table' | 'sort_column' | 'start_position' | 'where'; reason: string }>

/** Someone waits for the answer. */
const LIMIT_MS = 3_000

/** Lists the tables of a source that are published and that a sink takes, in full, in the order of their names. @throws EngineError of toSourceError */
export async function publishedTables({ connection, publication }: AskedSource, filter: SourceFilter): Promise<readonly string[]> {
  return asking(connection, async ({ query }) => {
    const answer = await query(
      `select p.schemaname::text as schema, p.tablename::text as name from pg_catalog.pg_publication_tables p where p.pubname = $1
       order by p.schemaname, p.tablename`,
      [publication],
    )
    return rowsOf({ schema: 'text', name: 'text' }, answer).flatMap(({ schema, name }) => {
      const table = `${schema}.${name}`
      return takesTable(filter, schema, table) ? [table] : []
    })
  })
}

/**
 * Asks the source of each backfill what it would be refused for.
 * @returns for each the first such part; undefined: it can be read as it stands. Of a source that is away nothing is known, and
 *   nothing refused, unless a user's SQL had to be looked at
 * @throws EngineError of toSourceError
 */
export async function refusedBySource(
  { connection, publication }: AskedSource,
  asked: readonly TableAsked[],
): Promise<readonly (RefusedPart | undefined)[]> {
  try {
    return await asking(connection, async (session) => {
      const wholes = asked.filter((one) => one.sortColumn === null && one.condition === null && one.startPosition === null)
      const refused = await refusedWholes(session, publication, wholes)
      for (const one of asked) if (!refused.has(one)) refused.set(one, await refusedPart(session, publication, one))
      return asked.map((one) => refused.get(one))
    })
  } catch (error) {
    const isToLookAt = asked.some(({ sortColumn, condition }) => sortColumn !== null || condition !== null)
    if (isToLookAt || !(error instanceof EngineError) || error.code !== 'SOURCE_UNREACHABLE') throw error
    return asked.map(() => undefined)
  }
}

async function asking<T>(connection: Connection, work: (session: PageSession) => Promise<T>): Promise<T> {
  const session = await PageSession.open(connection, 'tailrace set-up', LIMIT_MS)
  try {
    return await work(session)
  } catch (error) {
    throw toSourceError(error, 'connecting')
  } finally {
    session.close()
  }
}

/** Asks of whole tables many at a time. @returns without those that have to be asked of alone: one failed, and nobody knows which */
async function refusedWholes(session: PageSession, publication: string, asked: readonly TableAsked[]) {
  const refused = new Map<TableAsked, RefusedPart | undefined>()
  for (let from = 0; from < asked.length; from += TABLES_AT_ONCE) {
    const some = asked.slice(from, from + TABLES_AT_ONCE)
    try {
      await session.query('begin read only')
      const described = await describeSources(session.query, publication, some)
      for (const [i, one] of some.entries()) {
        const table = described[i]
        refused.set(one, table instanceof EngineError ? { part: 'table', reason: refusalIn(table) } : undefined)
      }
    } catch (error) {
      if (sqlstateOf(error) === undefined) throw error
    } finally {
      await session.end()
    }
  }
  return refused
}

async function refusedPart(session: PageSession, publication: string, asked: TableAsked): Promise<RefusedPart | undefined> {
  const described = (more: Partial<TableAsked> = {}) =>
    describeSource(session.query, publication, { table: asked.table, sortColumn: null, startPosition: null, condition: null, ...more })
  const { sortColumn, startPosition, condition } = asked
  const looks: [RefusedPart['part'], () => Promise<unknown>][] = [['table', () => described()]]
  if (sortColumn !== null)
    looks.push(['sort_column', async () => refuseHeavyPages(session, await described({ sortColumn }), { ...asked, condition: null })])
  if (startPosition !== null)
    looks.push(['start_position', async () => session.plan(pageQuery(await described({ sortColumn, startPosition }), null, 1))])
  if (condition !== null)
    looks.push([
      'where',
      async () => {
        const table = await described({ condition })
        // what stands alone has as many ")" as "(", each after its own, and what stands in brackets has nothing behind the condition: an
        // expression that passes both is one wherever it is put into brackets
        await session.plan(`select from ${table.from} where\n${condition}\n`)
        await session.plan(pageQuery(table, null, 1))
        await refuseVolatileCalls(session.query, asked)
        await refuseHeavyPages(session, table, { ...asked, sortColumn: null })
      },
    ])
  for (const [part, look] of looks) {
    try {
      await session.query('begin read only')
      await look()
    } catch (error) {
      return { part, reason: refusalIn(error) }
    } finally {
      await session.end()
    }
  }
  return undefined
}

/** Refusals of a statement that are of a class which otherwise says that the server can't serve. */
const OF_STATEMENT = new Set([
  '08P01', // a parameter
  '25006', // it would write
  '57014', // to plan it takes too long
])

/** @throws what is no refusal */
function refusalIn(error: unknown): string {
  if (error instanceof EngineError && error.code === 'BACKFILL_REFUSED') return error.message
  const sqlstate = sqlstateOf(error)
  const fault = faultOf(sqlstate)
  if (fault !== 'other' && fault !== 'rights' && !OF_STATEMENT.has(sqlstate ?? '')) throw error
  return `is refused by PostgreSQL: ${errorText(error)}`
}
