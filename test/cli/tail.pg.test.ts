/** `tailrace tail`, as a user types it, against a service whose engine runs the sink. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { ITEMS } from '../actors/shop.ts'
import { serveShop, TOKEN } from '../api/sinks/served-shop.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { until } from '../waiting.ts'
import { printed, tailrace } from './command.ts'

type Tailed = Readonly<{ table: string; action: string; message: Readonly<{ record: unknown }> }>

/** What a running command has printed. */
function tailing(args: readonly string[]) {
  const child = spawn(process.execPath, [COMMAND, 'tail', ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = once(child, 'close')
  const lines: string[] = []
  createInterface(child.stdout).on('line', (line) => lines.push(line))
  const [err] = [child.stderr.setEncoding('utf8').toArray()]
  return {
    lines,
    async [Symbol.asyncDispose]() {
      child.kill('SIGINT')
      await ended
      assert.equal((await err).join(''), '')
    },
  }
}

test('messages are printed as they come, for people or a line of JSON each, and the sink keeps them', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  const there = ['--url', s.url, '--token', TOKEN]
  await using read = tailing(['a', ...there])
  await using parsed = tailing(['a', '--json', ...there])
  let id = 0
  // it begins where the log ends when it comes
  await until('both print', async () => {
    id++
    await s.shop.insert(id, id)
    return read.lines.length > 0 && parsed.lines.length > 0
  })
  await s.shop.db.query(`update item set name = 'other' where id = 1`)
  await s.shop.db.query(`alter table item add big numeric; insert into item values (0, 'big', 12345678901234567890)`)
  await until('the last is printed', () => [read, parsed].every(({ lines }) => lines.at(-1)?.includes('12345678901234567890')))
  assert.match(
    read.lines.at(-1) ?? '',
    /^\d\d:\d\d:\d\d\.\d{3} insert public\.item \{"id":0,"name":"big","big":"?12345678901234567890"?\}$/,
  )
  assert.match(read.lines.at(-2) ?? '', /update public\.item \{"id":1,"name":"other"/)
  const { table, action, message } = printed<Tailed>({ out: parsed.lines.at(-2) ?? '' })
  assert.deepEqual([table, action, message.record], ['public.item', 'update', { id: 1, name: 'other' }])
  assert.equal((await s.shop.take('a', id + 2)).length, id + 2)
})

test('a sink that is not there, or a service, is told', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  const unknown = await tailrace('tail', 'nosuch', '--url', s.url, '--token', TOKEN)
  assert.deepEqual([unknown.code, unknown.err], [1, 'tailrace tail: There is no sink "nosuch".\n'])
  const away = await tailrace('tail', 'a', '--url', 'http://127.0.0.1:1', '--token', TOKEN)
  assert.equal(away.code, 1)
  assert.match(away.err, /^SERVICE_UNREACHABLE/)
})
