/** Integers beyond 2^53 are BigInt here and keep all their digits; for clients that would lose them, they go out as texts. */
import type { Transform } from 'tailrace'

const transform: Transform<{ id: number | bigint; amount: string }> = (_action, record) => ({
  id: String(record.id),
  next: BigInt(record.id) + 1n,
  amount: record.amount,
})
export default transform
