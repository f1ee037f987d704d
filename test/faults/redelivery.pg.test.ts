/** What was given up is delivered by hand, long after: a destination that keeps documents ends with those of the table all the same. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Meilisearch, type Fault } from '../services/meilisearch.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { Service, SLOT } from './service.ts'
import { until } from '../waiting.ts'

test('messages that were given up bring their rows as they are when they are redelivered, and nothing of rows that are gone, or that the publication leaves out', async () => {
  await using source = await createDatabase('create table goods (id int primary key, name text, price numeric)')
  await using state = await createState()
  await using server = await Meilisearch.start({ masterKey: 'a-master-key', pace: { batchMs: 1, documentMs: 0 } })
  const destination = { type: 'meilisearch', endpoint_url: server.url, api_key: 'a-master-key', index_name: 'goods', primary_key: 'id' }
  const sinks = [{ name: 'goods', tables: ['public.goods'], max_retry_count: 1, destination }]
  await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks })
  await service.startReady()
  const names = () => [...server.documents('goods').values()].map(({ id, record }) => `${id} ${(record as { name: string }).name}`).sort()
  const documents = (which: string, condition: () => boolean | Promise<boolean>) =>
    until(() => `${which}; documents: ${names().join(', ')}`, condition, { service })
  const messages = async (what: string) =>
    ((await service.get(`/api/sinks/goods/messages?${what}`)).body as { data: { error: string }[] }).data

  await source.query(`insert into goods values (3, 'three', 3), (4, 'four', 4), (6, 'six', 6)`)
  await documents('those of the table', () => names().length === 3)
  server.fault = ({ method, body }): Fault | undefined =>
    method === 'POST' && /poison|^\[4\]$/.test(body.toString())
      ? { status: 400, body: JSON.stringify({ message: 'no', code: 'malformed_payload', type: 'invalid_request', link: '' }) }
      : undefined
  await source.query(
    `insert into goods values (1, 'one, poison', 1), (2, 'two, poison', 2), (5, 'five, poison', 5), (7, 'seven, poison', 7)`,
  )
  await source.query(`update goods set name = 'three, poison' where id = 3`)
  await source.query(`delete from goods where id = 4`)
  await documents('those that are taken, and the others given up', async () => {
    await source.query(`update goods set price = price + 1 where id = 6`) // is taken: it is not the destination
    return (await messages('state=discarded')).length === 6
  })

  await source.query(`update goods set name = 'one', price = 10 where id = 1`)
  await source.query(`update goods set name = 'three again' where id = 3`)
  await source.query(`delete from goods where id = 2`)
  await source.query(`insert into goods values (4, 'four again', 4)`)
  await source.query(`update goods set name = 'six again' where id = 6`)
  const before = ['1 one', '3 three again', '4 four again', '6 six again']
  await documents('those that are taken later', () => names().join() === before.join())
  server.fault = undefined
  const publication = `${SLOT}_pub` // one for all tables takes no filter
  await source.query(`drop publication ${publication}; create publication ${publication} for table goods where (id <> 7)`)
  assert.deepEqual((await service.post('/api/sinks/goods/messages/redeliver', { state: 'discarded' })).body, { success: true, messages: 6 })
  await documents('all, and no message left', async () => (await messages('limit=100')).length === 0)
  assert.deepEqual(names(), ['1 one', '3 three again', '4 four again', '5 five, poison', '6 six again'])
  const [one] = [...server.documents('goods').values()].filter(({ id }) => id === 1)
  assert.equal((one?.record as { price: string }).price, '10')
})
