/** A timestamp as the clocks of a place show it. */
import type { Transform } from 'tailrace'

const clock = new Intl.DateTimeFormat('sv-SE', { timeZone: 'Europe/Berlin', dateStyle: 'short', timeStyle: 'medium' })

const transform: Transform<{ id: number; sold_at: string }> = (_action, record) => ({
  id: record.id,
  sold_at: clock.format(new Date(record.sold_at)),
})
export default transform
