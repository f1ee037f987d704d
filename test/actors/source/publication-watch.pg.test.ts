/** A sink that asks for a table which its source doesn't publish is told so, where its user looks. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState } from '../../services/postgres.ts'
import { applyYaml, startNode } from '../engine-node.ts'
import { until } from '../../waiting.ts'

test('a table outside of the publication is a warning of the sink and a line in the log, until it is published', async () => {
  await using state = await createState()
  await using shop = await createDatabase('create table goods (id int primary key); create table users (id int primary key)')
  const { hostname, port, database, username, password } = shop.connection
  await shop.query(`create publication p for table goods`)
  await applyYaml(
    state.connection,
    JSON.stringify({
      account: { name: 'shop' },
      databases: [
        {
          ...{ name: 'shop', hostname, port, database, username, password, ssl: false },
          ...{ slot: { name: `s_${shop.name}`, create_if_not_exists: true }, publication: { name: 'p' } },
        },
      ],
      sinks: ['goods', 'users'].map((name) => ({
        ...{ name, database: 'shop', source: { include_tables: [name] }, destination: { type: 'stream' } },
      })),
    }),
  )
  await using node = await startNode({ name: 'a', state: state.connection })
  const check = async (name: string) => (await node.health(name))?.checks.find((one) => one.name === 'Sink configuration')
  await node.logged((line) => line.sink === 'users' && line.code === 'table_not_published')
  await until(
    'both are served',
    async () => (await node.health('goods'))?.status === 'healthy' && (await node.health('users'))?.status === 'warning',
  )
  assert.equal((await check('goods'))?.status, 'healthy')
  const { message = '' } = ((await check('users'))?.error ?? {}) as { message?: string }
  assert.match(message, /public\.users is not in the publication "p"/)
  await shop.query(/Run: (.*)$/.exec(message)?.[1] ?? '')
  await node.engine.reload()
  await until('mended', async () => (await node.health('users'))?.status === 'healthy')
})

test('a TRUNCATE is told in the health of a sink whose destination keeps documents, and of no other', async () => {
  await using state = await createState()
  await using shop = await createDatabase('create table goods (id int primary key); create table users (id int primary key)')
  const { hostname, port, database, username, password } = shop.connection
  const index = { type: 'meilisearch', endpoint_url: 'http://127.0.0.1:1', api_key: 'a-key', index_name: 'goods', primary_key: 'id' }
  await applyYaml(
    state.connection,
    JSON.stringify({
      account: { name: 'shop' },
      databases: [
        {
          ...{ name: 'shop', hostname, port, database, username, password, ssl: false },
          ...{ slot: { name: `s_${shop.name}`, create_if_not_exists: true }, publication: { name: 'p', create_if_not_exists: true } },
        },
      ],
      sinks: [
        { name: 'goods', database: 'shop', source: { include_tables: ['goods'] }, destination: index },
        { name: 'users', database: 'shop', source: { include_tables: ['users'] }, destination: index },
        { name: 'asked', database: 'shop', destination: { type: 'stream' } },
      ],
    }),
  )
  await using node = await startNode({ name: 'a', state: state.connection })
  const check = async (name: string) => (await node.health(name))?.checks.find((one) => one.name === 'Sink configuration')
  await shop.query('truncate goods')
  await until('it is told', async () => (await check('goods'))?.error?.code === 'table_truncated')
  assert.deepEqual(
    [(await check('goods'))?.status, (await check('users'))?.error, (await check('asked'))?.error],
    ['notice', undefined, undefined],
  )
  assert.match(String((await check('goods'))?.error?.message), /public\.goods \(.*delete them there/)
})
