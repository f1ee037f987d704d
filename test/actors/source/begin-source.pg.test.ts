/** What is said in the log of a source while it streams. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ITEMS, Shop } from '../shop.ts'

test('that a table has limits is said once, however often Postgres announces it', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.db.query('create table visit (page text)')
  const write = async (id: number) => {
    await shop.db.query(`insert into visit values ('shop')`)
    await shop.insert(id, id)
    await shop.take('a', 1) // what was written before has been read
  }
  await write(1)
  let id = 1
  for (const change of ['analyze visit', 'alter table visit add column at timestamptz', 'alter table visit add column id int']) {
    await shop.db.query(change)
    await write(++id)
  }
  const said = shop.node.lines.filter(({ message, table }) => String(message).startsWith('a table has limits') && table === 'public.visit')
  assert.equal(said.length, 1)
})
