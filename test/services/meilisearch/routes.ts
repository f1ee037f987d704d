/** What a Meilisearch answers to each request: rights, checks, and the tasks that writes become. */
import { gunzipSync } from 'node:zlib'
import { compileFilter, compileFunction, ScriptError, type Row } from './edit.ts'
import { Failure } from './failure.ts'
import { documentsOfJson, documentsOfNdjson, JsonError, NotAMap, parseJson, type Document, type Value } from './json.ts'
import type { Index, Work } from './store.ts'
import type { Disk, Task, TaskQueue } from './tasks.ts'

export type Key = Readonly<{ key: string; actions: readonly string[]; indexes: readonly string[]; expiresAt?: Date }>
export type Asked = Readonly<{
  method: string
  path: string
  query: URLSearchParams
  authorization: string | undefined
  contentType: string | undefined
  contentEncoding: string | undefined
  body: Buffer
}>
/** body undefined: none, and no content type */
export type Answered = Readonly<{ status: number; body?: Value }>
export type Surroundings = Readonly<{
  disk: Disk
  queue: TaskQueue
  masterKey: string | undefined
  keys: readonly Key[]
  payloadLimit: number
}>

const VERSION = { commitSha: 'a fake', commitDate: '2026-11-01T00:00:00Z', pkgVersion: '1.50.0' }
const UID = /^[A-Za-z0-9_-]{1,512}$/
const JSON_TYPE = 'application/json'
const DOCUMENT_TYPES = [JSON_TYPE, 'application/x-ndjson', 'text/csv']

type Call = Readonly<{ asked: Asked; around: Surroundings; rights: Rights; index: string; id: string }>
type Route = Readonly<{ method: string; path: RegExp; action: string; handle: (call: Call) => Answered }>
/** indexes that a key may see; undefined: all */
type Rights = Readonly<{ indexes: readonly string[] | undefined }>

const ROUTES: readonly Route[] = [
  { method: 'GET', path: /^\/version$/, action: 'version', handle: () => ({ status: 200, body: VERSION }) },
  { method: 'GET', path: /^\/keys$/, action: 'keys.get', handle: listKeys },
  { method: 'GET', path: /^\/experimental-features$/, action: 'experimental.get', handle: ({ around }) => features(around) },
  { method: 'PATCH', path: /^\/experimental-features$/, action: 'experimental.update', handle: setFeatures },
  { method: 'GET', path: /^\/tasks$/, action: 'tasks.get', handle: listTasks },
  { method: 'DELETE', path: /^\/tasks$/, action: 'tasks.delete', handle: (call) => endTasks(call, 'remove') },
  { method: 'POST', path: /^\/tasks\/cancel$/, action: 'tasks.cancel', handle: (call) => endTasks(call, 'cancel') },
  { method: 'GET', path: /^\/tasks\/(?<id>[^/]+)$/, action: 'tasks.get', handle: getTask },
  { method: 'POST', path: /^\/indexes$/, action: 'indexes.create', handle: createIndex },
  { method: 'GET', path: /^\/indexes\/(?<index>[^/]+)$/, action: 'indexes.get', handle: getIndex },
  {
    method: 'DELETE',
    path: /^\/indexes\/(?<index>[^/]+)$/,
    action: 'indexes.delete',
    handle: (call) => enqueue(call, { type: 'indexDeletion' }),
  },
  { method: 'PATCH', path: /^\/indexes\/(?<index>[^/]+)\/settings$/, action: 'settings.update', handle: setSettings },
  { method: 'POST', path: /^\/indexes\/(?<index>[^/]+)\/documents$/, action: 'documents.add', handle: (call) => addDocuments(call, false) },
  { method: 'PUT', path: /^\/indexes\/(?<index>[^/]+)\/documents$/, action: 'documents.add', handle: (call) => addDocuments(call, true) },
  { method: 'POST', path: /^\/indexes\/(?<index>[^/]+)\/documents\/delete-batch$/, action: 'documents.delete', handle: deleteBatch },
  { method: 'POST', path: /^\/indexes\/(?<index>[^/]+)\/documents\/delete$/, action: 'documents.delete', handle: deleteByFilter },
  { method: 'POST', path: /^\/indexes\/(?<index>[^/]+)\/documents\/edit$/, action: 'documents.*', handle: edit },
  { method: 'POST', path: /^\/indexes\/(?<index>[^/]+)\/documents\/fetch$/, action: 'documents.get', handle: fetchDocuments },
  { method: 'GET', path: /^\/indexes\/(?<index>[^/]+)\/documents\/(?<id>[^/]+)$/, action: 'documents.get', handle: getDocument },
  { method: 'DELETE', path: /^\/indexes\/(?<index>[^/]+)\/documents\/(?<id>[^/]+)$/, action: 'documents.delete', handle: deleteOne },
]

