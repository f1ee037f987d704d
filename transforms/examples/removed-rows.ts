/** Rows that are marked as deleted leave the search index, and come back when the mark is taken off. */
import type { Route } from 'tailrace'

const route: Route<'meilisearch', { deleted_at: string | null }> = (_action, record) =>
  record.deleted_at === null ? {} : { action: 'delete' }
export default route
