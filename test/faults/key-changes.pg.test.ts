/**
 * A receiver that folds messages by their key alone, with no order between keys, has the table's state in the end when changes of
 * primary keys come as a delete and an insert; when they come as updates it keeps rows under keys that they left.
 */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { HttpReceiver, jsonOf } from '../services/http-receiver.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { Random } from './random.ts'
import { Service } from './service.ts'
import { until } from '../waiting.ts'

type Row = Readonly<{ id: number; stamp: number }>
type Message = Readonly<{
  record: Row
  changes: Readonly<Record<string, unknown>> | null
  action: string
  metadata: Readonly<{ idempotency_key: string; record_pks: readonly [string] }>
}>

/** What came, and a table made of it: a key's messages in the order they came, the keys in any. */
class Mirror {
  readonly keys = new Set<string>()
  readonly #groups = new Map<string, Message[]>()

  take(messages: readonly Message[]): void {
    for (const message of messages) {
      const { idempotency_key: name, record_pks: key } = message.metadata
      this.keys.add(name)
      const group = this.#groups.get(key[0]) ?? []
      group.push(message)
      this.#groups.set(key[0], group)
    }
  }

  rows(random: Random): readonly Row[] {
    const rows = new Map<string, Row>()
    const left = [...this.#groups].map(([key, messages]) => ({ key, messages: [...messages] }))
    while (left.length > 0) {
      const at = random.int(0, left.length - 1)
      const { key, messages } = left[at] as (typeof left)[number]
      const { action, record } = messages.shift() as Message
      if (action === 'delete') rows.delete(key)
      else rows.set(key, record)
      if (messages.length === 0) left.splice(at, 1)
    }
    return [...rows.values()].toSorted((a, b) => a.id - b.id)
  }

  clear(): void {
    this.keys.clear()
    this.#groups.clear()
  }
}

const started = new AsyncDisposableStack()
const [split, plain] = [new Mirror(), new Mirror()]
const random = new Random(73)
let source: TestDatabase
let service: Service
/** what the receiver of `split` does not take */
let refuses: (message: Message) => boolean = () => false
const counts = { changes: 0, moves: 0 }
const begun = new Date().toISOString()

before(async () => {
  source = started.use(await createDatabase('create table item (id int primary key, stamp int)'))
  const state = started.use(await createState())
  const receiver = started.use(
    await HttpReceiver.start((request) => {
      const { data } = jsonOf(request) as { data: readonly Message[] }
      if (request.path === '/split' && data.some((message) => refuses(message))) return { status: 422, body: 'not that one' }
      ;(request.path === '/split' ? split : plain).take(data)
      return {}
    }),
  )
  const sink = { tables: ['public.item'], partitions: 3, batch_size: 5 }
  const hook = (path: string) => ({ type: 'webhook', http_endpoint: 'hooks', http_endpoint_path: path })
  const asked = (name: string, actions: readonly string[], more: object = {}) => ({
    ...{ name, tables: sink.tables, actions, key_changes: 'delete_insert', ...more },
  })
  service = started.use(
    await Service.prepare({
      ...{ source: source.connection, stateUrl: state.url },
      sinks: [
        { ...sink, name: 'split', key_changes: 'delete_insert', destination: hook('/split') },
        { ...sink, name: 'plain', destination: hook('/plain') },
        asked('inserts', ['insert']),
        asked('deletes', ['delete']),
        asked('updates', ['update']),
        asked('shown', ['insert', 'delete'], { filter: 'above', transform: 'told' }),
      ],
      functions: [
        { name: 'above', type: 'filter', code: 'export default (action, record) => record.id !== 2000' },
        { name: 'told', type: 'transform', code: 'export default (action, record, changes) => [action, record.id, record.stamp, changes]' },
      ],
      endpoints: [{ name: 'hooks', url: receiver.url }],
    }),
  )
  await service.startReady()
})
after(() => started.disposeAsync())

const run = async (sql: string, moves = 0) => {
  await source.query(sql)
  counts.changes++
  counts.moves += moves
}
const received = async (sink: string) => {
  const { body } = await service.post(`/api/http_pull_consumers/${sink}/receive?shape=nested`, { batch_size: 100 })
  const { data } = body as { data: { ack_id: string; data: unknown }[] }
  if (data.length > 0) await service.post(`/api/http_pull_consumers/${sink}/ack`, { ack_ids: data.map(({ ack_id }) => ack_id) })
  return data.map((one) => one.data)
}
const all = async (sink: string, count: number) => {
  const messages: unknown[] = []
  await until(`${count} messages of ${sink}`, async () => messages.push(...(await received(sink))) >= count)
  return messages
}
const shapeOf = ({ action, record, changes, metadata: { record_pks: key } }: Message) => [action, record.id, record.stamp, changes, ...key]

test('a sink gets of a changed key what its actions take, as a delete of the old row and an insert of the new one', async () => {
  await run('insert into item values (1000, 1)')
  await run('update item set stamp = 2 where id = 1000')
  await run('update item set id = 2000, stamp = 3 where id = 1000', 1)
  await run('delete from item where id = 2000')
  const inserts = (await all('inserts', 2)) as Message[]
  assert.deepEqual(inserts.map(shapeOf), [
    ['insert', 1000, 1, null, '1000'],
    ['insert', 2000, 3, null, '2000'],
  ])
  const deletes = (await all('deletes', 2)) as Message[]
  assert.deepEqual(deletes.map(shapeOf), [
    ['delete', 1000, null, null, '1000'],
    ['delete', 2000, null, null, '2000'],
  ])
  const [insert, erased] = [inserts[1]?.metadata, deletes[0]?.metadata]
  assert.notEqual(insert?.idempotency_key, erased?.idempotency_key)
  assert.deepEqual(((await all('updates', 1)) as Message[]).map(shapeOf), [['update', 1000, 2, {}, '1000']])
  assert.deepEqual(await received('updates'), [])
  // a filter and a transform see the delete and the insert
  assert.deepEqual(await all('shown', 2), [
    ['insert', 1000, 1, null],
    ['delete', 1000, null, null],
  ])
})

test('an edit of key_changes holds for what is committed after it, and an export tells it', async () => {
  assert.equal((await service.patch('/api/sinks/updates', { key_changes: 'update' })).status, 200)
  await run('insert into item values (1500, 1)')
  await run('update item set id = 1501 where id = 1500', 1)
  assert.deepEqual(((await all('updates', 1)) as Message[]).map(shapeOf), [['update', 1501, 1, { id: 1500 }, '1501']])
  const { yaml } = (await service.get('/api/config/export')).body as { yaml: string }
  assert.equal(yaml.match(/key_changes: delete_insert/g)?.length, 4)
})

test('what fails of them is parked, shown and delivered as what it is', async () => {
  refuses = ({ action, record: { id } }) => id === 3000 || (id === 3002 && action === 'delete')
  await run('insert into item values (3002, 1)')
  await run('update item set id = 3000 where id = 3002', 1)
  await run('insert into item values (3003, 1)')
  type Shown = { id: string; action: string; record_pks: string[] }
  const parked = async () => ((await service.get('/api/sinks/split/messages')).body as { data: Shown[] }).data
  await until('two parked messages', async () => (await parked()).length === 2)
  const shown = await parked()
  assert.deepEqual(
    shown.map(({ action, record_pks: [key] }) => `${action} ${key}`),
    ['delete 3002', 'insert 3000'],
  )
  const { body } = await service.get(`/api/sinks/split/messages/${shown[1]?.id}`)
  assert.deepEqual(shapeOf((body as { message: Message }).message), ['insert', 3000, 1, null, '3000'])
  refuses = () => false
  await service.post('/api/sinks/split/messages/redeliver', { state: 'open' })
  await until('all of them', async () => (await parked()).length === 0)
})

test('folded by key alone, in any order between keys, they are the table, whatever was killed; updates are not', async (context) => {
  const ids = new Set([1501, 3000, 3003])
  const free = () => {
    for (;;) {
      const id = random.int(1, 40)
      if (!ids.has(id)) return id
    }
  }
  for (let i = 0; i < 160; i++) {
    refuses = i < 60 ? () => random.chance(0.02) : () => false // what failed comes behind what came later in other groups
    const id = random.pick([...ids])
    const kind = ids.size < 3 ? 'insert' : random.weighted({ insert: ids.size < 25 ? 2 : 0, move: 4, update: 2, delete: 1 })
    if (kind === 'insert') {
      const added = free()
      ids.add(added)
      await run(`insert into item values (${added}, ${i})`)
    } else if (kind === 'update') await run(`update item set stamp = ${i} where id = ${id}`)
    else {
      const target = free()
      ids.delete(id)
      if (kind === 'delete') await run(`delete from item where id = ${id}`)
      else {
        ids.add(target)
        await run(`update item set id = ${target}, stamp = ${i} where id = ${id}`, 1)
      }
    }
    if (i % 70 === 50) {
      await service.kill()
      await service.startReady()
    }
  }
  await until('every message of both', async () => split.keys.size >= counts.changes + counts.moves && plain.keys.size >= counts.changes)
  assert.deepEqual([split.keys.size, plain.keys.size], [counts.changes + counts.moves, counts.changes])
  const table = await source.query<Row>('select id, stamp from item order by id')
  assert.deepEqual(split.rows(random), table)
  assert.notDeepEqual(plain.rows(random), table)
  split.clear()
  const replay = await service.post('/api/sinks/split/replay', { time: begun })
  assert.equal(replay.status, 200, JSON.stringify(replay.body))
  await until('every message again', async () => split.keys.size === counts.changes + counts.moves)
  assert.deepEqual(split.rows(random), table)
  context.diagnostic(`${counts.changes} changes, ${counts.moves} of keys`)
})
