/**
 * What a program does with the client that openapi-typescript and openapi-fetch make of the OpenAPI document: it manages a source and its sinks, and
 * reads from one. It prints what it saw, as JSON. The test lays the generated api.d.ts beside it.
 */
import createClient from 'openapi-fetch'
import type { components, paths } from './api.d.ts'

type Given = Readonly<{
  url: string
  token: string
  database: { hostname: string; port: number; database: string; username: string; password: string }
  /** where a webhook sink sends to */
  receiver: string
  /** begins the names of all that it makes */
  prefix: string
  /** begins the names of slot and publication */
  slot: string
}>
const { url, token, database, receiver, prefix, slot }: Given = JSON.parse(process.env.GIVEN ?? '')
const client = createClient<paths>({ baseUrl: url, headers: { authorization: `Bearer ${token}` } })

type Answer<T> = { data?: T; error?: unknown; response: Response }
/** @throws Error the answer is not what the document has for a success */
function taken<T>({ data, error, response }: Answer<T>): T {
  if (data === undefined) throw new Error(`${response.status} of ${response.url}: ${JSON.stringify(error)}`)
  return data
}
const refused = ({ error, response }: { error?: components['schemas']['Error']; response: Response }) => ({
  status: response.status,
  code: error?.code,
  fields: Object.keys(error?.validation_errors ?? {}),
})
const [shop, hook, pull, web] = ['shop', 'hook', 'pull', 'web'].map((name) => `${prefix}-${name}`) as [string, string, string, string]
const at = (id_or_name: string) => ({ params: { path: { id_or_name } } })

const slots = [{ slot_name: `${slot}_${prefix}_slot`, publication_name: `${slot}_${prefix}_pub`, create_if_not_exists: true }]
const made = taken(
  await client.POST('/api/postgres_databases', { body: { name: shop, ...database, ssl: false, pool_size: 2, replication_slots: slots } }),
)
const reached = taken(await client.POST('/api/postgres_databases/{id_or_name}/test_connection', at(made.id)))
const tables = taken(await client.GET('/api/postgres_databases/{id_or_name}/tables', at(shop)))

taken(await client.POST('/api/destinations/http_endpoints', { body: { name: hook, url: receiver, headers: { 'x-shop': prefix } } }))
const source = { include_tables: ['public.customers'] }
const first = taken(
  await client.POST('/api/sinks', { body: { name: pull, database: shop, source, destination: { type: 'sequin_stream' } } }),
)
const destination = { type: 'webhook' as const, http_endpoint: hook, batch: false }
taken(await client.POST('/api/sinks', { body: { name: web, database: shop, source, destination, status: 'paused' } }))

const listed: string[] = []
let pages = 0
for (let cursor: string | undefined; pages === 0 || cursor !== undefined; pages++) {
  const page = taken(await client.GET('/api/sinks', { params: { query: { limit: 1, cursor } } }))
  listed.push(...page.data.map(({ name }) => name))
  cursor = page.next_cursor
}

const got = taken(await client.GET('/api/sinks/{id_or_name}', at(first.id)))
const edited = taken(
  await client.PATCH('/api/sinks/{id_or_name}', { ...at(pull), body: { batch_size: 45, annotations: { team: prefix } } }),
)
const paused = taken(await client.GET('/api/sinks/{id_or_name}', at(web)))
const resumed = taken(await client.PATCH('/api/sinks/{id_or_name}', { ...at(web), body: { status: 'active' } }))

const records: Record<string, unknown>[] = []
const acked: boolean[] = []
for (const sink of [pull, web]) taken(await client.POST('/api/sinks/{id_or_name}/backfills', { ...at(sink), body: {} }))
while (records.length < 2) {
  const { data } = taken(
    await client.POST('/api/http_pull_consumers/{id_or_name}/receive', { ...at(pull), body: { batch_size: 10, wait_for: '4s' } }),
  )
  records.push(...data.map(({ record = {} }) => record))
  if (data.length === 0) continue
  const ack_ids = data.map(({ ack_id }) => ack_id)
  acked.push(taken(await client.POST('/api/http_pull_consumers/{id_or_name}/ack', { ...at(pull), body: { ack_ids } })).success)
}
const backfills = async (sink: string) => taken(await client.GET('/api/sinks/{id_or_name}/backfills', at(sink))).data
for (;;) {
  const all = [...(await backfills(pull)), ...(await backfills(web))]
  if (all.every(({ state }) => state === 'completed')) break
}
const [backfill] = await backfills(pull)

const { yaml } = taken(await client.GET('/api/config/export'))
const planned = taken(await client.POST('/api/config/plan', { body: { yaml } }))
const other = taken(await client.POST('/api/config/plan', { body: { yaml: yaml.replace('batch_size: 45', 'batch_size: 60') } }))

const invalid = await client.PATCH('/api/sinks/{id_or_name}', { ...at(pull), body: { batch_size: 0 } })
const stranger = createClient<paths>({ baseUrl: url, headers: { authorization: 'Bearer not-a-token' } })
const unknown = await stranger.GET('/api/sinks')

const deleted = [
  taken(await client.DELETE('/api/sinks/{id_or_name}', at(pull))),
  taken(await client.DELETE('/api/sinks/{id_or_name}', at(web))),
  taken(await client.DELETE('/api/destinations/http_endpoints/{id_or_name}', at(hook))),
  taken(await client.DELETE('/api/postgres_databases/{id_or_name}', at(shop))),
]
const gone = await client.GET('/api/sinks/{id_or_name}', at(pull))

const seen = {
  database: { name: made.name, slots: made.replication_slots.map(({ slot_name }) => slot_name), reached: reached.success },
  tables: tables.data.map(({ name, primary_key }) => ({ name, primary_key })),
  pages: { listed, pages },
  got: { name: got.name, destination: got.destination.type, source: got.source.include_tables },
  edited: { batch_size: edited.batch_size, annotations: edited.annotations },
  states: [paused.status, resumed.status],
  records: records.toSorted((a, b) => Number(a.id) - Number(b.id)),
  acked: acked.every(Boolean),
  backfill: backfill && { table: backfill.table, rows: backfill.rows_processed_count, completed: backfill.completed_at !== null },
  planned: planned.changes.length,
  other: other.changes.map(({ resource_type, action, name }) => ({ resource_type, action, name })),
  refused: [refused(invalid), refused(unknown), refused(gone)],
  deleted: deleted.map((answer) => ('deleted' in answer ? answer.deleted : answer.success)),
}
process.stdout.write(JSON.stringify(seen))
