/** What is known of backfills whose source is away. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publishedTables, refusedBySource } from '../../../engine/backfill/asked-tables.ts'
import { freePort } from '../../services/free-port.ts'

const ITEM = { table: 'public.item', sortColumn: null, startPosition: null, condition: null }

test('of a source that is away a table is taken as it stands; what it has to look at, and all of its tables, have to wait', async () => {
  const port = await freePort()
  const connection = { hostname: '127.0.0.1', port, database: 'd', username: 'u', password: 'p', ssl: false }
  const source = { connection, publication: 'p' }
  assert.deepEqual(await refusedBySource(source, [ITEM, { ...ITEM, table: 'public.other' }]), [undefined, undefined])
  const away = { code: 'SOURCE_UNREACHABLE' }
  await assert.rejects(refusedBySource(source, [ITEM, { ...ITEM, condition: 'true' }]), away)
  await assert.rejects(refusedBySource(source, [{ ...ITEM, sortColumn: 'id', startPosition: '1' }]), away)
  await assert.rejects(publishedTables(source, {}), away)
})
