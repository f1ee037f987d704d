/**
 * The way by which tests call the API: each answer is held against what the OpenAPI document of the server says of its route and status.
 * So a route, a status, a header or a field that the document doesn't have fails the test that comes by it.
 */
import assert from 'node:assert/strict'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'

type Response_ = Readonly<{ headers?: Readonly<Record<string, unknown>>; content?: Readonly<Record<string, unknown>> }>
type Described = Readonly<{ operationId: string; responses: Readonly<Record<string, Response_>>; 'x-aliases'?: readonly string[] }>
type Document = Readonly<{ paths: Readonly<Record<string, Readonly<Record<string, Described>>>> }>
type Route = Readonly<{ pattern: RegExp; path: string; methods: Readonly<Record<string, Described>> }>

/** Headers that tell a client what to do: a document that leaves one out keeps it from its clients. */
const TOLD = ['retry-after', 'www-authenticate']

/** The document of a server, ready to check by. */
class Checks {
  readonly #ajv = new Ajv2020({ strict: false, validateFormats: false, validateSchema: false })
  readonly #routes: readonly Route[]
  readonly #compiled = new Map<string, ValidateFunction>()

  constructor(document: Document) {
    this.#ajv.addSchema(document, 'api')
    const routes = Object.entries(document.paths).flatMap(([path, methods]) => {
      const aliases = new Set(Object.values(methods).flatMap((described) => described['x-aliases'] ?? []))
      return [path, ...aliases].map((served) => ({ pattern: patternOf(served), path, methods }))
    })
    // a path with fewer parameters goes before one that has a parameter in the place of a word
    this.#routes = routes.toSorted((a, b) => a.path.split('{').length - b.path.split('{').length)
  }

  check({ method, pathname }: Readonly<{ method: string; pathname: string }>, answer: Response, text: string): void {
    const route = this.#routes.find(({ pattern, methods }) => pattern.test(pathname) && methods[method.toLowerCase()])
    const what = `${method} ${pathname} answered ${answer.status}`
    const code = text.startsWith('{') ? (JSON.parse(text) as { code?: string }).code : undefined
    if (!route) return assert.equal(code, 'ROUTE_NOT_FOUND', `${what}, and the document has no such route`)
    const { [method.toLowerCase()]: described } = route.methods
    const response = described?.responses[answer.status]
    assert.ok(response, `${what} (${code}), a status that the document does not have`)
    for (const header of TOLD.filter((name) => answer.headers.has(name)))
      assert.ok(
        Object.keys(response.headers ?? {}).some((name) => name.toLowerCase() === header),
        `${what} with ${header}, which the document does not have`,
      )
    if (!response.content) return assert.equal(text, '', `${what} with a body, which the document does not have`)
    const type = answer.headers.get('content-type')?.split(';')[0] ?? ''
    assert.ok(response.content[type], `${what} as ${type}, which the document does not have`)
    if (type !== 'application/json') return
    const validate = this.#validator(route.path, method.toLowerCase(), answer.status)
    assert.ok(validate(JSON.parse(text)), `${what}: ${this.#ajv.errorsText(validate.errors, { dataVar: 'body' })}\n${text.slice(0, 500)}`)
  }

  #validator(path: string, method: string, status: number): ValidateFunction {
    const at = ['paths', path, method, 'responses', String(status), 'content', 'application/json', 'schema'].map(pointed).join('/')
    const known = this.#compiled.get(at) ?? this.#ajv.compile({ $ref: `api#/${at}` })
    this.#compiled.set(at, known)
    return known
  }
}

const pointed = (name: string): string => encodeURIComponent(name.replaceAll('~', '~0').replaceAll('/', '~1'))
const patternOf = (path: string): RegExp => new RegExp(`^${path.replaceAll(/[.]/g, '\\$&').replaceAll(/\{\w+\}/g, '[^/]*')}/?$`)

const checksOf = new Map<string, Promise<Checks>>()

/** Calls as fetch does, and holds the answer against the document of the server. @throws AssertionError: it is not as that says */
export async function checkedFetch(url: string, init: RequestInit = {}): Promise<Response> {
  const { origin, pathname } = new URL(url)
  const checks = await (checksOf.get(origin) ?? documentOf(origin, init.headers))
  const answer = await fetch(url, init)
  const method = (init.method ?? 'GET').toUpperCase()
  if (method === 'HEAD' || method === 'OPTIONS' || answer.headers.get('content-type')?.startsWith('application/x-ndjson')) return answer
  const text = await answer.text()
  checks.check({ method, pathname }, answer, text)
  return new Response(text === '' ? null : text, { status: answer.status, headers: answer.headers })
}

/** @param headers with the token of the call: a request without one counts as a stranger's */
function documentOf(origin: string, headers: RequestInit['headers']): Promise<Checks> {
  const checks = fetch(`${origin}/api/openapi.json`, { headers }).then(async (answer) => new Checks((await answer.json()) as Document))
  checksOf.set(origin, checks)
  checks.catch(() => checksOf.delete(origin)) // the server is not up yet: the next call asks again
  return checks
}
