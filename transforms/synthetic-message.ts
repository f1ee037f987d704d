/**
 * Makes a message of a table of which none is known: a made-up row that has the table's columns, each with a value of its type, as the
 * stream would have it. For people who try a function before anything was streamed.
 */
import { escapeIdentifier, escapeLiteral } from 'pg'
import { EngineError } from '../engine/errors.ts'
import { qualified } from '../engine/postgres/table-name.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import { SnapshotReader, type ReadRows } from '../engine/wal/connection/snapshot-reader.ts'
import { parseExact } from '../engine/json.ts'
import { rowPrinter } from './row-json.ts'
import { trialInsert, type TrialMessage } from './trial.ts'

/** @property type as SQL has it, of a domain what it is over @property kind its name @property element of an array: its elements' kind */
type Column = Readonly<{ name: string; type: string; kind: string; element: string | null; modifier: number; label: string | null }>

/** Postgres' texts, by the names of types. */
// prettier-ignore
const VALUES: Readonly<Record<string, string>> = {
  bool: 't', int2: '1', int4: '1', int8: '1', oid: '1', float4: '1.5', float8: '1.5', money: '1',
  uuid: '00000000-0000-4000-8000-000000000001', json: '{}', jsonb: '{}', bytea: String.raw`\x00`, bit: '1', varbit: '1',
  date: '2025-02-03', time: '04:05:06', timetz: '04:05:06+00', interval: '1 day',
  timestamp: '2025-02-03 04:05:06', timestamptz: '2025-02-03 04:05:06+00',
  inet: '192.0.2.1', cidr: '192.0.2.0/24', macaddr: '08:00:2b:01:02:03', point: '(1,2)', tsvector: 'example', pg_lsn: '16/B374D848',
  int4range: '[1,10)', int8range: '[1,10)', numrange: '[1,10)', daterange: '[2025-02-03,2025-02-04)',
}
const TEXTS = new Set(['text', 'varchar', 'bpchar', 'name', 'citext'])
/** What columns of such names most likely hold: functions look at such values. */
const NAMED: readonly (readonly [name: RegExp, value: string])[] = [
  [/mail/i, 'ada@example.com'],
  [/phone|mobile/i, '+1 555 0100'],
  [/url|link/i, 'https://example.com/'],
  [/status|state/i, 'active'],
  [/currency/i, 'EUR'],
  [/country/i, 'DE'],
]

/**
 * Makes an insert for a table.
 * @param table `schema.table`
 * @returns an insert; columns of types that nothing is known of are null
 * @throws EngineError ARGUMENT_INVALID: there is no such table; SOURCE_UNREACHABLE, …
 */
export async function syntheticMessage(connection: Connection, table: string): Promise<TrialMessage> {
  const [schema = '', name = ''] = qualified(table).split(/\.(.*)/s)
  const reader = new SnapshotReader(connection, 'tailrace sample')
  try {
    return await reader.read(new Set(), async (read) => {
      const { columns, keys } = await columnsOf(read, schema, name)
      const texts = columns.map(valueOf)
      const list = columns.map(({ name: column, type }, i) => `${literalOf(texts[i])}::${type} as ${escapeIdentifier(column)}`)
      const { fields, rows } = await read(`select ${list.join(', ')}`, [])
      const [values = []] = rows
      const print = await rowPrinter(fields, read)
      const pks = keys.map((key) => values[columns.findIndex((column) => column.name === key)] ?? null)
      return trialInsert({ schema, name }, pks, parseExact(String(columns.length === 0 ? '{}' : print(values))))
    })
  } finally {
    await reader.close()
  }
}

async function columnsOf(read: ReadRows, schema: string, table: string): Promise<Readonly<{ columns: Column[]; keys: string[] }>> {
  const { rows } = await read(
    `with recursive base as (
       select a.attrelid, a.attnum, a.attname::text as name, a.atttypid as type, a.atttypmod as modifier
       from pg_catalog.pg_attribute a where a.attnum > 0 and not a.attisdropped
         and a.attrelid = (select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                           where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p'))
       union all
       select b.attrelid, b.attnum, b.name, t.typbasetype, case when t.typtypmod >= 0 then t.typtypmod else b.modifier end
       from base b join pg_catalog.pg_type t on t.oid = b.type where t.typtype = 'd'
     )
     select b.name, pg_catalog.format_type(b.type, b.modifier), t.typname::text, e.typname::text, b.modifier::text,
       (select l.enumlabel::text from pg_catalog.pg_enum l where l.enumtypid = coalesce(e.oid, t.oid) order by l.enumsortorder limit 1),
       pg_catalog.array_position((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1], b.attnum)::text
     from base b join pg_catalog.pg_type t on t.oid = b.type and t.typtype <> 'd'
     left join pg_catalog.pg_type e on e.oid = t.typelem and e.typarray = t.oid
     left join pg_catalog.pg_index i on i.indrelid = b.attrelid and i.indisprimary
     order by b.attnum`,
    [schema, table],
  )
  if (rows.length === 0) throw new EngineError('ARGUMENT_INVALID', `the database has no table ${schema}.${table}`)
  const columns = rows.map(([name, type, kind, element, modifier, label]): Column => ({
    name: name ?? '',
    type: type ?? '',
    kind: kind ?? '',
    element: element ?? null,
    modifier: Number(modifier),
    label: label ?? null,
  }))
  const keyed = rows.flatMap(([name, , , , , , at]) => (name && at ? [{ name, at: Number(at) }] : []))
  return { columns, keys: keyed.toSorted((a, b) => a.at - b.at).map(({ name }) => name) }
}

/** Makes a value for a column. @returns Postgres' text; null: nothing is known of the type */
function valueOf({ name, kind, element, modifier, label }: Column): string | null {
  const one = element ?? kind
  const value =
    label ??
    VALUES[one] ??
    (one === 'numeric' ? numeric(modifier) : TEXTS.has(one) ? (NAMED.find(([names]) => names.test(name))?.[1] ?? name) : null)
  if (element === null || value === null) return value
  return `{"${value.replaceAll(/["\\]/g, String.raw`\$&`)}"}`
}

/** Makes a number that a column of type numeric takes: 19.90 for `numeric(10, 2)`. */
function numeric(modifier: number): string {
  if (modifier < 4) return '19.90'
  const precision = ((modifier - 4) >> 16) & 0xffff
  const scale = (((modifier - 4) & 0x7ff) ^ 1024) - 1024 // 11 bits with a sign
  const digits = precision - scale
  const whole = digits >= 2 ? '19' : digits === 1 ? '1' : '0'
  return scale > 0 && digits >= 0 ? `${whole}.${'9'.padEnd(scale, '0')}` : scale > 0 ? '0' : whole
}

const literalOf = (text: string | null | undefined): string => (text === null || text === undefined ? 'null' : escapeLiteral(text))
