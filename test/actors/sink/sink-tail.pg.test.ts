/** Looking at what comes to a sink: what is told, what is skipped, and that the sink notices nothing. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { TailPage } from '../../../actors/sink/sink-tail.ts'
import type { FunctionType } from '../../../engine/state/function-kinds.ts'
import { until } from '../../waiting.ts'
import { ITEMS, NEVER, Shop } from '../shop.ts'

type Told = Readonly<{ action: string; table: string; message: any; error?: { code: string } }> // oxlint-disable-line typescript/no-explicit-any

/** Looks on from where the look before ended. */
async function lookOn(shop: Shop, name: string) {
  const look = (after: string | undefined, limit: number, waitMs: number): Promise<TailPage> =>
    shop.node.engine.tail(shop.id(name), { after, limit, waitMs, signal: NEVER })
  let { next } = await look(undefined, 100, 0)
  const more = async (limit = 100, waitMs = 10_000) => {
    const page = await look(next, limit, waitMs)
    next = page.next
    return { ...page, told: page.messages.map((text) => JSON.parse(text) as Told) }
  }
  /** until so many have been told */
  const told = async (count: number) => {
    const all: Told[] = []
    await until(`${count} messages are told`, async () => {
      all.push(...(await more()).told)
      return all.length >= count
    })
    return all
  }
  return { more, told }
}
const ids = (told: readonly Told[]) => told.map(({ message }) => message.record.id)

test('what comes is told as it is delivered, in order, and clients of the sink get all of it', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`, `name: b, ${ITEMS}, actions: [delete]`])
  await shop.insert(1, 3)
  const a = await lookOn(shop, 'a')
  const b = await lookOn(shop, 'b')
  const [waits] = [a.more(), await shop.insert(4, 6)]
  assert.ok((await waits).told.length > 0, 'a look that waits is answered when something comes')
  await shop.db.query('delete from item where id = 5')
  const [deleted] = await b.told(1)
  assert.deepEqual(
    [deleted?.action, deleted?.table, deleted?.message.record.id],
    ['delete', 'public.item', 5],
    'only what its actions take',
  )
  const [received] = await shop.receive('a', 1)
  assert.equal(received?.record.id, 1, 'nothing was taken from the client')
  const again = await lookOn(shop, 'a')
  await shop.insert(7, 7)
  const [told] = await again.told(1)
  const asked = { batchSize: 100, waitMs: 0, shape: 'flat', signal: NEVER } as const
  const { ack_id: _, ...delivered } = await until('the client gets the last one, too', async () => {
    const { data } = JSON.parse(String((await shop.sink('a').receive(asked)).body)) as { data: Told['message'][] }
    return data.find(({ record }) => record.id === 7)
  })
  assert.deepEqual(told?.message, delivered, 'byte for byte what the client gets')
  assert.deepEqual(await shop.take('b', 1), [5])
})

test('older messages that do not fit are skipped and counted, and a paused sink is looked at all the same', async () => {
  await using shop = await Shop.open([`name: a, partitions: 3, ${ITEMS}`]) // of all partitions the newest are told
  const a = await lookOn(shop, 'a')
  await shop.node.edits.update('sink', shop.id('a'), { status: 'paused' })
  for (let i = 0; i < 5; i++) await shop.insert(i * 10, i * 10 + 9)
  let skipped = 0
  const last = await until('the last one is told', async () => {
    const page = await a.more(3, 1_000)
    skipped += page.skipped + page.told.length
    return page.told.at(-1)?.message.record.id === 49 ? page : undefined
  })
  assert.equal(skipped, 50)
  assert.deepEqual(ids(last.told), [47, 48, 49])
})

test('functions run on what is told: what the filter drops is counted, what fails says why; of a sensitive sink no content is told', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  const sink = shop.node.cache.sinks.find(({ name }) => name === 'a') ?? assert.fail()
  const make = (name: string, type: FunctionType, code: string) =>
    shop.node.edits.create(
      'function',
      { id: sink.accountId, name: 'shop' },
      { name, type, code, compiled: code, description: null, sinkType: null, usesMetadata: false },
    )
  await make('odd', 'filter', 'export default (action, record) => record.id % 2 === 1')
  await make(
    'id',
    'transform',
    `export default (action, record) => { if (record.id === 3) throw new Error('no'); return { id: record.id } }`,
  )
  await shop.node.edits.update('sink', sink.id, { filter: 'odd', transform: 'id' })
  const a = await lookOn(shop, 'a')
  await shop.insert(1, 4)
  const page = await a.more()
  assert.deepEqual([page.dropped, page.told.map(({ message }) => message)], [2, [{ id: 1 }, null]])
  assert.equal(page.told[1]?.error?.code, 'FUNCTION_FAILED')
  await shop.node.edits.update('sink', sink.id, { sensitive: true })
  await shop.insert(5, 5)
  const hidden = await a.more()
  assert.deepEqual(hidden.told.map(({ action, message }) => [action, message]), [['insert', null]]) // prettier-ignore
  assert.ok(!hidden.messages.join().includes('n5'))
})

test('a look goes on behind a change of the partitions, and nothing is left out or told twice', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  const a = await lookOn(shop, 'a')
  await shop.insert(1, 5)
  await shop.node.edits.update('sink', shop.id('a'), { partitions: 3 })
  await shop.insert(6, 10)
  await shop.opened('a')
  await shop.insert(11, 15)
  const told = await a.told(15)
  assert.deepEqual(ids(told).toSorted((x, y) => x - y), Array.from({ length: 15 }, (_, i) => i + 1)) // prettier-ignore
  const { told: more } = await a.more(100, 0)
  assert.deepEqual(more, [])
})

test('a wrong place is refused, and a wait ends with its client', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  const { engine } = shop.node
  const asked = { limit: 1, waitMs: 60_000 }
  for (const after of ['x', Buffer.from('[[1,["a"]]]').toString('base64url'), Buffer.from('{}').toString('base64url')])
    await assert.rejects(engine.tail(shop.id('a'), { ...asked, after, signal: NEVER }), { code: 'REQUEST_INVALID' })
  const { next: after } = await engine.tail(shop.id('a'), { ...asked, after: undefined, signal: NEVER })
  const gone = new AbortController()
  const waits = engine.tail(shop.id('a'), { ...asked, after, signal: gone.signal })
  gone.abort()
  assert.deepEqual((await waits).messages, [])
})
