/** A row that is only marked as deleted is told as deleted. */
import type { Transform } from 'tailrace'

const transform: Transform<{ id: number; deleted_at: string | null }> = (action, record) => {
  if (action === 'delete' || record.deleted_at !== null) return { action: 'delete', id: record.id }
  return { action: 'upsert', id: record.id, record }
}
export default transform
