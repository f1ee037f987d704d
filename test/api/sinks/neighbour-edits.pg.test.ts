/** A change of one sink disturbs no other: what a neighbour gets while another sink of its table is edited again and again: 30 times, and 100 with `--long`. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ITEMS } from '../../actors/shop.ts'
import { LONG } from '../../faults/size.ts'
import { until } from '../../waiting.ts'
import { serveShop } from './served-shop.ts'

const EDITS = LONG ? 100 : 30
/** Rows that the neighbour's changes are of, in turn: each is a group of its own. */
const ROWS = 3
/** On a busy machine both take longer; whatever begins the slot or a partition anew takes a second and more each time. */
const SLOWER = { times: 10, byMs: 500 }

const median = (all: readonly number[]): number => all.toSorted((a, b) => a - b)[Math.floor(all.length / 2)] ?? assert.fail('none')

test('edits of a sink leave the slot, and the delivery of its neighbour, as they are', async () => {
  await using served = await serveShop([`name: neighbour, ${ITEMS}`, `name: edited, ${ITEMS}`])
  const { shop, call } = served
  const { engine, edits, cache } = shop.node
  const [{ accountId } = assert.fail()] = cache.sinks
  const code = 'export default () => true'
  const stays = {
    type: 'filter',
    description: null,
    sinkType: null,
    code,
    compiled: 'exports.default = () => true',
    usesMetadata: false,
  } as const
  await edits.create('function', { id: accountId, name: 'shop' }, { ...stays, name: 'all' })
  await shop.db.query(`insert into item select i, '' from generate_series(0, $1::int - 1) i`, [ROWS])

  /** in the order in which they came: the row, and the number of its change */
  const came: { id: number; change: number; at: number }[] = []
  const over = new AbortController()
  const reading = (async () => {
    while (!over.signal.aborted) {
      const asked = { batch_size: 10, wait_for: 1_000 }
      const { body } = await call('POST', '/http_pull_consumers/neighbour/receive', asked)
      const at = performance.now()
      for (const { record } of body.data) if (record.name !== '') came.push({ id: record.id, change: Number(record.name), at })
      const ack_ids = body.data.map(({ ack_id }: { ack_id: string }) => ack_id)
      if (ack_ids.length > 0) await call('POST', '/http_pull_consumers/neighbour/ack', { ack_ids })
    }
  })()
  let changes = 0
  /** @returns how long the neighbour waits for a change */
  const waited = async (beside: () => Promise<unknown>): Promise<number> => {
    const change = ++changes
    const from = performance.now()
    const made = Promise.all([beside(), shop.db.query('update item set name = $2 where id = $1', [change % ROWS, String(change)])])
    const message = await until(`change ${change}`, () => came.find((one) => one.change === change))
    await made
    return message.at - from
  }

  const destination = { type: 'sequin_stream' }
  const again = { name: 'edited', database: shop.db.name, source: { include_tables: ['item'] }, destination }
  const round: readonly (readonly [method: string, path: string, body?: object])[] = [
    ['PATCH', '/sinks/edited', { filter: 'all' }],
    ['PATCH', '/sinks/edited', { batch_size: 7 }],
    ['PATCH', '/sinks/edited', { partitions: 2 }],
    ['PATCH', '/sinks/edited', { status: 'paused' }],
    ['PATCH', '/sinks/edited', { status: 'active' }],
    ['PATCH', '/sinks/edited', { actions: ['insert'] }],
    ['PATCH', '/sinks/edited', { status: 'disabled' }],
    ['PATCH', '/sinks/edited', { status: 'active' }],
    ['DELETE', '/sinks/edited'],
    ['POST', '/sinks', again],
  ]
  /** What would be another one if anything of the source or of the neighbour had begun anew. */
  const standing = async () => ({
    walsender: await shop.db.query('select slot_name, active_pid from pg_replication_slots where database = current_database()'),
    terms: await shop.state.query(`select kind, key, term from tailrace.term where kind = 'source' or key like $1 order by kind, key`, [`%${shop.id('neighbour')}%`]), // prettier-ignore
    actors: engine
      .actors()
      .flatMap(({ kind, name, state, since }) => (kind === 'source' || name === 'neighbour' ? [{ kind, state, since }] : [])),
  })

  await waited(async () => undefined)
  const before = await standing()
  assert.ok(before.walsender.length === 1 && before.terms.length > 1 && before.actors.length > 1)
  const [alone, edited]: [number[], number[]] = [[], []]
  for (let i = 0; i < EDITS; i++) {
    alone.push(await waited(async () => undefined))
    const [method, path, body] = round[i % round.length] ?? assert.fail()
    edited.push(await waited(async () => assert.equal((await call(method, path, body)).status, 200, `${method} ${path}`)))
  }
  over.abort()
  await reading
  assert.deepEqual(await standing(), before)
  for (let row = 0; row < ROWS; row++) {
    const its = Array.from({ length: changes }, (_, i) => i + 1).filter((change) => change % ROWS === row)
    assert.deepEqual(
      came.flatMap(({ id, change }) => (id === row ? [change] : [])),
      its,
      'each change once, in order',
    )
  }
  const [usual, beside] = [median(alone), median(edited)]
  assert.ok(beside < usual * SLOWER.times + SLOWER.byMs, `a change takes ${beside} ms beside an edit, and ${usual} ms without`)
})
