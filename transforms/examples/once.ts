/** What a receiver needs to see that it has had a message: the same change always has the same key. */
import type { Transform } from 'tailrace'

const transform: Transform = (action, record, _changes, metadata) => ({
  idempotency_key: metadata.idempotency_key,
  position: [metadata.commit_lsn, metadata.commit_idx],
  action,
  record,
})
export default transform
