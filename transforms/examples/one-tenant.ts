/** Only the rows of one tenant. Deleted ones tell theirs with `alter table … replica identity full`, and are dropped without. */
import type { Filter } from 'tailrace'

const filter: Filter<{ tenant_id: number }> = (_action, record) => record.tenant_id === 7
export default filter