/** Never throws. */
export function answer(asked: Asked, around: Surroundings): Answered {
  try {
    if (asked.path === '/health') return asked.method === 'GET' ? { status: 200, body: { status: 'available' } } : { status: 405 }
    const here = ROUTES.filter(({ path }) => path.test(asked.path))
    const route = here.find(({ method }) => method === asked.method)
    if (!route) return { status: here.length > 0 ? 405 : 404 }
    const { index = '', id = '' } = route.path.exec(asked.path)?.groups ?? {}
    const uid = decodeURIComponent(index)
    const rights = authorize(asked, around, route.action, index === '' ? undefined : uid)
    if (index !== '') mustBeUid(uid)
    return route.handle({ asked, around, rights, index: uid, id: decodeURIComponent(id) })
  } catch (error) {
    if (error instanceof Failure) return { status: error.status, body: error.body }
    if (error instanceof NotAMap) return { status: 500, body: new Failure('internal', error.message).body }
    throw error
  }
}

// ── rights ────────────────────────────────────────────────────────────────────────────────────────

function authorize({ authorization }: Asked, { masterKey, keys }: Surroundings, action: string, index: string | undefined): Rights {
  if (masterKey === undefined) {
    if (action.startsWith('keys.'))
      throw new Failure(
        'missing_master_key',
        'Meilisearch is running without a master key. To access this API endpoint, you must have set a master key at launch.',
      )
    return { indexes: undefined }
  }
  const token = /^Bearer (.*)$/.exec(authorization ?? '')?.[1]
  if (token === undefined)
    throw new Failure('missing_authorization_header', 'The Authorization header is missing. It must use the bearer authorization method.')
  if (token === masterKey) return { indexes: undefined }
  const key = keys.find((one) => one.key === token)
  const family = `${action.split('.')[0]}.*`
  if (!key || (key.expiresAt && key.expiresAt <= new Date()) || ![action, family, '*'].some((one) => key.actions.includes(one)))
    throw new Failure('invalid_api_key', 'The provided API key is invalid.')
  if (key.indexes.includes('*')) return { indexes: undefined }
  if (index !== undefined && !key.indexes.includes(index))
    throw new Failure(
      'invalid_api_key',
      `The API key cannot acces the index \`${index}\`, authorized indexes are ${JSON.stringify(key.indexes)}.`,
    )
  return { indexes: key.indexes }
}

function listKeys({ around }: Call): Answered {
  return { status: 200, body: { results: around.keys.map(({ actions, indexes }) => ({ actions: [...actions], indexes: [...indexes] })) } }
}

// ── features, indexes, settings ───────────────────────────────────────────────────────────────────

const features = ({ disk }: Surroundings): Answered => ({
  status: 200,
  body: { metrics: false, logsRoute: false, editDocumentsByFunction: disk.canEditByFunction, containsFilter: false },
})

function setFeatures({ asked, around }: Call): Answered {
  const wanted = jsonBody(asked, around) as Row
  if (typeof wanted['editDocumentsByFunction'] === 'boolean') around.disk.canEditByFunction = wanted['editDocumentsByFunction']
  return features(around)
}

