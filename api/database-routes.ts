/** The management of databases (contract 9.4), as far as it goes today: what a user says to a source that has stopped. */
import { Type } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import { redactText } from '../engine/redaction.ts'
import type { EnginePort, ResourcePort } from './engine-port.ts'
import { pathParameter, type Operation } from './operation.ts'

export function databaseOperations({ engine, resources }: Readonly<{ engine: EnginePort; resources: ResourcePort }>): Operation[] {
  return [
    {
      id: 'acceptGap',
      methods: ['POST'],
      paths: ['/api/postgres_databases/{id_or_name}/accept_gap'],
      summary: 'Go on although changes are missing',
      description:
        'For a source that has stopped at SLOT_GAP, SOURCE_WENT_BACK or LOG_CHANGED: it gives up the changes its error names and starts again. Backfill the tables afterwards.',
      auth: true,
      answer: {
        description: 'The source starts again; `accepted` is what it had stopped at.',
        schema: Type.Object({ success: Type.Literal(true), accepted: Type.String() }),
      },
      errors: [404, 409, 503],
      handle: async (request, _reply, account) => {
        const idOrName = pathParameter(request, 'id_or_name')
        const database = resources.findDatabase(account.id, idOrName)
        if (!database) throw new EngineError('NOT_FOUND', `There is no database "${idOrName.slice(0, 100)}".`)
        return { success: true, accepted: redactText(await engine.acceptGap(database.id)) }
      },
    },
  ]
}
