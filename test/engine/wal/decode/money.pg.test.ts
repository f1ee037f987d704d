/** Values of type money are written by lc_monetary: a database with another one must not change them. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { Client } from 'pg'
import { sourceClient } from '../../../../engine/wal/connection/source-client.ts'
import { startPostgres } from '../../../services/postgres.ts'
import { reaches, SourceFixture } from '../source-fixture.ts'

const LOCALE = 'de_DE.utf8'
/** The servers of the tests know no locales but C: one is compiled for a server that is told where to find it. */
const folder = mkdtempSync(join(tmpdir(), 'tailrace-locale-'))
const isCompiled = spawnSync('localedef', ['-i', 'de_DE', '-f', 'UTF-8', join(folder, LOCALE)], { stdio: 'ignore' }).status === 0
chmodSync(folder, 0o755) // a server that root starts is another user's
process.env['LOCPATH'] = folder
after(() => rm(folder, { recursive: true, force: true }))

test(
  'a database with another lc_monetary gives the same bytes, streamed and selected',
  { skip: isCompiled ? false : 'localedef has no de_DE to compile' },
  async () => {
    await using server = await startPostgres()
    await using it = await SourceFixture.create({ ddl: 'create table price (id int primary key, amount money)', server: server.url })
    await it.db.query(`insert into price values (1, '1234.5')`)
    await it.db.query(`alter database ${it.db.name} set lc_monetary = '${LOCALE}'`)
    const unpinned = await it.db.connect()
    assert.equal((await unpinned.query<{ amount: string }>('select amount from price')).rows[0]?.amount, '1.234,50 €')
    const pinned = new Client(sourceClient(it.db.connection, 'test'))
    await pinned.connect()
    const selected = (await pinned.query<{ amount: string }>('select amount from price')).rows[0]?.amount
    await pinned.end()
    const actor = it.start()
    await reaches(actor, 'streaming')
    await unpinned.query('update price set id = 2')
    const streamed = (await it.until((seen) => seen.length > 0)).at(-1)?.json.record['amount']
    assert.deepEqual([selected, streamed], ['$1,234.50', '$1,234.50'])
  },
)
