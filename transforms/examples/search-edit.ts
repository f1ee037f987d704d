/** A brand's new name in all documents of its products, which Meilisearch edits itself: needs its `editDocumentsByFunction`. */
import type { Route } from 'tailrace'

const route: Route<'meilisearch', { id: number; name: string }> = (action, record) => ({
  action: 'function',
  index_name: 'products',
  filter: `brand_id = ${record.id}`,
  function: 'doc.brand = context.name',
  context: { name: action === 'delete' ? null : record.name },
})
export default route
