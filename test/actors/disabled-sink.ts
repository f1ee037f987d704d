/** A sink that is disabled with a backlog, and has to have all of it when it is enabled again. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { ITEMS, Shop, upTo, type Taken } from './shop.ts'
import { until } from '../waiting.ts'

const EARLY = 30
const LATE = 10
const LARGE = 100

/**
 * @property held message at a client; those of its row that follow are parked, or in the log behind a message that is larger than the memory
 * @property acked rows that were delivered
 */
export type Disabled = Readonly<{ shop: Shop; held: Taken; hot: readonly string[]; acked: readonly number[] }>

/** Besides what is delivered and at a client, a message was given back. Another sink has all of it. @param prepare before anything is written */
export async function disabledWithBacklog({
  prepare,
  openLog,
}: Readonly<{ prepare?: (shop: Shop) => Promise<void>; openLog?: Parameters<typeof Shop.open>[2] }> = {}): Promise<Disabled> {
  await using opened = new AsyncDisposableStack()
  const shop = opened.use(await Shop.open([`name: on, ${ITEMS}`, `name: off, ${ITEMS}`], undefined, openLog))
  await prepare?.(shop)
  await shop.insert(-20, -1)
  for (const name of ['on', 'off']) assert.equal((await shop.take(name, 20)).length, 20)
  await until('it needs nothing of that', async () => {
    const rows = await shop.state.query('select from tailrace.reader_line where sink_id = $1 and line > 0', [shop.id('off')])
    return rows.length > 0
  })
  const pad = 'x'.repeat(1_000)
  const hot = Array.from({ length: EARLY + LATE }, (_, i) => `${i}${pad}`)
  await shop.node.edits.update('sink', shop.id('off'), { max_memory_mb: 1 / 64, ack_wait_ms: 60_000 })
  await shop.db.query('insert into item values (1, $1)', [hot[0]])
  const change = async (names: readonly string[]) => {
    for (const name of names) await shop.db.query('update item set name = $1 where id = 1', [name])
  }
  await change(hot.slice(1, EARLY))
  const [held] = await shop.receive('off', 1)
  assert.equal(held?.record.id, 1)
  const openRows = `select count(*)::int as n from tailrace.parked where state = 'open'`
  await until('what waits behind it was in the way, and is parked', async () => {
    await shop.nothingMore('off') // it is looked at when somebody asks
    const [{ n }] = (await shop.state.query<{ n: number }>(openRows)) as [{ n: number }]
    return n > 0
  })
  for (let id = 2; id <= LARGE; id++)
    await shop.db.query('insert into item values ($1, $2)', [id, id === LARGE ? randomBytes(150_000).toString('hex') : pad])
  await change(hot.slice(EARLY))
  const acked = (await shop.receive('off', 5)).map(({ record }) => record.id)
  const [given] = await shop.receive('off', 1)
  await shop.sink('off').nack([given?.ack_id as string])
  const [parked] = await shop.state.query<{ n: number }>(openRows)
  assert.ok(parked && parked.n <= EARLY, `${parked?.n} are parked`)
  assert.equal((await shop.take('on', LARGE - 1 + hot.length)).length, LARGE - 1 + hot.length)
  await shop.node.edits.update('sink', shop.id('off'), { status: 'disabled' })
  opened.move() // it is the caller's
  return { shop, held, hot, acked }
}

/** The client says that it has done what it had, and the sink is enabled. */
export async function hasTheRest({ shop, held, hot, acked }: Disabled): Promise<void> {
  await shop.ack('off', [held])
  await shop.node.edits.update('sink', shop.id('off'), { status: 'active' })
  await shop.opened('off')
  await shop.insert(1_001, 1_010)
  const came = await shop.receive('off', hot.length - 1 + LARGE - 1 - acked.length + 10)
  assert.deepEqual(
    came.flatMap(({ record: { id, name } }) => (id === 1 ? [name] : [])),
    hot.slice(1),
    'the row that was changed often, in order',
  )
  const others = came.flatMap(({ record: { id } }) => (id > 1 ? [id] : []))
  const rest = upTo(2, LARGE).filter((id) => !acked.includes(id))
  const sorted = (ids: readonly number[]) => ids.toSorted((a, b) => a - b)
  assert.deepEqual(sorted(others), [...rest, ...upTo(1_001, 1_010)])
  await shop.nothingMore('off')
}
