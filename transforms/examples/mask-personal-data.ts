/** Personal data leaves the database only as what can be compared, and what identifies nobody. */
import type { Transform } from 'tailrace'

type Customer = { id: number; email: string | null; phone: string | null; country: string }

const transform: Transform<Customer> = (_action, record) => ({
  id: record.id,
  country: record.country,
  email_hash: record.email === null ? null : sha256(record.email.trim().toLowerCase()),
  phone: record.phone === null ? null : `•••${record.phone.slice(-2)}`,
})
export default transform
