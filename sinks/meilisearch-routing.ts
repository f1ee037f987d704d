/** What a routing function may say of a message for Meilisearch: its index, and what is done there. */
import { Type } from 'typebox'
import { MeilisearchIndex, type MeilisearchDestination } from '../engine/state/destinations.ts'
import { Routing } from './routing.ts'

const ACTIONS = ['index', 'delete', 'function'] as const
const OF_EDITS = ['filter', 'function', 'context'] as const
const expression = Type.String({ minLength: 1, maxLength: 10_000 })

export const meilisearchRouting = new Routing<MeilisearchDestination>({
  result: Type.Object(
    {
      action: Type.Optional(Type.Union(ACTIONS.map((action) => Type.Literal(action)))),
      index_name: Type.Optional(MeilisearchIndex),
      filter: Type.Optional(expression),
      function: Type.Optional(expression),
      context: Type.Optional(Type.Union([Type.Object({}, { additionalProperties: true }), Type.Null()])),
    },
    { additionalProperties: false },
  ),
  cases: { action: 'lower' },
  refused(route, destination) {
    const isEdit = route['action'] === 'function'
    if (isEdit && route['filter'] === undefined) return 'filter is missing: the action "function" edits what it selects'
    if (isEdit && route['function'] === undefined) return 'function is missing: the action "function" applies it'
    const other = isEdit ? undefined : OF_EDITS.find((key) => route[key] !== undefined)
    if (other) return `${other} is only for the action "function"`
    if (destination && (route['index_name'] ?? destination.index_name ?? undefined) === undefined)
      return 'index_name is missing, and the sink names none'
    return undefined
  },
  effective: (route, destination, message) => {
    const index_name = route['index_name'] ?? destination?.index_name
    return {
      action: message.action === 'delete' ? 'delete' : 'index',
      ...(index_name !== null && index_name !== undefined && { index_name }),
      ...route,
    }
  },
})
