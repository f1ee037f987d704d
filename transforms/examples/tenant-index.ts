/** Each tenant's rows in an index of its own, one row never in another's. Deleted rows tell their tenant with `alter table … replica identity full`. */
import type { Route } from 'tailrace'

const route: Route<'meilisearch', { tenant_id: number | null }> = (_action, record) => {
  if (record.tenant_id === null) throw new Error('the row tells no tenant')
  return { index_name: `goods-${record.tenant_id}` }
}
export default route
