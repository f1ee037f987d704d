/** Reads rows that a table has now, as messages would have them: for people who try a function before anything was streamed. */
import { EngineError } from '../engine/errors.ts'
import { qualified } from '../engine/postgres/table-name.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import { SnapshotReader } from '../engine/wal/connection/snapshot-reader.ts'
import { Enricher } from './enrichment.ts'
import { parseExact } from '../engine/json.ts'
import { trialInsert, type TrialMessage } from './trial.ts'

const ROWS = 10

/** Reads the first rows of a table by its key. @param table `schema.table` @returns an insert of each; none: it has no rows. @throws EngineError ARGUMENT_INVALID, SOURCE_UNREACHABLE, … */
export async function sampleOf(connection: Connection, table: string): Promise<readonly TrialMessage[]> {
  const [schema = '', name = ''] = qualified(table).split(/\.(.*)/s)
  const reader = new SnapshotReader(connection, 'tailrace sample')
  try {
    const { relation, quoted, columns, keys } = await reader.read(new Set(), async (read) => {
      const { rows } = await read(
        `select c.oid::text, pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.quote_ident(a.attname), pg_catalog.format_type(a.atttypid, a.atttypmod)
         from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         left join pg_catalog.pg_index i on i.indrelid = c.oid and i.indisprimary
         left join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = any ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])
         where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p') order by a.attnum`,
        [schema, name],
      )
      const [first] = rows
      if (!first) throw new EngineError('ARGUMENT_INVALID', `the database has no table ${schema}.${name}`)
      const key = rows.flatMap(([, , column, type]) => (column && type ? [{ column, type }] : []))
      if (key.length === 0) throw new EngineError('ARGUMENT_INVALID', `the table ${schema}.${name} has no primary key to find its rows by`)
      const list = key.map(({ column }) => column).join(', ')
      const found = await read(`select ${list} from ${first[1]} order by ${list} limit ${ROWS}`, [])
      return { relation: Number(first[0]), quoted: first[1], columns: key, keys: found.rows.map((row) => row.map(String)) }
    })
    if (keys.length === 0) return []
    const byName = columns.toSorted((a, b) => (unquoted(a.column) < unquoted(b.column) ? -1 : 1)) // as queries get their arrays
    const arrays = byName.map(({ type }, i) => `$${i + 1}::${type}[]`).join(', ')
    const list = byName.map(({ column }) => column).join(', ')
    const sql = `select t.* from ${quoted} t join unnest(${arrays}) k(${list}) using (${list})`
    const { byKey } = await new Enricher({ name: 'sample', sql, reader }).rowsOf(relation, keys, new Set())
    return keys.map((key) => trialInsert({ schema, name }, key, parseExact(String(byKey.get(JSON.stringify(key)) ?? '{}'))))
  } finally {
    await reader.close()
  }
}

const unquoted = (column: string): string => (column.startsWith('"') ? column.slice(1, -1).replaceAll('""', '"') : column)
