/** Writes rows that a query gave as JSON, as rows of messages are written. */
import { ByteWriter, viewOf } from '../engine/byte-writer.ts'
import { typesOf } from '../engine/wal/decode/catalog.ts'
import { rendererOf } from '../engine/wal/decode/render.ts'
import { FIXED_TYPES, type ValueType } from '../engine/wal/decode/value-type.ts'
import type { ReadRows, Rows } from '../engine/wal/connection/snapshot-reader.ts'

/**
 * Makes a printer of the rows of one query.
 * @param read in the snapshot that the rows are of: it looks up what types are
 * @param types that are known already, by oid; what is looked up is put there
 * @returns what makes JSON of a row's values
 */
export async function rowPrinter(
  fields: Rows['fields'],
  read: ReadRows,
  types: Map<number, ValueType> = new Map(),
): Promise<(values: readonly (string | null)[]) => Buffer> {
  const typeOf = (oid: number) => FIXED_TYPES.get(oid) ?? types.get(oid)
  const unknown = fields.map(({ dataTypeID }) => dataTypeID).filter((oid) => typeOf(oid) === undefined)
  const query = async (sql: string, params: readonly unknown[] = []) => {
    const { fields: columns, rows } = await read(sql, params)
    return { rows: rows.map((values) => Object.fromEntries(columns.map(({ name }, at) => [name, values[at]]))) }
  }
  const found = await typesOf(query, unknown)
  for (const oid of unknown) types.set(oid, found[oid] ?? 'text')
  const columns = fields.map(({ name, dataTypeID }, at) => ({
    head: Buffer.from(`${at === 0 ? '{' : ','}${JSON.stringify(name)}:`),
    render: rendererOf(typeOf(dataTypeID) ?? 'text', 'iso8601'),
  }))
  const out = new ByteWriter()
  return (values) => {
    out.length = 0
    for (const [at, { head, render }] of columns.entries()) {
      const value = values[at] ?? null
      out.copy(head)
      if (value === null) out.ascii('null')
      else {
        const text = Buffer.from(value)
        render(out, viewOf(text), 0, text.length)
      }
    }
    out.ascii('}')
    return Buffer.from(out.buffer.subarray(0, out.length))
  }
}
