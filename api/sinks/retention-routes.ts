/** The management of change retentions (docs/change-retention.md). */
import type { EngineVerbs } from '../../actors/engine.ts'
import {
  newRetention,
  RetentionIn,
  RetentionOut,
  retentionOut,
  RetentionPatch,
  retentionChanges,
} from '../../actors/resources/retention-form.ts'
import { idleHealth } from '../../actors/resources/sink-form.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Operation } from '../http/operation.ts'
import { resourceOperations, type ResourcePorts } from '../http/resource-routes.ts'

/** Makes the routes of change retentions. */
export function retentionOperations(ports: ResourcePorts & Readonly<{ engine: EngineVerbs }>): Operation[] {
  const { engine, resources } = ports
  return resourceOperations(ports, {
    type: 'change_retention',
    path: '/api/change_retentions',
    id: 'ChangeRetention',
    noun: 'a change retention',
    form: RetentionIn,
    patch: RetentionPatch,
    out: RetentionOut,
    descriptions: {
      create: 'It keeps what is committed from then on, as rows of a table that has to be there: `health` has the SQL that makes it.',
      update: 'Both methods are partial: what is absent stays, and lists are replaced as a whole.',
      delete: 'With what waits for it. The rows that it has written stay.',
    },
    errors: { create: [404], delete: [404, 503] },
    shown: async (those) => {
      const health = await engine.sinkHealth(those.map(({ id }) => id))
      return those.map((one) => retentionOut(one, health[one.id] ?? idleHealth(one)))
    },
    input: (body, account) => {
      const input = newRetention(body)
      if (!resources.find('database', account.id, input.database))
        throw new EngineError('NOT_FOUND', `There is no database "${input.database.slice(0, 100)}".`)
      return input
    },
    changes: (body, stored) => retentionChanges(stored, body),
    test: {
      summary: 'Test whether a change retention can write to its table',
      description: 'Looks at the table as an insert does, and inserts nothing.',
      ask: (stored) => engine.testSink(stored),
    },
  })
}
