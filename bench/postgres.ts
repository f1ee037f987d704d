/** The bench's Postgres: a cluster of its own with fsync on, or the one that BENCH_PG_URL names (on this machine, as a
 *  superuser, wal_level logical). The workload has a database of its own there. */
import { randomBytes } from 'node:crypto'
import { Client } from 'pg'
import { startPostgres } from '../test/services/postgres.ts'

/** What a server of a little size has; no checkpoint falls into a measurement by the size of the write-ahead log. */
const SETTINGS = { fsync: 'on', wal_level: 'logical', shared_buffers: '256MB', max_wal_size: '8GB', checkpoint_timeout: '30min' }

export type Bench = AsyncDisposable &
  Readonly<{
    url: string
    database: Readonly<{ host: string; port: number; database: string; user: string; password: string }>
    /** the server's first process, parent of all its others */
    postmaster: number
  }>

export async function startBench(): Promise<Bench> {
  await using opened = new AsyncDisposableStack()
  const given = process.env.BENCH_PG_URL
  const server = given ?? opened.use(await startPostgres({ settings: SETTINGS })).url
  const url = new URL(server)
  const name = `bench_${randomBytes(4).toString('hex')}`
  const admin = opened.adopt(new Client({ connectionString: server }), (client) => client.end())
  await admin.connect()
  const { rows } = await admin.query<{ pid: string; fsync: string; level: string }>(
    `select split_part(pg_read_file('postmaster.pid'), E'\\n', 1) as pid, current_setting('fsync') as fsync, current_setting('wal_level') as level`,
  )
  const { pid, fsync, level } = rows[0] ?? {}
  if (fsync !== 'on' || level !== 'logical')
    throw new Error(`the bench needs fsync on and wal_level logical; the server has ${fsync} and ${level}`)
  await admin.query(`create database ${name}`)
  opened.defer(async () => void (await admin.query(`drop database ${name} with (force)`)))
  url.pathname = `/${name}`
  const resources = opened.move()
  return {
    url: url.href,
    database: {
      host: url.hostname,
      port: Number(url.port || 5432),
      database: name,
      user: decodeURIComponent(url.username),
      password: decodeURIComponent(url.password),
    },
    postmaster: Number(pid),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  }
}
