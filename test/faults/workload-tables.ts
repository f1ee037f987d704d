/**
 * The tables that workloads write, and how each row has to look as JSON. The database itself renders the expectation,
 * so that it comes from another hand than the messages: `jsonb` for what JSON has, fixed text forms for the rest.
 */

export type Table = Readonly<{
  name: string
  ddl: string
  keyColumns: readonly string[]
  /** REPLICA IDENTITY FULL: updates and deletes show the old row */
  full: boolean
  /** kept outside the row when long */
  bulkColumn?: string
  /** SQL of the expected `record`, over the row named `t` */
  rendering: string
  /** the sink does not take it, but the publication has it: its changes count in commit_idx */
  captured: boolean
}>

const utc = (column: string) =>
  `case when ${column} is not null then to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') end`

export const TABLES = [
  {
    name: 'account',
    ddl: `create table account (id bigint primary key, stamp bigint not null, name text, big bigint, amount numeric(24, 4), at timestamptz, flag bool, ratio float8)`,
    keyColumns: ['id'],
    full: false,
    rendering: `jsonb_build_object('id', t.id, 'stamp', t.stamp, 'name', t.name, 'big', t.big, 'amount', t.amount::text, 'at', ${utc('t.at')}, 'flag', t.flag, 'ratio', t.ratio)`,
    captured: true,
  },
  {
    name: 'document',
    ddl: `create table document (id int primary key, stamp bigint not null, name text, body text, facts jsonb, bytes bytea); alter table document alter body set storage external`,
    keyColumns: ['id'],
    full: false,
    bulkColumn: 'body',
    rendering: `jsonb_build_object('id', t.id, 'stamp', t.stamp, 'name', t.name, 'body', t.body, 'facts', t.facts, 'bytes', t.bytes::text)`,
    captured: true,
  },
  {
    name: 'archive',
    ddl: `create table archive (id int primary key, stamp bigint not null, name text, body text, facts jsonb, amount numeric); alter table archive alter body set storage external; alter table archive replica identity full`,
    keyColumns: ['id'],
    full: true,
    bulkColumn: 'body',
    rendering: `jsonb_build_object('id', t.id, 'stamp', t.stamp, 'name', t.name, 'body', t.body, 'facts', t.facts, 'amount', t.amount::text)`,
    captured: true,
  },
  {
    name: 'item',
    ddl: `create table item (tenant text, no int, stamp bigint not null, name text, tags text[], primary key (tenant, no))`,
    keyColumns: ['tenant', 'no'],
    full: false,
    rendering: `jsonb_build_object('tenant', t.tenant, 'no', t.no, 'stamp', t.stamp, 'name', t.name, 'tags', to_jsonb(t.tags))`,
    captured: true,
  },
  {
    name: 'member',
    ddl: `create table member (no int, tenant text, stamp bigint not null, name text, joined timestamptz, primary key (no, tenant)); alter table member replica identity full`,
    keyColumns: ['no', 'tenant'],
    full: true,
    rendering: `jsonb_build_object('no', t.no, 'tenant', t.tenant, 'stamp', t.stamp, 'name', t.name, 'joined', ${utc('t.joined')})`,
    captured: true,
  },
  {
    name: 'aside',
    ddl: `create table aside (id int primary key, stamp bigint not null, name text)`,
    keyColumns: ['id'],
    full: false,
    rendering: `jsonb_build_object('id', t.id, 'stamp', t.stamp, 'name', t.name)`,
    captured: false,
  },
] as const satisfies readonly Table[]

export const CAPTURED: readonly string[] = TABLES.filter((table) => table.captured).map((table) => `public.${table.name}`)
/** Each transaction enters its number as its last change, so that its outcome can be asked for when COMMIT got no answer. */
const OUTCOME = 'create table outcome (transaction int primary key)'
export const DDL = [OUTCOME, ...TABLES.map((table) => table.ddl)].join(';\n')
