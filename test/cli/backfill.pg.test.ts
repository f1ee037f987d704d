/** `tailrace backfill`, as a user types it, against a served API whose engine runs them. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serveShop, TOKEN, type ShownBackfill } from '../api/sinks/served-shop.ts'
import { ITEMS } from '../actors/shop.ts'
import { printed, tailrace, type Listed } from './command.ts'

const ID = '[0-9a-f-]{36}'

async function serve(sinks: readonly string[]) {
  const s = await serveShop(sinks)
  const backfill = (...args: string[]) => tailrace('backfill', ...args, '--url', s.url, '--token', TOKEN)
  return { ...s, backfill }
}

test('a backfill is begun and waited for, and shown and listed afterwards', async () => {
  await using s = await serve([`name: a, ${ITEMS}`])
  await s.shop.insert(1, 30)
  await s.shop.take('a', 30)
  const waited = await s.backfill('start', 'a', '--wait')
  assert.deepEqual([waited.code, waited.err], [0, ''])
  assert.match(waited.out, new RegExp(`^public\\.item: begun \\(${ID}\\)\npublic\\.item: completed, 30 rows\n$`))
  const part = await s.backfill('start', 'a', 'item', '--where', 'id > 28', '--sort-column', 'id', '--from', '20', '--wait', '--json')
  assert.equal(part.code, 0)
  const shown = printed<ShownBackfill & Record<string, unknown>>(part)
  assert.deepEqual([shown.state, shown.rows_processed_count, shown['where'], shown['start_position']], ['completed', 2, 'id > 28', '20'])
  assert.equal((await s.backfill('get', 'a')).out, 'public.item: completed, 2 rows\n')
  const listed = await s.backfill('ls', 'a')
  assert.match(
    listed.out,
    new RegExp(`^  \\d{4}-\\S+Z   ${shown.id}  public\\.item: completed, 2 rows\n  \\S+ +${ID}  public\\.item: completed, 30 rows\n$`),
  )
  assert.deepEqual(printed<Listed<ShownBackfill>>(await s.backfill('ls', 'a', '--json')).data[0], shown)
  assert.equal((await s.backfill('delete', 'a', shown.id)).out, `public.item: deleted (${shown.id})\n`)
  assert.equal((await s.call('GET', '/sinks/a/backfills')).body.data.length, 1)
})

test('those that have not ended are paused, resumed and cancelled by table, by id, or all at once', async () => {
  await using s = await serve(['name: a, source: {}'])
  await s.call('PATCH', '/sinks/a', { status: 'disabled' })
  assert.match(
    (await s.backfill('start', 'a', '--all')).out,
    /^public\.item: begun .*; it waits: the sink is disabled\npublic\.other: begun/,
  )
  const states = async () =>
    Object.fromEntries((await s.call('GET', '/sinks/a/backfills')).body.data.map(({ table, state }: ShownBackfill) => [table, state]))
  assert.match((await s.backfill('pause', 'a', 'other')).out, /^public\.other: paused \(/)
  assert.deepEqual(await states(), { 'public.item': 'active', 'public.other': 'paused' })
  const which = await s.backfill('cancel', 'a')
  assert.equal(which.code, 2)
  assert.match(which.err, /"a" has 2 backfills that have not ended: name a table, or all of them by --all/)
  await s.backfill('resume', 'a', 'public.other')
  assert.deepEqual(await states(), { 'public.item': 'active', 'public.other': 'active' })
  const { out } = await s.backfill('get', 'a', 'item', '--json')
  assert.match((await s.backfill('cancel', 'a', printed<ShownBackfill>({ out }).id)).out, /^public\.item: cancelled/)
  assert.match((await s.backfill('cancel', 'a')).out, /^public\.other: cancelled/, 'there is only one left')
  assert.deepEqual(await states(), { 'public.item': 'cancelled', 'public.other': 'cancelled' })
  assert.match((await s.backfill('get', 'a', 'item', '--wait')).out, /^public\.item: cancelled, 0 rows/)
  assert.equal((await s.backfill('get', 'a', 'item', '--wait')).code, 1, 'what was waited for was not completed')
  const nothing = await s.backfill('pause', 'a')
  assert.deepEqual([nothing.code, nothing.err], [1, 'tailrace backfill: "a" has no backfill that has not ended\n'])
})

test('a refusal is told in its words, a wrong use with the right one', async () => {
  await using s = await serve([`name: a, ${ITEMS}`])
  const refused: [args: string[], code: number, words: RegExp][] = [
    [['start', 'a', 'other'], 1, /^tailrace backfill: .*names public\.other, which the sink does not take/],
    [['start', 'a', '--where', 'true) or (true'], 1, /where is refused by PostgreSQL: syntax error at or near "\)"/],
    [['start', 'a', '--max-timeout-ms', 'x'], 1, /max_timeout_ms must be a whole number/],
    [['start', 'nosuch'], 1, /There is no sink "nosuch"/],
    [['get', 'a'], 1, /"a" has no backfills/],
    [['get', 'a', 'item'], 1, /"a" has no backfill of public\.item/],
    [['start'], 2, /SINK is missing/],
    [['begin', 'a'], 2, /"begin" is not known/],
    [['start', 'a', 'item', '--all'], 2, /--all stands in the place of tables/],
    [['pause', 'a', '--where', 'true'], 2, /--where is of start, not of pause/],
    [['delete', 'a'], 2, /delete needs the table or the id/],
    [['ls', 'a', 'item'], 2, /ls takes no table/],
  ]
  for (const [args, code, words] of refused) {
    const answer = await s.backfill(...args)
    assert.equal(answer.code, code, args.join(' '))
    assert.match(answer.err, words)
    assert.equal(answer.out, '')
  }
})
