/** Integers beyond 2^53 are BigInt here and keep all their digits; for clients that would lose them, they go out as texts. */
import type { Transform } from 'tailrace'

type Payment = { id: number | bigint; amount: string }
type DeletedPayment = { id: number | bigint; amount: null } // as `tailrace types` writes it: of a deleted row only the key is told

const transform: Transform<Payment, DeletedPayment> = (_action, record) => ({
  id: String(record.id),
  next: BigInt(record.id) + 1n,
  amount: record.amount,
})
export default transform
