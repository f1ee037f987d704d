/** `tailrace databases`: shows the databases of a running Tailrace and their tables, and tries to reach them, through its API. */
import { objectsOf } from '../engine/json.ts'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { service, type Access } from './running-service.ts'
import { table } from './table.ts'

type Verb = 'ls' | 'get' | 'tables' | 'test'
type Options = Access & Readonly<{ json?: boolean }>
type Fields = Readonly<Record<string, unknown>>

/** Does with databases what the verb says. @throws UsageError, CommandFailed; EngineError SERVICE_UNREACHABLE */
export async function databases(verb: Verb, name: string, { json = false, ...access }: Options): Promise<void> {
  if ((verb === 'ls') !== (name === ''))
    throw new UsageError(verb === 'ls' ? `ls takes no database ("${name}" came)` : 'NAME is missing: of the database')
  const ask = await service(access)
  const path = `/postgres_databases/${encodeURIComponent(name)}`
  if (verb === 'test') {
    const answer = await ask('POST', `${path}/test_connection`).catch((error: unknown) => {
      if (json && error instanceof CommandFailed) return { success: false, reason: error.message }
      throw error
    })
    if (answer['success'] !== true) process.exitCode = 1
    return json ? printJson(answer) : print(`${name}: it can be read`)
  }
  const answer = await ask('GET', verb === 'ls' ? '/postgres_databases' : verb === 'tables' ? `${path}/tables` : path)
  if (json) return printJson(answer)
  if (verb === 'get') return print(table([], Object.entries(answer).map(([key, value]) => [key, shown(value)]))) // prettier-ignore
  const list: readonly Fields[] = objectsOf(answer['data'])
  if (list.length === 0) return print(verb === 'ls' ? 'There are no databases.' : `"${name}" has no tables.`)
  if (verb === 'ls') {
    const rows = list.map((one) =>
      [one['name'], `${shown(one['hostname'])}:${shown(one['port'])}`, one['database'], one['username'], slotStatus(one)].map(shown),
    )
    return print(table(['NAME', 'ADDRESS', 'DATABASE', 'USER', 'SLOT'], rows))
  }
  const rows = list.map((one) => [
    `${shown(one['schema'])}.${shown(one['name'])}`,
    one['published'] === true ? 'yes' : one['published_as'] === null ? 'no' : `as ${shown(one['published_as'])}`,
    Array.isArray(one['primary_key']) ? one['primary_key'].join(', ') : '',
    shown(one['replica_identity']),
    [
      one['may_select'] === false && 'may not be read',
      one['row_level_security'] === true && 'row security',
      one['unlogged'] === true && 'unlogged',
    ]
      .filter((word) => word !== false)
      .join(', '),
  ])
  print(table(['TABLE', 'PUBLISHED', 'PRIMARY KEY', 'IDENTITY', ''], rows))
}

/** Gives `active` or `disabled`: a database has one slot. */
const slotStatus = ({ replication_slots: slots }: Fields): unknown => objectsOf(slots)[0]?.['status']

const shown = (value: unknown): string => (typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value ?? ''))
