/** Other names for some columns, and none for the rest. */
import type { Transform } from 'tailrace'

const transform: Transform<{ id: number; title: string; price: string }> = (_action, record) => ({
  sku: record.id,
  name: record.title,
  price_cents: Math.round(Number(record.price) * 100),
})
export default transform
