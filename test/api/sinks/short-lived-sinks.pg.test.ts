/** Sinks that are deleted as soon as they are made, on the real service. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Service } from '../../faults/service.ts'
import { createDatabase, createState } from '../../services/postgres.ts'

test('a sink that is deleted right after it was made, while changes come, leaves no failure in the log', async () => {
  await using source = await createDatabase('create table goods (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'kept', tables: ['public.goods'] }] }) // prettier-ignore
  await service.startReady()
  for (let i = 0; i < 30; i++) {
    const destination =
      i % 2 === 0
        ? { type: 'sequin_stream' }
        : { type: 'elasticsearch', endpoint_url: 'http://127.0.0.1:9', index_name: 'goods', auth_type: 'none' }
    const name = `s${i}`
    const making = service.post('/api/sinks', { name, database: 'source', source: { include_tables: ['public.goods'] }, destination })
    await source.query('insert into goods values ($1)', [i])
    assert.equal((await making).status, 200)
    assert.equal((await service.delete(`/api/sinks/${name}`)).status, 200)
  }
  const { body } = await service.post('/api/http_pull_consumers/kept/receive', { batch_size: 100, wait_for: 60_000 })
  assert.ok((body as { data: unknown[] }).data.length > 0)
  await service.stop()
  const failures = service
    .log()
    .split('\n')
    .filter((line) => /"code":"INTERNAL"|foreign key|23503|a partition failed/.test(line))
  assert.deepEqual(failures, [])
})
