/**
 * One operation of the API: its paths and method, what it takes and answers, and the handler. The server makes routes of
 * these and the OpenAPI document is printed from them, so what is served and what is described can't drift apart.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { TSchema } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { Scope } from '../../engine/state/tokens.ts'

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** Describes a route, and what the OpenAPI document says of it. */
export type Operation = Readonly<{
  /** unique: operationId of the document */
  id: string
  methods: readonly Method[]
  /** with `{parameters}`; the first is the one to document, the rest are served alike */
  paths: readonly string[]
  summary: string
  description?: string
  /** what a token must be allowed to ask it; open: anyone may */
  scope: Scope | 'open'
  query?: TSchema
  body?: TSchema
  answer: Readonly<{
    description: string
    /** absent: it has no body */
    schema?: TSchema
    /** 201: of what was created; 302: the browser goes elsewhere; absent: 200 */
    status?: 201 | 302
    /** a "no" in the same form, under another status */
    negative?: Readonly<{ status: number; description: string }>
  }>
  /** statuses of errors beside 401, 403 and 500 */
  errors?: readonly number[]
  maxBodyBytes?: number
  /** what goes on record of it in the audit log, where the change is not a transaction that does so itself; written before it is tried */
  noted?: Readonly<{ action: string; kind: 'sink' | 'database' }>
  /** integers in the body keep all their digits: `transforms/exact-json.ts` */
  exactNumbers?: true
  /** false: the answer has effects, so no HEAD is served for a GET */
  head?: boolean
  /** @param account of the token; the process's own operations have none
   *  @returns the answer, or undefined when it was sent */
  handle: (request: FastifyRequest, reply: FastifyReply, account: Account) => unknown
}>

declare module 'fastify' {
  /** Holds what the server knows of a route. @property isPeer for other processes of the cluster, which send no token */
  interface FastifyContextConfig {
    exactNumbers?: true | undefined
    isPeer?: true
  }
}
/** The content type of every answer; the framework sets it where it makes the text itself. */
export const JSON_TYPE = 'application/json; charset=utf-8'

/** Gives a part of the path of a request by its name. */
export function pathParameter({ params }: FastifyRequest, name: string): string {
  const value = fieldsOf(params)[name]
  return typeof value === 'string' ? value : ''
}

/** Gives the parameters of a request that stand behind its path, by name. */
export const queryOf = ({ query }: FastifyRequest): Readonly<Record<string, unknown>> => fieldsOf(query)

/** Gives the body of a request as an object; an empty body is `{}`.
 *  @throws EngineError REQUEST_INVALID: JSON, but not an object */
export function objectBody(request: FastifyRequest): Readonly<Record<string, unknown>> {
  const { body } = request
  if (body === undefined) return {}
  if (isObject(body)) return body
  throw new EngineError('REQUEST_INVALID', 'The body must be a JSON object.')
}
