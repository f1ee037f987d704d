/** A timestamp as the clocks of a place show it; of a deleted row there is none. */
import type { Transform } from 'tailrace'

const clock = new Intl.DateTimeFormat('sv-SE', { timeZone: 'Europe/Berlin', dateStyle: 'short', timeStyle: 'medium' })

const transform: Transform<{ id: number; sold_at: string }> = (_action, record) => ({
  id: record.id,
  sold_at: record.sold_at === null ? null : clock.format(new Date(record.sold_at)),
})
export default transform
