/** `tailrace top`, as a user types it, against a service whose engine runs the sinks. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { stripVTControlCharacters } from 'node:util'
import { ITEMS } from '../actors/shop.ts'
import { serveShop, TOKEN } from '../api/sinks/served-shop.ts'
import { until } from '../waiting.ts'
import { printed, tailrace } from './command.ts'

type Row = Readonly<{ name: string; waiting: number; backlog_bytes: number; oldest_ms: number; failing: number; health: string }>
type Shown = Readonly<{
  sources: readonly Readonly<{ in_per_second: number | null }>[]
  sinks: readonly (Row & Readonly<{ out_per_second: number | null }>)[]
}>

test('databases and sinks are shown with what waits, what is delivered and what is paused, once where there is no terminal', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`, `name: b, ${ITEMS}`])
  const top = (...args: string[]) => tailrace('top', ...args, '--url', s.url, '--token', TOKEN)
  const row = async (name: string) => {
    const { sinks } = printed<Shown>(await top('--json'))
    return sinks.find((sink) => sink.name === name) ?? assert.fail(name)
  }
  await s.shop.insert(1, 20)
  await s.shop.take('b', 20)
  await until('what waits is shown', async () => (await row('a')).waiting === 20 && (await row('a')).backlog_bytes > 0)
  const [a, b] = [await row('a'), await row('b')]
  assert.ok(a.oldest_ms > 0)
  assert.deepEqual([b.waiting, b.oldest_ms, b.failing, b.health], [0, 0, 0, 'healthy'])
  const looking = new AbortController()
  const writing = (async () => {
    for (let id = 100; !looking.signal.aborted; id++) {
      await s.shop.insert(id, id)
      await s.shop.take('b', 1)
    }
  })()
  await until('what comes and goes is shown as rates', async () => {
    const { sources } = printed<Shown>(await top('--json'))
    return Number(sources[0]?.in_per_second) > 0 && Number((await row('b')).out_per_second) > 0
  }).finally(() => looking.abort())
  await writing
  await s.call('PATCH', '/sinks/a', { status: 'paused' })
  const { code, out, err } = await top()
  assert.deepEqual([code, err], [0, ''])
  assert.match(
    out,
    new RegExp(
      `^DATABASE +STATE +IN/s.*\n${s.shop.db.name} +streaming +[\\d.]+ .*\n\nSINK +TYPE +STATUS .*\na +sequin_stream +paused +paused`,
    ),
  )
  assert.equal(stripVTControlCharacters(out), out)
  assert.equal((await top('--interval', 'x')).code, 2)
})
