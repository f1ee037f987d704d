/** Other names for some columns, and none for the rest. Of a deleted row all but the key is null. */
import type { Transform } from 'tailrace'

const transform: Transform<{ id: number; title: string; price: string }> = (_action, record) => ({
  sku: record.id,
  name: record.title,
  price_cents: record.price === null ? null : Math.round(Number(record.price) * 100),
})
export default transform
