/** A jsonb column becomes fields of their own: `attributes.size.width` is `attributes_size_width`. */
import type { Row, Transform } from 'tailrace'

function flatten(value: unknown, name: string, into: Row): Row {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) into[name] = value
  else for (const [key, inner] of Object.entries(value)) flatten(inner, `${name}_${key}`, into)
  return into
}

const transform: Transform<{ id: number; attributes: unknown }> = (_action, record) =>
  flatten(record.attributes, 'attributes', { id: record.id })
export default transform