function createIndex(call: Call): Answered {
  const { uid, primaryKey } = jsonBody(call.asked, call.around) as Row
  mustBeUid(String(uid))
  return enqueue({ ...call, index: String(uid) }, { type: 'indexCreation', primaryKey: typeof primaryKey === 'string' ? primaryKey : null })
}

function mustBeUid(uid: string): void {
  if (!UID.test(uid))
    throw new Failure(
      'invalid_index_uid',
      `\`${uid}\` is not a valid index uid. Index uid can be an integer or a string containing only alphanumeric characters, hyphens (-) and underscores (_), and can not be more than 512 bytes.`,
    )
}

function mustHave({ around, index }: Call): Index {
  const held = around.disk.indexes.get(index)
  if (!held) throw new Failure('index_not_found', `Index \`${index}\` not found.`)
  return held
}

function getIndex(call: Call): Answered {
  const { uid, createdAt, updatedAt, primaryKey } = mustHave(call)
  return { status: 200, body: { uid, createdAt, updatedAt, primaryKey } }
}

function getDocument(call: Call): Answered {
  const row = mustHave(call).documents.get(call.id)
  if (!row) throw new Failure('document_not_found', `Document \`${call.id}\` not found.`)
  return { status: 200, body: row }
}

/** As its manual has it, without filters and orders; of a real server it was not seen. */
function fetchDocuments(call: Call): Answered {
  const { ids, offset = 0, limit = 20, fields } = jsonBody(call.asked, call.around) as Row
  const { documents } = mustHave(call)
  const wanted = Array.isArray(ids) ? ids.flatMap((id) => documents.get(String(id)) ?? []) : [...documents.values()]
  const only = (row: Row): Row =>
    Array.isArray(fields) ? Object.fromEntries(Object.entries(row).filter(([name]) => fields.includes(name))) : row
  const results = wanted.slice(Number(offset), Number(offset) + Number(limit)).map((row) => only(row as Row))
  return { status: 200, body: { results, offset, limit, total: wanted.length } }
}

function setSettings(call: Call): Answered {
  const { filterableAttributes } = jsonBody(call.asked, call.around) as Row
  return enqueue(call, { type: 'settingsUpdate', filterable: (filterableAttributes ?? []) as string[] })
}

// ── documents ─────────────────────────────────────────────────────────────────────────────────────

function enqueue({ asked, around, index }: Call, work: Work): Answered {
  return { status: 202, body: summary(around.queue.enqueue(index, work, asked.query.get('customMetadata') ?? undefined)) }
}

function summary({ uid, indexUid, status, type, enqueuedAt, customMetadata }: Task): Row {
  return { taskUid: uid, indexUid, status, type, enqueuedAt, ...(customMetadata === undefined ? {} : { customMetadata }) }
}

function mayAsk({ query }: Asked, known: readonly string[]): void {
  for (const name of query.keys()) {
    if (known.includes(name)) continue
    throw new Failure('bad_request', `Unknown parameter \`${name}\`: expected one of ${known.map((one) => `\`${one}\``).join(', ')}`)
  }
}

function addDocuments(call: Call, isPartial: boolean): Answered {
  const { asked, around } = call
  mayAsk(asked, ['primaryKey', 'csvDelimiter', 'customMetadata', 'skipCreation'])
  const type = contentType(asked, DOCUMENT_TYPES)
  const format = type === JSON_TYPE ? 'json' : 'ndjson'
  const text = bodyText(asked, around, 'documents')
  if (text.trim() === '') throw new Failure('missing_payload', `A ${format} payload is missing.`)
  let documents: Document[]
  try {
    documents = format === 'json' ? documentsOfJson(text) : documentsOfNdjson(text)
  } catch (error) {
    if (!(error instanceof JsonError)) throw error
    throw new Failure(
      'malformed_payload',
      `The \`${format}\` payload provided is malformed. \`Couldn't serialize document value: ${error.message}\`.`,
    )
  }
  const primaryKey = asked.query.get('primaryKey') ?? undefined
  const skipCreation = asked.query.get('skipCreation') === 'true'
  return enqueue(call, { type: 'documentAdditionOrUpdate', documents, primaryKey, isPartial, skipCreation })
}

