/**
 * The audit log: who changed what, when and from where. An entry is written in the transaction of its change. Who acts is known where a
 * request comes in and is needed where the transaction is made, with much in between that has no need to know: so it is kept in the
 * context of the asynchronous call.
 */
import { AsyncLocalStorage } from 'node:async_hooks'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'

/**
 * Who makes a change. @property kind token and user: of a request; file: of the start; system: Tailrace itself
 * @property address where the request came from @property client what its program calls itself
 */
export type Actor = Readonly<{ kind: 'token' | 'user' | 'file' | 'system'; id?: string; name: string; address?: string; client?: string }>

/** What was before and after, by field; a field that was not there, or is no more, has null. */
export type FieldChanges = Readonly<Record<string, Readonly<{ old: unknown; new: unknown }>>>

/** A change that goes on record. @property kind of what is changed @property name of what is changed, as it is called then */
export type Change = Readonly<{ accountId: string; action: string; kind: string; name: string; changes?: FieldChanges }>

/** A change on record. */
export type AuditEntry = Omit<Change, 'accountId'> & Readonly<{ id: number; at: Date; actor: Actor; changes: FieldChanges }>

/** Who acts where nobody is said to: what Tailrace does by itself. */
const SYSTEM: Actor = { kind: 'system', name: 'tailrace' }
const acting = new AsyncLocalStorage<Actor>()

/** Runs work in the name of somebody: changes that it makes go on record as theirs. */
export const actAs = <T>(actor: Actor, work: () => T): T => acting.run(actor, work)

/** Puts changes on record, in the transaction that makes them. */
export async function record(query: Query, changes: readonly Change[]): Promise<void> {
  if (changes.length === 0) return
  const actor = acting.getStore() ?? SYSTEM
  const rows = changes.map(({ accountId, action, kind, name, changes: fields = {} }) => ({
    account_id: accountId,
    actor,
    action,
    kind,
    name,
    changes: fields,
  }))
  await query(
    `insert into audit_log (account_id, actor, action, kind, name, changes)
     select account_id, actor, action, kind, name, changes
     from jsonb_to_recordset($1) as given (account_id uuid, actor jsonb, action text, kind text, name text, changes jsonb)`,
    [JSON.stringify(rows)],
  )
}

/** What of the audit log is asked for. @property before only entries that are older than the one of this id */
export type AuditFilter = Readonly<{ limit: number; before?: number | undefined; kind?: string | undefined; name?: string | undefined }>

const json =
  <T>() =>
  (value: unknown): T =>
    value as T // as it was written here

/** Reads the entries of an account, newest first. */
export async function auditEntries(
  query: Query,
  accountId: string,
  { limit, before, kind, name }: AuditFilter,
): Promise<readonly AuditEntry[]> {
  const answer = await query(
    `select id, at, actor, action, kind, name, changes from audit_log
     where account_id = $1 and ($2::bigint is null or id < $2) and ($3::text is null or kind = $3) and ($4::text is null or name = $4)
     order by id desc limit $5`,
    [accountId, before ?? null, kind ?? null, name ?? null, limit],
  )
  return rowsOf(
    { id: 'int', at: 'time', actor: json<Actor>(), action: 'text', kind: 'text', name: 'text', changes: json<FieldChanges>() },
    answer,
  )
}

/** Deletes entries older than some days, so many at a time that nobody waits for it. */
export async function pruneAudit(query: Query, days: number): Promise<void> {
  const batch = 10_000
  let deleted = batch
  while (deleted === batch) {
    const { rows } = await query(
      `delete from audit_log where id in (select id from audit_log where at < now() - make_interval(days => $1) limit $2) returning id`,
      [days, batch],
    )
    deleted = rows.length
  }
}
