/** Only the rows of one tenant. */
import type { Filter } from 'tailrace'

const filter: Filter<{ tenant_id: number }> = (_action, record) => record.tenant_id === 7
export default filter
