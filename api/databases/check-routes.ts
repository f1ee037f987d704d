/** The route of the checks of a database, its publication and its slot: each says what keeps its source from working, or will, and what mends it. */
import { Type } from 'typebox'
import { redactText } from '../../engine/redaction.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import { checkDatabase } from '../../engine/wal/connection/database-checks.ts'
import type { Operation } from '../http/operation.ts'
import { namedResource } from '../http/resource-routes.ts'

/** Makes the route by which a database is checked. */
export function databaseCheckOperations({ resources }: Readonly<{ resources: ResourceLookup }>): Operation[] {
  return [
    {
      id: 'checkDatabase',
      methods: ['GET'],
      paths: ['/api/postgres_databases/{id_or_name}/checks'],
      summary: 'Check a database, its publication and its slot',
      description:
        'Looks on a session of its own, from this node, at everything that keeps a source from working, or will. It changes nothing.',
      scope: 'read',
      head: false,
      answer: {
        description: 'Each check, with what is wrong and what mends it.',
        schema: Type.Object({
          data: Type.Array(
            Type.Object({
              name: Type.String(),
              status: Type.Union([Type.Literal('ok'), Type.Literal('warning'), Type.Literal('error')]),
              code: Type.Optional(Type.String({ description: 'of what is wrong, as in health and among errors' })),
              message: Type.String(),
              remedy: Type.Optional(Type.String({ description: 'SQL, or words' })),
            }),
          ),
        }),
      },
      errors: [404],
      handle: async (request, _reply, account) => {
        const { connection, slot } = namedResource(resources, 'database', request, account)
        const checks = await checkDatabase({ connection, slot: slot.name, publication: slot.publication })
        return { data: checks.map((check) => ({ ...check, message: redactText(check.message) })) }
      },
    },
  ]
}
