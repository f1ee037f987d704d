/** What a user says to the source of a database that has stopped. */
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { ERRORS, isErrorCode } from '../../engine/errors.ts'
import { redactText } from '../../engine/redaction.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import type { Operation } from '../http/operation.ts'
import { namedResource } from '../http/resource-routes.ts'

/** A source that is mended streams within a second or two; one that can't reach its server says so within 10. */
const RETRY_WAIT_MS = 12_000
const NULLABLE_TEXT = Type.Union([Type.String(), Type.Null()])

/** Describes the routes by which a user lets a source that has stopped go on. */
export function sourceOperations({ engine, resources }: Readonly<{ engine: EngineVerbs; resources: ResourceLookup }>): Operation[] {
  const databaseOf = (request: FastifyRequest, account: Account) => namedResource(resources, 'database', request, account)
  return [
    {
      id: 'acceptGap',
      methods: ['POST'],
      paths: ['/api/postgres_databases/{id_or_name}/accept_gap'],
      summary: 'Go on although changes are missing',
      noted: { action: 'accept gap', kind: 'database' },
      description:
        'For a source that has stopped at SLOT_GAP, SOURCE_WENT_BACK, LOG_CHANGED, LOG_WENT_BACK or STATE_WENT_BACK: it gives up the changes its error names and starts again. Touch the rows of its tables then.',
      scope: 'manage',
      answer: {
        description: 'The source starts again; `accepted` is what it had stopped at.',
        schema: Type.Object({ success: Type.Literal(true), accepted: Type.String() }),
      },
      errors: [404, 409, 503],
      handle: async (request, _reply, account) => ({
        success: true,
        accepted: redactText((await engine.acceptGap(databaseOf(request, account).id)).accepted),
      }),
    },
    {
      id: 'retrySource',
      methods: ['POST'],
      paths: ['/api/postgres_databases/{id_or_name}/retry'],
      summary: 'Let a source try again',
      noted: { action: 'retry', kind: 'database' },
      description:
        'For a source that has stopped at something that was mended since (SLOT_MISSING, TLS_REFUSED, …), or that waits for its next try. One that streams goes on as it is.',
      scope: 'manage',
      answer: {
        description:
          'How the source is after the try, at the latest after 12 s: `streaming`, or a state with the `code`, `reason` and `remedy` of what it stopped at.',
        schema: Type.Object({
          success: Type.Boolean({ description: 'true: it streams, in this process or another one' }),
          state: Type.String(),
          code: NULLABLE_TEXT,
          reason: NULLABLE_TEXT,
          remedy: NULLABLE_TEXT,
        }),
      },
      errors: [404],
      handle: async (request, _reply, account) => {
        const { state, code, reason } = await engine.retrySource(databaseOf(request, account).id, { wait_ms: RETRY_WAIT_MS })
        return {
          success: state === 'streaming' || state === 'standby',
          state,
          code: code ?? null,
          reason: reason === undefined ? null : redactText(reason),
          remedy: code === undefined ? null : remedyOf(code),
        }
      },
    },
  ]
}

const remedyOf = (code: string): string | null => (isErrorCode(code) ? ERRORS[code].remedy : null)
