/** `tailrace doctor`, as a user types it: planted faults are found, and what it says mends them. */
import assert from 'node:assert/strict'
import { totalmem } from 'node:os'
import { test } from 'node:test'
import type { DatabaseCheck } from '../../engine/wal/connection/database-checks.ts'
import { ITEMS } from '../actors/shop.ts'
import { serveShop, TOKEN } from '../api/sinks/served-shop.ts'
import { createDatabase } from '../services/postgres.ts'
import { printed, tailrace } from './command.ts'

type Answer = Readonly<{ ok: boolean; errors: number; warnings: number; checks: readonly (DatabaseCheck & { of: string })[] }>

test('faults of a database are found, each with the SQL that mends it', async () => {
  await using db = await createDatabase(`create table item (id int primary key); create table log (line text);
    create table secret (id int primary key); alter table secret enable row level security`)
  const role = `doctor_${db.name}`
  const [slot, publication] = [`slot_${db.name}`, `pub_${db.name}`]
  await db.query(`create role ${role} login password 'pw'`)
  await using _ = { [Symbol.asyncDispose]: async () => void (await db.query(`drop owned by ${role}; drop role ${role}`)) }
  await db.query(`grant select on secret to ${role}`)
  const url = Object.assign(new URL(db.url), { username: role, password: 'pw' }).href
  const doctor = async (...args: string[]) => {
    const { code, out } = await tailrace('doctor', url, '--json', ...args)
    return { code, ...printed<Answer>({ out }) }
  }
  const bare = await doctor()
  assert.equal(bare.code, 1)
  assert.deepEqual(bare.checks.filter(({ status }) => status === 'error').map(({ name }) => name), ['Right to replicate']) // prettier-ignore
  const sick = await doctor('--slot', slot, '--publication', publication)
  const bad = (answer: Answer) => answer.checks.flatMap(({ name, status }) => (status === 'ok' ? [] : [`${name}: ${status}`])).toSorted()
  assert.deepEqual(bad(sick), ['Publication: error', 'Right to replicate: error', 'Slot: error'])
  await db.query(`create publication ${publication} for table item, log, secret with (publish = 'insert, update')`)
  const table = await doctor('--publication', publication)
  assert.deepEqual(bad(table), [
    'Publication actions: warning',
    'Replica identity: error',
    'Right to read: error',
    'Right to replicate: error',
    'Row security: warning',
  ])
  for (const { remedy } of table.checks.filter(({ status }) => status !== 'ok')) await db.query(remedy ?? assert.fail())
  await db.query(`select pg_create_logical_replication_slot('${slot}', 'pgoutput')`)
  const { code, ...well } = await doctor('--slot', slot, '--publication', publication)
  await db.query(`select pg_drop_replication_slot('${slot}')`)
  assert.deepEqual([code, bad(well)], [0, ['Slot: warning']], 'nobody reads from it')
})

test('a database that does not answer, or lets nobody in, is an error with its remedy', async () => {
  await using db = await createDatabase()
  for (const [url, words] of [
    ['postgresql://u:p@127.0.0.1:1/none', /Reachability: none at 127\.0\.0\.1:1: .*ECONNREFUSED/],
    [Object.assign(new URL(db.url), { pathname: '/nosuch' }).href, /Reachability: nosuch at .*does not exist/],
  ] as const) {
    const { code, out } = await tailrace('doctor', url)
    assert.equal(code, 1)
    assert.match(out, words)
    assert.match(out, /\n1 checks: 1 errors, 0 warnings\n$/)
  }
})

test('a service is looked at with its databases and sinks, and an installation even where no service answers', async () => {
  await using s = await serveShop([`name: a, ${ITEMS}`])
  const doctor = (...args: string[]) => tailrace('doctor', '--url', s.url, '--token', TOKEN, ...args)
  const { checks } = printed<Answer>(await doctor('--json'))
  const of = (name: string) => checks.filter((check) => check.of === name)
  for (const name of ['Node', 'Settings', 'Memory', 'VAULT_KEY'])
    assert.ok(
      of('this installation').some((check) => check.name === name),
      name,
    )
  const memory = of('this installation').find(({ name }) => name === 'Memory')
  const [, gigabytes] = /^([\d.]+) GB, /.exec(memory?.message ?? '') ?? []
  assert.ok(Number(gigabytes) <= totalmem() / 2 ** 30 + 0.1, memory?.message)
  assert.deepEqual(of('sinks').map(({ name, status }) => [name, status]), [['a', 'ok']]) // prettier-ignore
  const slot = of(`database ${s.shop.db.name}`).find(({ name }) => name === 'Slot')
  assert.match(slot?.message ?? '', /is fit, and is read from/)
  await s.shop.db.query('create table keyless (line text)')
  const sick = await doctor()
  assert.equal(sick.code, 1)
  assert.match(sick.out, /✗ Replica identity: .*public\.keyless.*\n {6}alter table public\.keyless replica identity full;/)
  const away = await tailrace('doctor', '--url', 'http://127.0.0.1:1', '--token', 't')
  assert.equal(away.code, 1)
  assert.match(away.out, /✓ Node: v\d+[^]*\nthe service\n {2}✗ Reachability: no Tailrace answers at /)
  const odd = await tailrace('doctor', '--slot', 'x')
  assert.deepEqual([odd.code, /--slot and --publication are of a DATABASE/.test(odd.err)], [2, true])
})
