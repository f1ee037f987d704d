/** `tailrace databases`, as a user types it, against the real service. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Service, TOKEN } from '../faults/service.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { printed, tailrace, type Listed } from './command.ts'

test('databases are listed, shown with their tables, and tried; one whose slot is disabled is told as such, also in the log of the start and to probes', async () => {
  await using db = await createDatabase(
    'create table goods (id int primary key); create table log (line text); create unlogged table fast (id int)',
  )
  await using state = await createState()
  const { caCert: _, ...connection } = db.connection
  const slot = `s_${db.name}`
  const ofOff = { name: `off_${db.name}`, create_if_not_exists: true, status: 'disabled' }
  const off = { name: 'off', ...connection, slot: ofOff, publication: { name: `${slot}_pub`, create_if_not_exists: true } }
  await using service = await Service.prepare({ source: db.connection, stateUrl: state.url, sinks: [], slot, databases: [off] })
  await service.startReady()
  const databases = (...args: string[]) => tailrace('databases', ...args, '--url', service.origin, '--token', TOKEN)
  const name = 'source'
  const { data } = printed<Listed<{ name: string; replication_slots: { status: string }[] }>>(await databases('ls', '--json'))
  const statuses = data.map((one) => `${one.name} ${one.replication_slots[0]?.status}`)
  assert.deepEqual(statuses.toSorted(), ['off disabled', `${name} active`])
  const { hostname, port, database, username, password } = db.connection
  const [head, ...rows] = (await databases('ls')).out.trimEnd().replaceAll(/ {2,}/g, '  ').split('\n')
  assert.equal(head, 'NAME  ADDRESS  DATABASE  USER  SLOT')
  const rowOf = (of: string, state: string) => `${of}  ${hostname}:${port}  ${database}  ${username}  ${state}`
  assert.deepEqual(rows.toSorted(), [rowOf('off', 'disabled'), rowOf(name, 'active')])
  assert.deepEqual((await service.get('/health/ready')).body, { ok: true, waiting: [], disabled: 1 })
  const told = service.log().match(/^.*its slot is disabled.*$/gm) ?? []
  assert.equal(told.length, 1)
  assert.match(told[0] ?? '', /"level":"warn".*"database":"off".*say \\"status: active\\" in its slot/)
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
