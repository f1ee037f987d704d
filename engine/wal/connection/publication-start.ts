/**
 * A slot that is older than its publication. Before version 18, Postgres can't decode what was written while there was no
 * publication, and a slot never comes beyond it. When a user takes it that this is missing, the slot is moved to where
 * its publication can be read again, and no further: what was written since comes.
 */
import { escapeIdentifier } from 'pg'
import { formatLsn, parseLsn, type Lsn } from '../../lsn.ts'
import { sqlstateOf } from '../../postgres/sqlstate.ts'
import type { Query } from '../../postgres/query.ts'

const UNDEFINED_OBJECT = '42704'
/** No two records of the log begin closer to each other. */
const RECORD_BYTES = 8n

/**
 * Moves a slot, which nobody reads, to where its publication begins, and finds that place by halves: what can't be read from a
 * position can't be read from any below it.
 * @param query on one session of the slot's database
 * @param from everything below is durable
 * @returns where the slot stands then
 */
export async function moveToPublication(query: Query, slot: string, publication: string, from: Lsn): Promise<Lsn> {
  const { rows } = await query(
    'select confirmed_flush_lsn::text as at, pg_current_wal_flush_lsn()::text as end from pg_replication_slots where slot_name = $1',
    [slot],
  )
  const slotAt = parseLsn(String(rows[0]?.at))
  let high = parseLsn(String(rows[0]?.end))
  let low = slotAt
  const move = async (to: Lsn) => {
    if (to > low) await query('select pg_replication_slot_advance($1, $2)', [slot, formatLsn(to)])
    low = to > low ? to : low
  }
  await move(from)
  while (high - low > RECORD_BYTES) {
    const middle = low + (high - low) / 2n
    if (await canRead(query, slot, publication, middle)) high = middle
    else await move(middle)
  }
  await move(high)
  return low
}

/** Tries on a copy of the slot, which goes with the session at the latest; a query that fails takes it along. */
async function canRead(query: Query, slot: string, publication: string, from: Lsn): Promise<boolean> {
  const copy = `${slot.slice(0, 57)}_probe`
  await query('select pg_copy_logical_replication_slot($1, $2, true)', [slot, copy])
  await query('select pg_replication_slot_advance($1, $2)', [copy, formatLsn(from)])
  try {
    await query(`select count(*) from pg_logical_slot_peek_binary_changes($1, null, 1, 'proto_version', '1', 'publication_names', $2)`, [
      copy,
      escapeIdentifier(publication),
    ])
  } catch (error) {
    if (sqlstateOf(error) !== UNDEFINED_OBJECT) throw error
    return false
  }
  await query('select pg_drop_replication_slot($1)', [copy])
  return true
}
