/** New rows, and updates that change the price. Old values need `alter table … replica identity full`. */
import type { Filter } from 'tailrace'

const filter: Filter = (action, _record, changes) => (changes === null ? action !== 'delete' : 'price' in changes)
export default filter
