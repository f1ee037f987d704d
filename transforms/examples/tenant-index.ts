/** Each tenant's rows in an index of its own, one row never in another's. */
import type { Route } from 'tailrace'

const route: Route<'meilisearch', { tenant_id: number | null }> = (_action, record) => {
  if (record.tenant_id === null) throw new Error('the row has no tenant')
  return { index_name: `goods-${record.tenant_id}` }
}
export default route
