/** The audit log over HTTP (docs/security.md). */
import { Type } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import type { AuditEntry, AuditFilter, Change } from '../engine/state/audit.ts'
import { queryOf, type Operation } from './http/operation.ts'

/** The audit log of accounts. */
export type AuditPort = Readonly<{
  entries: (accountId: string, filter: AuditFilter) => Promise<readonly AuditEntry[]>
  /** puts on record what has no transaction of its own */
  note: (change: Change) => Promise<void>
}>

const MAX_LIMIT = 1_000
const DEFAULT_LIMIT = 100

const EntryOut = Type.Object({
  id: Type.Integer(),
  at: Type.String({ format: 'date-time' }),
  actor: Type.Object({
    kind: Type.String({ description: 'token, user, file (of the start) or system' }),
    id: Type.Optional(Type.String()),
    name: Type.String(),
    address: Type.Optional(Type.String({ description: 'where the request came from' })),
    client: Type.Optional(Type.String({ description: 'what its program calls itself (User-Agent)' })),
  }),
  action: Type.String({ description: 'create, update, delete, replay, …' }),
  kind: Type.String({ description: 'of what was changed: sink, database, http_endpoint, function, backfill, api_token, …' }),
  name: Type.String(),
  changes: Type.Object({}, { additionalProperties: true, description: 'by field: old and new; secrets are hidden' }),
})

/** Makes the route of the audit log. */
export function auditOperations({ entries }: Pick<AuditPort, 'entries'>): Operation[] {
  return [
    {
      id: 'listAuditLog',
      methods: ['GET'],
      paths: ['/api/audit_log'],
      summary: 'Who changed what, when and from where',
      description: 'Newest first.',
      scope: 'admin',
      query: Type.Object({
        limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: DEFAULT_LIMIT })),
        cursor: Type.Optional(Type.String({ description: 'next_cursor of the page before' })),
        kind: Type.Optional(Type.String({ description: 'only of this kind, such as sink' })),
        name: Type.Optional(Type.String({ description: 'only of what had this name' })),
      }),
      answer: {
        description: 'The entries; next_cursor when there are more.',
        schema: Type.Object({ data: Type.Array(EntryOut), next_cursor: Type.Optional(Type.String()) }),
      },
      errors: [400, 503],
      handle: async (request, _reply, account) => {
        const { limit = DEFAULT_LIMIT, cursor, kind, name } = queryOf(request)
        const most = wholeNumber('limit', limit)
        if (most < 1 || most > MAX_LIMIT) throw new EngineError('REQUEST_INVALID', `limit must be a whole number from 1 to ${MAX_LIMIT}.`)
        const found = await entries(account.id, {
          limit: most + 1, // one more tells whether there is a next page
          before: cursor === undefined ? undefined : wholeNumber('cursor', cursor),
          kind: kind === undefined ? undefined : String(kind),
          name: name === undefined ? undefined : String(name),
        })
        const data = found.slice(0, most)
        return { data, ...(found.length > most && { next_cursor: String(data.at(-1)?.id) }) }
      },
    },
  ]
}

/** @throws EngineError REQUEST_INVALID */
function wholeNumber(name: string, value: unknown): number {
  if (/^\d{1,15}$/.test(String(value))) return Number(value)
  throw new EngineError('REQUEST_INVALID', `${name} must be ${name === 'cursor' ? 'the next_cursor of an answer' : 'a whole number'}.`)
}
