/** `tailrace databases`, as a user types it, against the real service. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Service, TOKEN } from '../faults/service.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { printed, tailrace, type Listed } from './command.ts'

test('databases are listed, shown with their tables, and tried', async () => {
  await using db = await createDatabase(
    'create table goods (id int primary key); create table log (line text); create unlogged table fast (id int)',
  )
  await using state = await createState()
  await using service = await Service.prepare({ source: db.connection, stateUrl: state.url, sinks: [], slot: `s_${db.name}` })
  await service.startReady()
  const databases = (...args: string[]) => tailrace('databases', ...args, '--url', service.origin, '--token', TOKEN)
  const { data: [{ name } = { name: '' }] } = printed<Listed<{ name: string }>>(await databases('ls', '--json')) // prettier-ignore
  const { hostname, port, database, username, password } = db.connection
  assert.equal(
    (await databases('ls')).out.replaceAll(/ {2,}/g, '  '),
    `NAME  ADDRESS  DATABASE  USER\n${name}  ${hostname}:${port}  ${database}  ${username}\n`.replaceAll(/ {2,}/g, '  '),
  )
  const shown = await databases('get', name)
  assert.match(shown.out, new RegExp(`^id +[0-9a-f-]{36}\nname +${name}\n`))
  if (password !== '') assert.doesNotMatch(shown.out, new RegExp(`password +${password}\\n`))
  const tables = (await databases('tables', name)).out
  assert.match(tables, /^TABLE +PUBLISHED +PRIMARY KEY +IDENTITY\n/)
  assert.match(tables, /\npublic\.fast +no .*unlogged\n/)
  assert.match(tables, /\npublic\.goods +yes +id +default\n/)
  assert.deepEqual(await databases('test', name), { code: 0, out: `${name}: it can be read\n`, err: '' })
  await db.query(`drop publication ${(await db.query<{ pubname: string }>('select pubname from pg_publication'))[0]?.pubname}`)
  const refused = await databases('test', name)
  assert.deepEqual([refused.code, refused.out], [1, ''])
  assert.match(refused.err, /has no publication "\w+"\. Run: create publication/)
  const asJson = await databases('test', name, '--json')
  assert.deepEqual([asJson.code, printed<{ success: boolean }>(asJson).success], [1, false])
  for (const [args, code, words] of [
    [['get', 'nosuch'], 1, /There is no database "nosuch"/],
    [['get'], 2, /NAME is missing/],
    [['ls', name], 2, /ls takes no database/],
  ] as const) {
    const answer = await databases(...args)
    assert.equal(answer.code, code)
    assert.match(answer.err, words)
  }
})
