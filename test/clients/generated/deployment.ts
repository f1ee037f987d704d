/**
 * A deployment as a company has it: three databases, a sink of every type of destination, functions of every kind, HTTP endpoints of every kind, users,
 * tokens, first backfills and a change retention.
 */
import { stringify } from 'yaml'
import type { TestDatabase } from '../../services/postgres.ts'
import { UNSENT } from '../../services/sequin-destinations.ts'
import { retentionTableSql } from '../../../sinks/change-retention.ts'

/** What each of its databases holds. */
export const DDL = {
  shop: `create table goods (id int primary key, name text, owner int);
    create table customers (id int primary key, kind text);
    insert into customers values (7, 'VIP'), (8, 'new');
    insert into goods values (1, 'pen', 7), (2, 'ink', 8), (3, null, null)`,
  crm: `create table contacts (id int primary key, email text); create table notes (contact int, line int, body text, primary key (contact, line))`,
  warehouse: `create schema history; ${retentionTableSql('history', 'goods')}`,
} as const

export type Sources = Readonly<Record<keyof typeof DDL, TestDatabase>>

/**
 * Writes its file.
 * @param options.slot begins the names of slots and publications @param options.receiver where its webhooks go to
 * @param options.token of the admin
 */
export function deploymentFile(
  sources: Sources,
  { slot, receiver, token }: Readonly<{ slot: string; receiver: string; token: string }>,
): string {
  const created = (name: string) => ({ name: `${slot}_${name}`, create_if_not_exists: true })
  const databases = Object.entries(sources).map(([name, { connection }]) => ({
    ...{ name, ...connection, pool_size: 3, annotations: { team: name } },
    ...{ slot: created(name), publication: created(name), await_database: { timeout_ms: 30_000, interval_ms: 1000 } },
  }))
  const goods = { database: 'shop', source: { include_tables: ['public.goods'] } }
  const contacts = { database: 'crm', source: { include_schemas: ['public'], exclude_tables: ['public.notes'] } }
  const webhook = (http_endpoint: string, more: object = {}) => ({ type: 'webhook', http_endpoint, ...more })
  return stringify({
    account: { name: 'company' },
    users: [
      { email: 'ada@company.example', password: 'a-long-password-of-ada' },
      { email: 'bob@company.example', password: 'a-long-password-of-bob', role: 'viewer' },
    ],
    api_tokens: [
      { name: 'admin', token },
      { name: 'workers', token: 'token-of-the-workers', scopes: ['receive'], sinks: ['goods'] },
    ],
    databases,
    change_retentions: [
      {
        ...{ name: 'goods-history', source_database: 'shop', source_table_schema: 'public', source_table_name: 'goods' },
        ...{ destination_database: 'warehouse', destination_table_schema: 'history', destination_table_name: 'goods' },
        filters: [{ column_name: 'name', operator: 'is not null' }],
      },
    ],
    functions: [
      { name: 'row', type: 'path', path: 'record', description: 'the row alone' },
      { name: 'document', type: 'transform', code: 'export default (action, record, changes, metadata) => ({ id: record.id, name: record.name, kind: metadata.enrichment?.kind })' },
      { name: 'named', type: 'filter', code: 'export default (action, record) => record.name !== null' },
      { name: 'paths', type: 'routing', sink_type: 'webhook', code: 'export default (action, record) => ({ method: "PUT", endpoint_path: `/goods/${record.id}` })' },
      { name: 'indexes', type: 'routing', sink_type: 'elasticsearch', code: 'export default (action, record, changes, metadata) => ({ index_name: metadata.table_name })' },
      { name: 'topics', type: 'routing', sink_type: 'kafka', code: 'export default (action, record) => ({ topic: `goods-${record.id}` })' },
      { name: 'owners', type: 'enrichment', code: 'select g.id, c.kind from goods g join customers c on c.id = g.owner where g.id = any($1)' },
    ],
    http_endpoints: [
      { name: 'partner', url: `${receiver}/partner`, headers: { 'x-company': 'ours' }, encrypted_headers: { authorization: 'Bearer token-of-the-partner' } },
      { name: 'laptop', local: true, path: '/hooks' },
      { name: 'trial', 'webhook.site': true },
    ],
    sinks: [
      { name: 'goods', ...goods, destination: { type: 'sequin_stream' }, transform: 'document', enrichment: 'owners', initial_backfill: true },
      { name: 'contacts', ...contacts, destination: { type: 'sequin_stream' }, partitions: 2, actions: ['insert', 'delete'], timestamp_format: 'unix_microsecond' },
      { name: 'notes', database: 'crm', table: 'public.notes', destination: { type: 'sequin_stream' }, tables: [{ name: 'public.notes', group_column_names: ['contact'] }], replay_window: '2h' },
      { name: 'partner', ...goods, destination: webhook('partner', { batch: false }), filter: 'named', transform: 'row', routing: 'paths', initial_backfill: [{ table: 'public.goods', type: 'partial', sort_column: 'id', start_position: 2 }] },
      { name: 'laptop', ...contacts, destination: webhook('laptop', { http_endpoint_path: '/contacts' }), batch_size: 20 },
      { name: 'trial', ...contacts, destination: webhook('trial'), status: 'disabled' },
      { name: 'search', ...goods, destination: { type: 'elasticsearch', endpoint_url: 'http://127.0.0.1:9', index_name: 'goods', auth_type: 'basic', auth_value: 'writer:password-of-the-writer' }, transform: 'document', routing: 'indexes', status: 'paused' },
      { name: 'documents', ...goods, destination: { type: 'meilisearch', endpoint_url: 'http://127.0.0.1:9', index_name: 'goods', api_key: 'key-of-the-index' }, transform: 'document', status: 'paused' },
      ...UNSENT.map((destination) => ({ name: `to-${destination.type}`, ...goods, destination, ...(destination.type === 'kafka' && { routing: 'topics' }) })),
    ],
  }) // prettier-ignore
}
