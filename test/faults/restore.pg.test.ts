/** A source that was restored from an older copy has forgotten what it had sent: that must be told, never passed over. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, startPostgres } from '../services/postgres.ts'
import { Service } from './service.ts'
import { Tally } from './tally.ts'
import { until } from '../waiting.ts'

test('a source restored from a copy older than what it had sent is refused by name, and the messages it sent stay', async () => {
  await using server = await startPostgres()
  await using source = await createDatabase('create table row (id int primary key)', { server: server.url })
  await using state = await createDatabase()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  await using tally = new Tally({ service, sink: 'rows', rows: 100 })
  await (await source.connect()).query('insert into row select generate_series(1, 10)')
  await tally.drain(10)

  await server.stop('fast')
  const snapshot = await server.snapshot()
  await server.start()
  await (await source.connect()).query('insert into row select generate_series(11, 60)')
  await tally.drain(40)

  await server.stop('fast')
  await snapshot.putBack()
  await server.start()
  const code = await untilRefused(service)
  assert.match(code, /^(SOURCE_WENT_BACK|SLOT_GAP)$/)
  await tally.drain(60)
  tally.assertComplete(1, 60)
})

async function untilRefused(service: Service): Promise<string> {
  const refusal = async () => {
    const { body } = await service.get('/health/ready')
    const { waiting = [] } = body as { waiting?: { code: string | null }[] }
    const code = waiting[0]?.code
    return code && !['SOURCE_UNREACHABLE', 'STOPPING'].includes(code) && code
  }
  return until('it says that the source went back', refusal, { service })
}