function deleteBatch(call: Call): Answered {
  mayAsk(call.asked, ['customMetadata'])
  const ids = jsonBody(call.asked, call.around)
  if (!Array.isArray(ids)) {
    const kind = ids === null ? 'unit value' : typeof ids === 'object' ? 'map' : typeof ids
    throw new Failure('bad_request', `Json deserialize error: invalid type: ${kind}, expected a sequence at line 1 column 0`)
  }
  return enqueue(call, { type: 'documentDeletion', ids, filter: undefined })
}

function deleteOne(call: Call): Answered {
  return enqueue(call, { type: 'documentDeletion', ids: [call.id], filter: undefined })
}

function deleteByFilter(call: Call): Answered {
  const { filter } = jsonBody(call.asked, call.around) as Row
  if (typeof filter !== 'string') throw new Failure('invalid_document_filter', 'A filter must be a string.')
  compileFilter(call.index, filter)
  return enqueue(call, { type: 'documentDeletion', ids: [], filter })
}

function edit(call: Call): Answered {
  const { asked, around, index } = call
  mayAsk(asked, ['customMetadata'])
  if (!around.disk.canEditByFunction)
    throw new Failure(
      'feature_not_enabled',
      'Using the documents edit route requires enabling the `edit documents by function` experimental feature. See https://github.com/orgs/meilisearch/discussions/762',
    )
  const body = jsonBody(asked, around) as Row
  const unknown = Object.keys(body).find((name) => !['filter', 'context', 'function'].includes(name))
  if (unknown !== undefined)
    throw new Failure('bad_request', `Unknown field \`${unknown}\`: expected one of \`filter\`, \`context\`, \`function\``)
  const { filter = null, context = null, function: source } = body
  if (source === undefined) throw new Failure('missing_document_edition_function', 'Missing field `function`')
  if (typeof source !== 'string') throw new Failure('invalid_document_edition_function_filter', 'The function must be a string')
  if (context !== null && (typeof context !== 'object' || Array.isArray(context)))
    throw new Failure('invalid_document_edition_context', 'The context must be an object')
  try {
    compileFunction(source)
  } catch (error) {
    if (error instanceof ScriptError) throw new Failure('bad_request', error.message)
    throw error
  }
  const texts = (filter === null ? [] : Array.isArray(filter) ? filter : [filter]) as Value[]
  for (const text of texts) {
    if (typeof text !== 'string') throw new Failure('invalid_document_filter', 'A filter must be a string or a list of strings.')
    compileFilter(index, text)
  }
  const joined = texts.length === 0 ? null : texts.join(' AND ')
  return enqueue(call, { type: 'documentEdition', filter: joined, function: source, context: (context ?? undefined) as Row | undefined })
}

// ── tasks ─────────────────────────────────────────────────────────────────────────────────────────

function viewOf(task: Task): Row {
  const { uid, batchUid, indexUid, status, type, canceledBy, details, error, duration, enqueuedAt, startedAt, finishedAt } = task
  const custom: Row = task.customMetadata === undefined ? {} : { customMetadata: task.customMetadata }
  const ended = { duration, enqueuedAt, startedAt, finishedAt }
  return { uid, batchUid, indexUid, status, type, canceledBy, details, error: error as Row | null, ...ended, ...custom }
}

const isVisible = ({ indexes }: Rights, { indexUid }: Task) => indexes === undefined || (indexUid !== null && indexes.includes(indexUid))

function uidOf(text: string): number {
  if (!/^\d+$/.test(text))
    throw new Failure('invalid_task_uids', `Task uid \`${text}\` is invalid. It should only contain numeric characters.`)
  return Number(text)
}

function getTask({ around, rights, id }: Call): Answered {
  const uid = uidOf(id)
  const task = around.disk.tasks.get(uid)
  if (!task || !isVisible(rights, task)) throw new Failure('task_not_found', `Task \`${uid}\` not found.`)
  return { status: 200, body: viewOf(task) }
}

