/** Makes the demo at the first start on an embedded Postgres, and tells how to play with it at every start. */
import { Client } from 'pg'
import { clientConfig, type Connection } from '../engine/postgres/client-config.ts'
import { provision } from '../engine/wal/connection/provision.ts'
import type { PostgresServer } from '../engine/postgres/server.ts'
import type { ResourceStore } from '../engine/state/resource-store.ts'
import type { Store } from '../engine/state/store.ts'
import { saveToken } from '../engine/state/token-store.ts'
import { newToken } from '../engine/state/tokens.ts'
import { newSink } from '../actors/resources/sink-form.ts'
import { loadDemoAccess, saveDemoAccess, type DemoAccess } from './demo.ts'
import { createDemoTables, DEMO, fillDemoTables } from './demo-database.ts'
import { ensureDemoRole } from './demo-role.ts'

type Parts = Readonly<{ server: PostgresServer; store: Store; resources: ResourceStore; folder: string }>

/** @property announce saves where the service is, and says how to play with it */
type Demo = Omit<DemoAccess, 'serviceUrl'> & Readonly<{ announce: (serviceUrl: string) => Promise<void> }>

/** Makes what the demo lacks: its database, account, source and sink. */
export async function ensureDemo({ server, store, resources, folder }: Parts): Promise<Demo> {
  const isNew = await ensureDatabase(server.connection('postgres'), DEMO.database)
  const former = await loadDemoAccess(folder).catch(() => undefined)
  const token = former?.token ?? newToken()
  const connection = await ensureDemoRole(server, passwordOf(former) ?? newToken())
  const client = new Client(clientConfig(connection, 'tailrace demo'))
  await client.connect()
  try {
    // a start that was killed half-way is finished by the next one
    const { rows } = await client.query<{ tables: boolean; rows: boolean }>(`select to_regclass('purchase') is not null as tables`)
    if (isNew || !rows[0]?.tables) await createDemoTables(client)
    // by the superuser: a publication for all tables can have no other owner
    await provision(server.connection(DEMO.database), {
      slot: { name: DEMO.slot, create: true },
      publication: { name: DEMO.publication, create: true },
    })
    await store.transaction(async (query) => {
      const account = await resources.saveAccount(query, DEMO.account)
      await saveToken(query, account, { name: 'demo', token })
      const database = {
        name: DEMO.database,
        connection,
        poolSize: 10,
        annotations: {},
        slotName: DEMO.slot,
        publicationName: DEMO.publication,
      }
      await resources.save(query, 'database', { account, input: database })
      const stored = await query('select from sink where account_id = $1 and name = $2', [account.id, DEMO.sink])
      if (stored.rows.length > 0) return // it may have been edited since
      const sink = newSink({
        name: DEMO.sink,
        database: DEMO.database,
        source: { include_schemas: ['public'] },
        destination: { type: 'sequin_stream' },
      })
      await resources.save(query, 'sink', { account, input: sink })
    })
    const filled = await client.query('select from customer limit 1')
    if (filled.rows.length === 0) await fillDemoTables(client)
  } finally {
    await client.end()
  }
  const databaseUrl = urlOf(connection)
  return {
    token,
    databaseUrl,
    announce: async (serviceUrl) => {
      const access = { token, databaseUrl, serviceUrl }
      await saveDemoAccess(folder, access)
      process.stdout.write(`${greeting(access)}\n`)
    },
  }
}

/** Of the demo's role, so that connection strings stay true; an older version gave the superuser's to the demo. */
function passwordOf(access: DemoAccess | undefined): string | undefined {
  const url = access && URL.parse(access.databaseUrl)
  return url?.username === DEMO.role ? decodeURIComponent(url.password) : undefined
}

/** Makes a database on a server, unless it is there. @returns whether it was made now */
export async function ensureDatabase(server: Connection, name: string): Promise<boolean> {
  const client = new Client(clientConfig(server, 'tailrace set-up'))
  await client.connect()
  try {
    const { rows } = await client.query('select from pg_database where datname = $1', [name])
    if (rows.length === 0) await client.query(`create database ${client.escapeIdentifier(name)}`)
    return rows.length === 0
  } finally {
    await client.end()
  }
}

function greeting({ token, databaseUrl, serviceUrl }: DemoAccess): string {
  const sink = `${serviceUrl}/api/http_pull_consumers/${DEMO.sink}`
  const auth = `-H 'Authorization: Bearer ${token}'`
  return `
Tailrace is at ${serviceUrl}
API token: ${token}
Demo database: ${databaseUrl}

Receive:  curl -s ${auth} -d '{"batch_size": 2, "wait_for": 5000}' ${sink}/receive
Ack:      curl -s ${auth} -d '{"ack_ids": ["<ack_id>"]}' ${sink}/ack

"npx tailrace demo write" makes some changes. Ctrl-C stops.
`
}

const urlOf = ({ hostname, port, username, password, database }: Connection): string =>
  `postgresql://${encodeURIComponent(username)}:${encodeURIComponent(password)}@${hostname}:${port}/${database}`
