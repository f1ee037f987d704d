/** Asks a Meilisearch over HTTP, for tests of what it answers. */
import assert from 'node:assert/strict'
import type { Meilisearch } from './meilisearch.ts'

export type Json = Record<string, any> // oxlint-disable-line typescript/no-explicit-any -- answers of every form
export type Ask = Readonly<{ method?: string; body?: string | Buffer; type?: string | null; headers?: Record<string, string> }>
export type Got = Readonly<{ status: number; type: string | null; body: Json; text: string }>

export async function ask(
  server: Meilisearch,
  path: string,
  { method, body, type = 'application/json', headers = {} }: Ask = {},
): Promise<Got> {
  const response = await fetch(server.url + path, {
    method: method ?? (body === undefined ? 'GET' : 'POST'),
    headers: { ...(body === undefined || type === null ? {} : { 'content-type': type }), ...headers },
    // bytes have no content type of their own
    ...(body === undefined ? {} : { body: new Uint8Array(Buffer.from(body)) }),
  })
  const text = await response.text()
  return { status: response.status, type: response.headers.get('content-type'), body: text === '' ? {} : (JSON.parse(text) as Json), text }
}

/** Sends a write and waits for its task. */
export async function run(server: Meilisearch, path: string, request: Ask): Promise<Json> {
  const { status, body, text } = await ask(server, path, request)
  assert.equal(status, 202, text)
  await ended(server, body['taskUid'] as number)
  return (await ask(server, `/tasks/${body['taskUid']}`)).body
}

export const ended = (server: Meilisearch, ...uids: number[]) =>
  server.until(() => uids.every((uid) => ['succeeded', 'failed', 'canceled'].includes(server.tasks[uid]?.status ?? '')))
export const add = (server: Meilisearch, documents: unknown, query = '?primaryKey=id', index = 'x') =>
  run(server, `/indexes/${index}/documents${query}`, { body: typeof documents === 'string' ? documents : JSON.stringify(documents) })
export const remove = (server: Meilisearch, ids: string, index = 'x') =>
  run(server, `/indexes/${index}/documents/delete-batch`, { body: ids })
export const stored = (server: Meilisearch, index = 'x') => [...server.documents(index).values()]
