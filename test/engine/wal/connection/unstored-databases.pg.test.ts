import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import type { Connection } from '../../../../engine/postgres/client-config.ts'
import { Vault } from '../../../../engine/state/secrets.ts'
import { openStore } from '../../../../engine/state/store.ts'
import { UnstoredDatabases } from '../../../../engine/wal/connection/unstored-databases.ts'
import { createDatabase } from '../../../services/postgres.ts'
import { until } from '../../../waiting.ts'

test('what was left on a server that is away keeps nothing on other servers from being dropped', async () => {
  await using state = await createDatabase()
  await using db = await createDatabase('create publication orphan')
  await using store = await openStore(state.connection, 2, (error) => assert.fail(error))
  const vault = new Vault(randomBytes(32))
  const leave = (kind: string, name: string, connection: Connection) =>
    store.query('insert into unstored_part (kind, name, connection) values ($1, $2, $3)', [
      kind,
      name,
      vault.encrypt(JSON.stringify(connection)),
    ])
  await leave('slot', 'away', { ...db.connection, port: 1 })
  await leave('publication', 'orphan', db.connection)
  const [dropped, kept]: [unknown[], unknown[]] = [[], []]
  await using unstored = new UnstoredDatabases({
    ...{ store, vault },
    dropped: (part) => dropped.push(part),
    onError: (_, part) => kept.push(part),
  })
  unstored.start()
  await until('the publication is forgotten', async () => (await store.query('select from unstored_part')).rows.length === 1)
  assert.deepEqual(dropped, [{ kind: 'publication', name: 'orphan' }])
  assert.deepEqual(kept[0], { kind: 'slot', name: 'away' })
  assert.deepEqual(await db.query('select from pg_publication'), [])
})
