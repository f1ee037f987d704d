/**
 * Makes a configuration document so: publications and slots first, then everything in one transaction. Nothing is ever
 * deleted; when a part fails nothing of it stays, and a slot or publication that was made for it is dropped again.
 *
 * A server that does not answer stops a database that is new here. One that is known already has its slot: it is taken as
 * it stands, so that Tailrace can start, and deliver what its log holds, while the server is down.
 */
import { setTimeout as pause } from 'node:timers/promises'
import { EngineError } from '../engine/errors.ts'
import { provision, type Provisioned } from '../engine/postgres/provision.ts'
import { missingNames, namesOf, newNames, reasonOf, refuseMissing } from '../engine/postgres/source-names.ts'
import type { ResourceStore } from '../engine/state/resource-store.ts'
import type { SinkSettings } from '../engine/state/resources.ts'
import type { Query, Store } from '../engine/state/store.ts'
import { hashToken } from '../engine/state/tokens.ts'
import type { ConfigDocument, ConfiguredDatabase } from './config-document.ts'

/**
 * @returns what should be known but stops nothing: names of stored sinks that their source no longer has
 * @throws EngineError CONFIG_INVALID: file, line and reason
 */
export async function applyConfig(document: ConfigDocument, store: Store, resources: ResourceStore): Promise<readonly string[]> {
  const made: Provisioned[] = []
  try {
    const known = await knownDatabases(document, store.query)
    for (const database of document.databases) {
      const provision = await at(document, database.line, () => provisioned(database, known.has(database.input.name)))
      if (provision) made.push(provision)
    }
    const notices = await checkNames(document, store.query)
    await store.transaction((query) => write(document, query, resources))
    return notices
  } catch (error) {
    const left: string[] = []
    for (const { undo } of made.toReversed()) await undo().catch((reason: Error) => left.push(reason.message)) // the first failure is the one to tell
    if (left.length === 0) throw error
    const text = error instanceof Error ? error.message : String(error)
    throw new EngineError('CONFIG_INVALID', `${text}; what was made for it could not be dropped: ${left.join('; ')}`, {}, { cause: error })
  }
}

async function write(document: ConfigDocument, query: Query, resources: ResourceStore): Promise<void> {
  const account = await at(document, document.lines.account, () => resources.saveAccount(query, document.account))
  for (const { line, name, token } of document.tokens)
    await at(document, line, async () => {
      const { rows } = await query<{ name: string }>(
        "select name from api_token where hash = decode($1, 'hex') and (account_id, name) <> ($2, $3)",
        [hashToken(token), account.id, name],
      )
      if (rows[0]) throw new EngineError('VALIDATION_FAILED', 'this token is already in use under another name or account')
      await resources.saveToken(query, account, name, token)
    })
  for (const { line, input } of document.databases) {
    await at(document, line, async () => {
      const { rows } = await query<{ slot_name: string; publication_name: string }>(
        'select slot_name, publication_name from source_database where account_id = $1 and name = $2',
        [account.id, input.name],
      )
      const [stored] = rows
      if (stored && (stored.slot_name !== input.slotName || stored.publication_name !== input.publicationName))
        throw new EngineError(
          'VALIDATION_FAILED',
          `slot and publication of a database can't be renamed (they are "${stored.slot_name}" and "${stored.publication_name}")`,
        )
      await resources.saveDatabase(query, account, input)
    })
  }
  for (const { line, database, input } of document.sinks) {
    await at(document, line, async () => {
      const { rows } = await query<{ id: string }>('select id from source_database where account_id = $1 and name = $2', [
        account.id,
        database,
      ])
      if (!rows[0]) throw new EngineError('NOT_FOUND', `the database "${database}" is not known`)
      const kept = await query<{ database_id: string }>('select database_id from sink where account_id = $1 and name = $2', [
        account.id,
        input.settings.name,
      ])
      if (kept.rows[0] && kept.rows[0].database_id !== rows[0].id)
        throw new EngineError('VALIDATION_FAILED', 'the database of a sink cannot change')
      await resources.saveSink(query, account, rows[0].id, input)
    })
  }
}

/** A new name that the source doesn't have is a mistake; one that a stored sink had already may have gone since. */
async function checkNames(document: ConfigDocument, query: Query): Promise<readonly string[]> {
  const { rows } = await query<{ name: string; settings: Pick<SinkSettings, 'source' | 'tables'> }>(
    'select s.name, s.settings from sink s join account a on a.id = s.account_id where a.name = $1',
    [document.account],
  )
  const stored = new Map(rows.map(({ name, settings }) => [name, settings]))
  const notices: string[] = []
  for (const { line, database: name, input } of document.sinks) {
    const database = document.databases.find((one) => one.input.name === name)
    if (!database) continue // known from before, or told when the sink is written
    const missing = await missingNames(database.input.connection, namesOf(input.settings))
    await at(document, line, async () => refuseMissing(newNames(missing, stored.get(input.settings.name))))
    for (const one of missing) notices.push(`${document.file}:${line}: the sink "${input.settings.name}" ${reasonOf(one)}`)
  }
  return notices
}

async function knownDatabases({ account }: ConfigDocument, query: Query): Promise<ReadonlySet<string>> {
  const { rows } = await query<{ name: string }>(
    'select d.name from source_database d join account a on a.id = d.account_id where a.name = $1',
    [account],
  )
  return new Set(rows.map(({ name }) => name))
}

/** Waits for a server that is still starting, when the file says so. @returns undefined: a known one that is down */
async function provisioned(
  { input, createSlot, createPublication, initSql, awaitMs, intervalMs }: ConfiguredDatabase,
  isKnown: boolean,
): Promise<Provisioned | undefined> {
  const deadline = performance.now() + awaitMs
  for (;;) {
    try {
      return await provision(input.connection, {
        slot: { name: input.slotName, create: createSlot && !isKnown },
        publication: { name: input.publicationName, create: createPublication, ...(initSql === undefined ? {} : { initSql }) },
      })
    } catch (error) {
      const code = error instanceof EngineError ? error.code : undefined
      if (isKnown && (code === 'SOURCE_UNREACHABLE' || code === 'SLOT_MISSING')) return undefined // its source tells, and says what to do
      if (code !== 'SOURCE_UNREACHABLE' || performance.now() + intervalMs > deadline) throw error
      await pause(intervalMs)
    }
  }
}

async function at<T>({ file }: ConfigDocument, line: number, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error)
    throw new EngineError(
      'CONFIG_INVALID',
      `${file}:${line}: ${text}`,
      { file, line, ...(error instanceof EngineError ? { because: error.code } : {}) },
      { cause: error },
    )
  }
}
