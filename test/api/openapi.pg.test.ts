/** The OpenAPI document has every route that the server has. That its answers are as it says is held by whatever calls the API (checked-fetch.ts). */
import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { test } from 'node:test'
import type { FastifyInstance } from 'fastify'
import { serveEverything, TOKENS } from './served-everything.ts'

type Document = Readonly<{ paths: Readonly<Record<string, Readonly<Record<string, Readonly<{ 'x-aliases'?: readonly string[] }>>>>> }>

/** The routes of servers that are made while it is in scope, such as "GET /api/sinks". */
class Routes implements Disposable {
  readonly all = new Set<string>()
  readonly #listen = (made: unknown) =>
    void (made as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url }) => {
      for (const one of [method].flat()) this.all.add(`${one} ${url.replaceAll(/:(\w+)/g, '{$1}')}`)
    })

  constructor() {
    subscribe('fastify.initialization', this.#listen)
  }

  [Symbol.dispose](): void {
    unsubscribe('fastify.initialization', this.#listen)
  }
}

test('every route of the server is in the OpenAPI document, with its aliases, and no other is', async () => {
  using routes = new Routes()
  await using s = await serveEverything()
  const { body } = await s.call('GET', '/api/openapi.json', { token: TOKENS.read })
  const described = Object.entries((body as Document).paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, { 'x-aliases': aliases = [] }]) =>
      [path, ...aliases].map((served) => `${method.toUpperCase()} ${served}`),
    ),
  )
  const served = [...routes.all].filter((route) => !/^(HEAD|OPTIONS) /.test(route)) // what HTTP itself adds
  assert.deepEqual(described.toSorted(), served.toSorted())
  assert.ok(served.length > 80, `${served.length} routes`)
})
