/**
 * The role that the demo's account works with: it owns the database of the demo and may replicate it, and nothing more. The
 * embedded server's superuser could read files and start programs as the server's user, and holds the state. One way past
 * it is left: PostgreSQL lets whoever may replicate copy all databases (BASE_BACKUP), where they reach its port on 127.0.0.1.
 * pg_hba.conf can't take that back: it tells logical connections from others, and both take the command.
 */
import { Client } from 'pg'
import { clientConfig, type Connection } from '../engine/postgres/client-config.ts'
import type { PostgresServer } from '../engine/postgres/server.ts'
import { DEMO } from './demo-database.ts'

/** Whatever an older version made as the superuser, or a user who had its password: it becomes the role's. */
const OWN_ALL = `
do $$
declare one record;
begin
  for one in
    select format('schema %I', nspname) as what from pg_namespace
      where nspname !~ '^pg_' and nspname not in ('information_schema', 'public')
    union all
    select format('%s %s', case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
        when 'f' then 'foreign table' else 'table' end, c.oid::regclass)
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
        and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i', 'e') and c.relkind = 'S'
          or d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
    union all
    select format('%s %s', case p.prokind when 'p' then 'procedure' when 'a' then 'aggregate' else 'function' end, p.oid::regprocedure)
      from pg_proc p join pg_namespace n on n.oid = p.pronamespace
      where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
        and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
  loop
    execute format('alter %s owner to %I', one.what, current_setting('tailrace.demo_role'));
  end loop;
end $$`

/**
 * Makes the role, or puts it right, and gives it the demo's database; of the others it is shut out.
 * @returns how the role connects
 */
export async function ensureDemoRole(server: PostgresServer, password: string): Promise<Connection> {
  const connection: Connection = { ...server.connection(DEMO.database), username: DEMO.role, password }
  const client = new Client(clientConfig(server.connection(DEMO.database), 'tailrace set-up'))
  await client.connect()
  try {
    const [role, database] = [client.escapeIdentifier(DEMO.role), client.escapeIdentifier(DEMO.database)]
    const known = await client.query('select from pg_roles where rolname = $1', [DEMO.role])
    if (known.rows.length === 0) await client.query(`create role ${role}`)
    await client.query(
      `alter role ${role} login replication nosuperuser nocreatedb nocreaterole nobypassrls password ${client.escapeLiteral(password)}`,
    )
    await client.query(`alter database ${database} owner to ${role}`)
    await client.query(`select set_config('tailrace.demo_role', $1, false)`, [DEMO.role])
    await client.query(OWN_ALL)
    const { rows } = await client.query<{ name: string }>('select quote_ident(datname) as name from pg_database where datname <> $1', [
      DEMO.database,
    ])
    for (const { name } of rows) await client.query(`revoke connect, temporary on database ${name} from public`)
    return connection
  } finally {
    await client.end()
  }
}