const FILTERS = ['uids', 'statuses', 'types', 'indexUids'] as const

function chosenBy({ asked, around, rights }: Call): Task[] {
  const { query } = asked
  const [uids, statuses, types, indexUids] = FILTERS.map((name) => {
    const text = query.get(name)
    return text === null || text === '*' ? undefined : new Set(text.split(','))
  })
  const wanted = uids && new Set([...uids].map(uidOf))
  return [...around.disk.tasks.values()].filter(
    (task) =>
      isVisible(rights, task) &&
      (!wanted || wanted.has(task.uid)) &&
      (!statuses || statuses.has(task.status)) &&
      (!types || types.has(task.type)) &&
      (!indexUids || indexUids.has(task.indexUid ?? '')),
  )
}

function listTasks(call: Call): Answered {
  const { query } = call.asked
  mayAsk(call.asked, ['limit', 'from', ...FILTERS])
  const limit = Number(query.get('limit') ?? 20)
  const from = query.has('from') ? Number(query.get('from')) : Infinity
  const all = chosenBy(call).toSorted((a, b) => b.uid - a.uid)
  const rest = all.filter(({ uid }) => uid <= from)
  const page = rest.slice(0, limit)
  return {
    status: 200,
    body: { results: page.map(viewOf), total: all.length, limit, from: page[0]?.uid ?? null, next: rest[limit]?.uid ?? null },
  }
}

function endTasks(call: Call, how: 'cancel' | 'remove'): Answered {
  const { asked, around } = call
  mayAsk(asked, FILTERS)
  if ([...asked.query.keys()].length === 0)
    throw new Failure(
      'missing_task_filters',
      `Query parameters to filter the tasks to ${how === 'cancel' ? 'cancel' : 'delete'} are missing.`,
    )
  const uids = new Set(chosenBy(call).map(({ uid }) => uid))
  const task = around.queue[how](uids, `?${asked.query.toString()}`)
  return { status: 200, body: { ...summary(task), status: 'enqueued' } }
}

// ── bodies ────────────────────────────────────────────────────────────────────────────────────────

function contentType({ contentType: type }: Asked, accepted: readonly string[]): string {
  const list = accepted.map((one) => `\`${one}\``).join(', ')
  if (type === undefined)
    throw new Failure('missing_content_type', `A Content-Type header is missing. Accepted values for the Content-Type header are: ${list}`)
  const name = type.split(';')[0]?.trim() ?? ''
  if (!accepted.includes(name))
    throw new Failure(
      'invalid_content_type',
      `The Content-Type \`${name}\` is invalid. Accepted values for the Content-Type header are: ${list}`,
    )
  return name
}

function bodyText({ body, contentEncoding }: Asked, { payloadLimit }: Surroundings, what: 'documents' | 'json'): string {
  let plain = body
  if (contentEncoding === 'gzip') {
    try {
      plain = gunzipSync(body)
    } catch {
      throw new Failure('bad_request', 'The provided payload is incomplete and cannot be parsed')
    }
  }
  if (plain.length > payloadLimit) {
    if (what === 'json')
      throw new Failure('internal', `JSON payload (${plain.length} bytes) is larger than allowed (limit: ${payloadLimit} bytes).`)
    const mebibytes = Math.round((payloadLimit / 1024 / 1024) * 100) / 100
    throw new Failure(
      'payload_too_large',
      `The provided payload reached the size limit. The maximum accepted payload size is ${mebibytes} MiB.`,
    )
  }
  return plain.toString('utf8')
}

function jsonBody(asked: Asked, around: Surroundings): Value {
  contentType(asked, [JSON_TYPE])
  const text = bodyText(asked, around, 'json')
  if (text.trim() === '') throw new Failure('missing_payload', 'A json payload is missing.')
  try {
    return parseJson(text)
  } catch (error) {
    if (!(error instanceof JsonError)) throw error
    throw new Failure('malformed_payload', `The json payload provided is malformed. \`${error.message}\`.`)
  }
}
