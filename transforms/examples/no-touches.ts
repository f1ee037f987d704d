/** Drops updates that change nothing but when the row was touched. Old values need `alter table … replica identity full`. */
import type { Filter } from 'tailrace'

const filter: Filter = (action, _record, changes) =>
  action !== 'update' || changes === null || Object.keys(changes).some((column) => column !== 'updated_at')
export default filter
