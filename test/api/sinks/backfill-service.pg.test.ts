/** Backfills from start to end: a service in a process of its own, a file, and a client that receives over HTTP. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState } from '../../services/postgres.ts'
import { Service, TOKEN } from '../../faults/service.ts'
import { tailrace } from '../../cli/command.ts'
import { gather, until } from '../../waiting.ts'
import type { ShownBackfill } from './served-shop.ts'

type Message = Readonly<{
  ack_id: string
  action: string
  record: Readonly<{ id: number; name: string | null }>
  changes: unknown
  metadata: Readonly<{ table_name: string; idempotency_key: string; record_pks: readonly string[]; transaction_annotations: unknown }>
}>

/** Receives and acknowledges, as a client does, until enough messages have come. */
function receive(service: Service, sink: string, enough: number | ((came: readonly Message[]) => boolean)): Promise<Message[]> {
  const path = `/api/http_pull_consumers/${sink}`
  const next = async () => {
    const { body } = await service.post(`${path}/receive`, { batch_size: 1_000, wait_for: 5_000 })
    const { data = [] } = body as { data?: Message[] }
    if (data.length > 0) await service.post(`${path}/ack`, { ack_ids: data.map(({ ack_id }) => ack_id) })
    return data
  }
  return gather(`messages of ${sink}`, next, enough, { service })
}

const backfillsOf = async (service: Service, sink: string) =>
  ((await service.get(`/api/sinks/${sink}/backfills`)).body as { data: ShownBackfill[] }).data

const completed = (service: Service, sink: string) =>
  until(
    () => `the backfills of ${sink} are completed`,
    async () => (await backfillsOf(service, sink)).every(({ state }) => state === 'completed'),
    { service },
  )

test('rows that were there before come with the sink, once again by request, and the restart of a service begins nothing anew', async () => {
  await using db = await createDatabase('create table goods (id int primary key, name text); create table empty (id int primary key)')
  await using state = await createState()
  await db.query(`insert into goods select i, 'n' || i from generate_series(1, 3000) i`)
  await using service = await Service.prepare({
    source: db.connection,
    stateUrl: state.url,
    slot: `s_${db.name}`,
    sinks: [
      { name: 'all', initial_backfill: true },
      { name: 'later', tables: ['public.goods'] },
    ],
  })
  await service.startReady()
  await db.query(`insert into goods values (3001, 'new')`)
  const rows = (messages: readonly Message[]) => new Set(messages.map(({ record }) => record.id)).size
  const first = await receive(service, 'all', (came) => rows(came) === 3_001)
  const reads = first.filter(({ action }) => action === 'read')
  assert.ok(rows(reads) >= 3_000, 'the new row comes by its change, and perhaps as a row that was read, too')
  const one = reads.find(({ record }) => record.id === 7)
  assert.deepEqual(
    [one?.record, one?.changes, one?.metadata.table_name, one?.metadata.record_pks, one?.metadata.transaction_annotations],
    [{ id: 7, name: 'n7' }, null, 'goods', ['7'], null],
  )
  await completed(service, 'all')
  const counts = Object.fromEntries((await backfillsOf(service, 'all')).map((each) => [each.table, each.rows_ingested_count]))
  assert.equal(counts['public.empty'], 0)
  assert.ok((counts['public.goods'] ?? 0) >= 3_000)

  assert.deepEqual(
    (await receive(service, 'later', 1)).map(({ action }) => action),
    ['insert'],
    'it has only what came since',
  )
  const begun = (await service.post('/api/sinks/later/backfills', { where: 'id % 1000 = 0' })).body as ShownBackfill
  assert.equal(begun.table, 'public.goods')
  const some = await receive(service, 'later', 3)
  assert.deepEqual(
    some.map(({ record }) => record.id),
    [1_000, 2_000, 3_000],
  )
  await completed(service, 'later')
  assert.deepEqual(Buffer.from(some[0]?.metadata.idempotency_key ?? '', 'base64').toString(), `${begun.id}:1000`)

  await service.patch('/api/sinks/later', { status: 'disabled' })
  const waiting = (await service.post('/api/sinks/later/backfills', { tables: ['goods'], where: 'id = 5' })).body as {
    data: ShownBackfill[]
  }
  assert.equal(waiting.data[0]?.waiting, 'the sink is disabled')
  await service.stop()
  await service.startReady()
  assert.equal((await backfillsOf(service, 'all')).length, 2, 'the file has been applied again')
  const shown = (await service.get('/api/sinks/later')).body as { active_backfills: ShownBackfill[]; status: string }
  assert.deepEqual([shown.status, shown.active_backfills.map(({ id }) => id)], ['active', [waiting.data[0]?.id]], 'the file says active')
  assert.deepEqual(
    (await receive(service, 'later', 1)).map(({ record }) => record.id),
    [5],
  )
  const { code, out } = await tailrace(
    'backfill',
    'start',
    'later',
    '--where',
    'id < 3',
    '--wait',
    '--url',
    service.origin,
    '--token',
    TOKEN,
  )
  assert.deepEqual([code, out.split('\n')[1]], [0, 'public.goods: completed, 2 rows'])
  assert.deepEqual(
    (await receive(service, 'later', 2)).map(({ action, record }) => [action, record.id]),
    [
      ['read', 1],
      ['read', 2],
    ],
  )
  await service.stop()
})
