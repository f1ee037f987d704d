/** A webhook for each kind of change: created by POST, changed by PUT, deleted by DELETE, at the row's own address. */
import type { Route } from 'tailrace'

const METHODS = { insert: 'POST', read: 'PUT', update: 'PUT', delete: 'DELETE' } as const

const route: Route<'webhook'> = (action, record, _changes, metadata) => ({
  method: METHODS[action],
  endpoint_path: action === 'insert' ? `/${metadata.table_name}` : `/${metadata.table_name}/${encodeURIComponent(String(record.id))}`,
  headers: { 'Idempotency-Key': metadata.idempotency_key },
})
export default route
