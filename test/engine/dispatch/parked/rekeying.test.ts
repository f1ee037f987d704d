import assert from 'node:assert/strict'
import { test } from 'node:test'
import { regroup } from '../../../../engine/dispatch/parked/rekeying.ts'
import { MESSAGE_FLAG } from '../../../../engine/log/pack.ts'
import { hashGroup } from '../../../../engine/wal/decode/change.ts'

const TABLE = { relation: 16_400, flags: 0 }
const body = (record: string) =>
  Buffer.from(`"record":${record},"changes":null,"action":"insert","metadata":{"table_schema":"public","table_name":"item","commit_lsn":7`)
const by = (...columns: string[]) => ({ partitions: 2, grouping: true, groupColumns: { 'public.item': columns } })
const hashOf = (text: string) => hashGroup(TABLE.relation, Buffer.from(text))

test('a message joins the group that Postgres’s texts of the columns make, digits and all', () => {
  const message = {
    ...TABLE,
    recordKey: '["1"]',
    body: body('{"id":1,"order":12345678901234567890,"paid":true,"city":"Köln \\"Süd\\"","note":null}'),
  }
  assert.deepEqual(regroup(message, by('order')), { hash: hashOf('12345678901234567890'), groupKey: '12345678901234567890', flags: 0 })
  assert.equal(regroup(message, by('paid', 'city')).hash, hashOf('t:Köln "Süd"'))
  assert.equal(regroup(message, by('note', 'id')).hash, hashOf(':1'))
})

test('a table without columns of its own is grouped by its primary key, also when it had no groups before', () => {
  const message = { ...TABLE, flags: MESSAGE_FLAG.ungrouped, recordKey: '["o\'x",null,"3"]', body: body('{}') }
  const expected = { hash: hashOf("o'x::3"), groupKey: '', flags: 0 }
  assert.deepEqual(regroup(message, { partitions: 1, grouping: true, groupColumns: {} }), expected)
  assert.deepEqual(regroup(message, { partitions: 1, grouping: true, groupColumns: { 'public.other': ['a'] } }), expected)
})
