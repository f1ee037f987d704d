/** Events with names that a program can listen for: goods.created, goods.updated, goods.deleted. */
import type { Transform } from 'tailrace'

const VERBS = { insert: 'created', read: 'created', update: 'updated', delete: 'deleted' }

const transform: Transform = (action, record, changes, metadata) => ({
  type: `${metadata.table_name}.${VERBS[action]}`,
  id: metadata.idempotency_key,
  time: metadata.commit_timestamp,
  source: metadata.database.name,
  data: record,
  ...(changes !== null && { changed: Object.keys(changes) }),
})
export default transform
