/** Tries a query that enriches, on messages that a user has written: what it was given, and the row that it found. */
import { EngineError } from '../engine/errors.ts'
import type { FunctionInput } from '../engine/state/functions.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import { SnapshotReader } from '../engine/wal/connection/snapshot-reader.ts'
import { compileFunction, type Written } from './compile.ts'
import { Enricher } from './enrichment.ts'
import { parseExact } from '../engine/json.ts'
import type { AccountPool } from './sandbox/pool.ts'
import type { TrialMessage, TrialResult } from './trial.ts'

/** Checks a query and tries it. @throws EngineError VALIDATION_FAILED; SOURCE_UNREACHABLE …: the database can't be asked */
export async function tryEnrichment(
  written: Written,
  messages: readonly TrialMessage[],
  { connection, pool }: Readonly<{ connection: Connection; pool: Pick<AccountPool, 'check'> }>,
): Promise<TrialResult[]> {
  return tryQuery(await compileFunction(written, pool), messages, connection)
}

/** Tries a query that was checked before. @throws EngineError SOURCE_UNREACHABLE …: the database can't be asked */
export async function tryQuery(
  { name, compiled: sql }: Pick<FunctionInput, 'name' | 'compiled'>,
  messages: readonly TrialMessage[],
  connection: Connection,
): Promise<TrialResult[]> {
  const reader = new SnapshotReader(connection, 'tailrace trial')
  try {
    const results: TrialResult[] = []
    for (const input of messages) {
      const started = performance.now()
      const result = await tried(new Enricher({ name, sql, reader }), reader, input).catch((error: unknown) => {
        if (!(error instanceof EngineError) || error.code !== 'ENRICHMENT_FAILED') throw error
        return { error: { code: error.code, name, kind: 'enrichment' as const, text: error.message } }
      })
      results.push({ input, ...result, timeUs: Math.round((performance.now() - started) * 1000), logs: [] })
    }
    return results
  } finally {
    await reader.close()
  }
}

async function tried(
  enricher: Enricher,
  reader: SnapshotReader,
  { metadata }: TrialMessage,
): Promise<Pick<TrialResult, 'output' | 'parameters'>> {
  const { table_schema: schema, table_name: table, record_pks: key } = metadata
  const relation = await reader.read(new Set(), async (read) => {
    const { rows } = await read(`select pg_catalog.to_regclass(pg_catalog.format('%I.%I', $1::text, $2::text))::pg_catalog.oid::text`, [
      String(schema),
      String(table),
    ])
    return rows[0]?.[0]
  })
  if (relation === null || relation === undefined)
    throw new EngineError('ENRICHMENT_FAILED', `metadata names the table ${schema}.${table}, which does not exist`)
  if (!Array.isArray(key))
    throw new EngineError('ENRICHMENT_FAILED', 'metadata has no record_pks: the primary key of the row, as a list of texts')
  const texts = key.map(String)
  const { given, byKey } = await enricher.rowsOf(Number(relation), [texts], new Set())
  const row = byKey.get(JSON.stringify(texts))
  return { parameters: given, output: row === undefined ? null : parseExact(row.toString()) }
}
