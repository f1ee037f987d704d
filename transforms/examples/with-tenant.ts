/** What a query found for the row (tenant-names.sql), put into the document. Where it found nothing, as for a deleted row, there is none. */
import type { Transform } from 'tailrace'

type Product = { id: number; title: string }

const transform: Transform<Product> = (_action, record, _changes, metadata) => ({
  id: record.id,
  title: record.title,
  tenant: metadata.enrichment?.tenant_name ?? null,
  in_stock: metadata.enrichment?.in_stock ?? 0,
})
export default transform
