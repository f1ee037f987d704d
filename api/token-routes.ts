/** The management of API tokens (docs/security.md). */
import { Type } from 'typebox'
import type { TokenEdits } from '../actors/resources/token-edits.ts'
import { newTokenOf, TokenIn, tokenOut, TokenOut } from '../actors/resources/token-form.ts'
import { objectBody, pathParameter, type Operation } from './http/operation.ts'
import { listOut, pageOf, PageQuery } from './http/pages.ts'

/** The calls that the routes of tokens make. */
export type TokenPort = Pick<TokenEdits, 'list' | 'create' | 'revoke'>

/** Makes the routes of API tokens. */
export function tokenOperations(tokens: TokenPort): Operation[] {
  return [
    {
      id: 'listApiKeys',
      methods: ['GET'],
      paths: ['/api/api_keys'],
      summary: 'List API tokens',
      scope: 'admin',
      query: PageQuery,
      answer: { description: 'All API tokens of the account, without their text, or a page of them.', schema: listOut(TokenOut) },
      errors: [503],
      handle: async (request, _reply, account) => {
        const { those, next } = pageOf(request, await tokens.list(account), { key: ({ id }) => id })
        return { data: those.map(tokenOut), ...next }
      },
    },
    {
      id: 'createApiKey',
      methods: ['POST'],
      paths: ['/api/api_keys'],
      summary: 'Create an API token',
      description: 'Without scopes it may do everything. Its text is shown in this answer and never again.',
      scope: 'admin',
      body: TokenIn,
      answer: { description: 'The token.', schema: Type.Object({ ...TokenOut.properties, token: Type.String() }) },
      errors: [400, 413, 422, 503],
      handle: async (request, _reply, account) => {
        const made = await tokens.create(account, newTokenOf(objectBody(request)))
        return { ...tokenOut(made), token: made.token }
      },
    },
    {
      id: 'deleteApiKey',
      methods: ['DELETE'],
      paths: ['/api/api_keys/{id}'],
      summary: 'Revoke an API token',
      description: 'When the answer comes it works in no process of the cluster any more, for requests that wait already either.',
      scope: 'admin',
      answer: { description: 'It is revoked.', schema: Type.Object({ success: Type.Literal(true) }) },
      errors: [404, 503],
      handle: async (request, _reply, account) => {
        await tokens.revoke(account, pathParameter(request, 'id'))
        return { success: true }
      },
    },
  ]
}
