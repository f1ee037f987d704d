/** One shape for many tables, so that one consumer takes them all. */
import type { Transform } from 'tailrace'

const transform: Transform = (action, record, _changes, metadata) => ({
  entity: metadata.table_name,
  key: metadata.record_pks.join(':'),
  at: metadata.commit_timestamp,
  deleted: action === 'delete',
  data: action === 'delete' ? null : record,
})
export default transform
