/** Indexes with their documents, and what a task does to them: everything it says or nothing, but an index that it makes stays. */
import { compileFilter, compileFunction, matches, type Row } from './edit.ts'
import { Failure } from './failure.ts'
import { parseJson, printJson, type Document, type Field, type Value } from './json.ts'

/** A document as it is stored; key: its identifier as text, so that 2 and "2" are one. */
export type Documents = Map<string, Row>
export type Index = {
  readonly uid: string
  readonly createdAt: string
  updatedAt: string
  primaryKey: string | null
  documents: Documents
  filterable: readonly string[]
}

export type Work =
  | Readonly<{
      type: 'documentAdditionOrUpdate'
      documents: readonly Document[]
      primaryKey: string | undefined
      isPartial: boolean
      skipCreation: boolean
    }>
  | Readonly<{ type: 'documentDeletion'; ids: readonly Value[]; filter: string | undefined }>
  | Readonly<{ type: 'documentEdition'; filter: string | null; function: string; context: Row | undefined }>
  | Readonly<{ type: 'indexCreation'; primaryKey: string | null }>
  | Readonly<{ type: 'indexDeletion' }>
  | Readonly<{ type: 'settingsUpdate'; filterable: readonly string[] }>

/** Details that a task shows, by name. */
export type Details = Readonly<Record<string, Value>>

const ID = /^[A-Za-z0-9_-]+$/
const MAX_ID_BYTES = 511

/** The text that names a document. @returns undefined: not an identifier */
function identifier(field: Field): string | undefined {
  const { value, raw } = field
  if (typeof value === 'bigint' || (typeof value === 'number' && /^-?\d+$/.test(raw) && Number.isSafeInteger(value))) return String(value)
  return typeof value === 'string' && ID.test(value) && Buffer.byteLength(value) <= MAX_ID_BYTES ? value : undefined
}

/** What a task shows before it ran. */
export function openDetails(work: Work): Details {
  switch (work.type) {
    case 'documentAdditionOrUpdate':
      return { receivedDocuments: work.documents.length, indexedDocuments: null }
    case 'documentDeletion':
      return { providedIds: work.ids.length, deletedDocuments: null, originalFilter: work.filter ?? null }
    case 'documentEdition':
      return editDetails(work, null, null)
    case 'indexCreation':
      return { primaryKey: work.primaryKey }
    case 'settingsUpdate':
      return { filterableAttributes: [...work.filterable] }
    case 'indexDeletion':
      return { deletedDocuments: null }
  }
}

function editDetails(work: Extract<Work, { type: 'documentEdition' }>, edited: number | null, deleted: number | null): Details {
  return {
    editedDocuments: edited,
    deletedDocuments: deleted,
    originalFilter: work.filter === null ? null : JSON.stringify(work.filter),
    context: work.context ?? null,
    function: work.function,
  }
}

/** What a task shows that changed nothing. */
export function voidDetails(work: Work): Details {
  switch (work.type) {
    case 'documentAdditionOrUpdate':
      return { ...openDetails(work), indexedDocuments: 0 }
    case 'documentDeletion':
      return { ...openDetails(work), deletedDocuments: 0 }
    case 'documentEdition':
      return editDetails(work, 0, null)
    default:
      return openDetails(work)
  }
}

/** Does one task's work to the indexes given. @param now of the batch. @throws Failure: nothing was changed */
export function perform(indexes: Map<string, Index>, uid: string, work: Work, now: string): Details {
  if (work.type === 'indexCreation') {
    if (indexes.has(uid)) throw new Failure('index_already_exists', `Index \`${uid}\` already exists.`)
    indexes.set(uid, emptyIndex(uid, work.primaryKey, now))
    return { primaryKey: work.primaryKey }
  }
  let index = indexes.get(uid)
  if (!index && (work.type === 'documentAdditionOrUpdate' || work.type === 'settingsUpdate')) {
    index = emptyIndex(uid, null, now)
    indexes.set(uid, index)
  }
  if (!index) throw new Failure('index_not_found', `Index \`${uid}\` not found.`)
  index.updatedAt = now
  switch (work.type) {
    case 'documentAdditionOrUpdate':
      return addDocuments(index, work)
    case 'documentDeletion':
      return deleteDocuments(index, work)
    case 'documentEdition':
      return editDocuments(index, work)
    case 'settingsUpdate':
      index.filterable = work.filterable
      return { filterableAttributes: [...work.filterable] }
    case 'indexDeletion':
      indexes.delete(uid)
      return { deletedDocuments: index.documents.size }
  }
}

function emptyIndex(uid: string, primaryKey: string | null, now: string): Index {
  return { uid, createdAt: now, updatedAt: now, primaryKey, documents: new Map(), filterable: [] }
}

function addDocuments(index: Index, work: Extract<Work, { type: 'documentAdditionOrUpdate' }>): Details {
  const { documents, isPartial, skipCreation } = work
  const receivedDocuments = documents.length
  if (documents.length === 0) return { receivedDocuments, indexedDocuments: 0 }
  const key = primaryKeyOf(index, work)
  const changed = new Map<string, Row>()
  const named = new Set<string>()
  for (const document of documents) {
    const id = idOf(document, key)
    const held = changed.get(id) ?? index.documents.get(id)
    named.add(id)
    if (skipCreation && !held) continue
    const row = Object.fromEntries([...document].map(([name, { value }]) => [name, value]))
    changed.set(id, isPartial ? { ...held, ...row } : row)
  }
  for (const [id, row] of changed) index.documents.set(id, row)
  index.primaryKey = key
  return { receivedDocuments, indexedDocuments: named.size }
}

function primaryKeyOf(index: Index, { primaryKey, documents }: Extract<Work, { type: 'documentAdditionOrUpdate' }>): string {
  if (index.primaryKey !== null) {
    if (primaryKey !== undefined && primaryKey !== index.primaryKey)
      throw new Failure('index_primary_key_already_exists', `Index already has a primary key: \`${index.primaryKey}\`.`)
    return index.primaryKey
  }
  if (primaryKey !== undefined) return primaryKey
  const candidates = [...(documents[0] as Document).keys()].filter((name) => name.toLowerCase().endsWith('id'))
  if (candidates.length === 1) return candidates[0] as string
  if (candidates.length > 1)
    throw new Failure(
      'index_primary_key_multiple_candidates_found',
      `The primary key inference failed as the engine found ${candidates.length} fields ending with \`id\` in their names: '${candidates[0]}' and '${candidates[1]}'. Please specify the primary key manually using the \`primaryKey\` query parameter.`,
    )
  throw new Failure(
    'index_primary_key_no_candidate_found',
    'The primary key inference failed as the engine did not find any field ending with `id` in its name. Please specify the primary key manually using the `primaryKey` query parameter.',
  )
}

function idOf(document: Document, key: string): string {
  const field = document.get(key) ?? nested(document, key)
  if (!field) {
    const text = `{${[...document].map(([name, { raw }]) => `${JSON.stringify(name)}:${raw}`).join(',')}}`
    throw new Failure('missing_document_id', `Document doesn't have a \`${key}\` attribute: \`${text}\`.`)
  }
  const id = identifier(field)
  if (id !== undefined) return id
  throw new Failure(
    'invalid_document_id',
    `Document identifier \`${field.raw}\` is invalid. A document identifier can be of type integer or string, only composed of alphanumeric characters (a-z A-Z 0-9), hyphens (-) and underscores (_), and can not be more than 511 bytes.`,
  )
}

/** `a.b` names the field b of the object a. */
function nested(document: Document, key: string): Field | undefined {
  const [first = '', ...rest] = key.split('.')
  const value = rest.reduce<Value | undefined>((held, name) => (held as Row | null | undefined)?.[name], document.get(first)?.value)
  return rest.length > 0 && value !== undefined ? { raw: printJson(value), value, poison: undefined } : undefined
}

function deleteDocuments(index: Index, work: Extract<Work, { type: 'documentDeletion' }>): Details {
  const { ids, filter } = work
  const wanted = new Set(ids.filter((id) => ['string', 'number', 'bigint'].includes(typeof id)).map(String))
  if (filter !== undefined) {
    const conditions = compileFilter(index.uid, filter)
    for (const [id, row] of index.documents) if (matches(index.uid, index.filterable, conditions, row)) wanted.add(id)
  }
  let deletedDocuments = 0
  for (const id of wanted) if (index.documents.delete(id)) deletedDocuments++
  return { providedIds: ids.length, deletedDocuments, originalFilter: filter === undefined ? null : JSON.stringify(filter) }
}

function editDocuments(index: Index, work: Extract<Work, { type: 'documentEdition' }>): Details {
  const run = compileFunction(work.function)
  const conditions = work.filter === null ? [] : compileFilter(index.uid, work.filter)
  const changed = new Map<string, Row | undefined>()
  // an index without documents finds the fault of a filter too
  matches(index.uid, index.filterable, conditions, {})
  for (const [id, row] of index.documents) {
    if (!matches(index.uid, index.filterable, conditions, row)) continue
    const scope: { doc: Value | undefined; readonly context: Row | undefined } = {
      doc: parseJson(printJson(row)),
      context: work.context,
    }
    try {
      run(scope)
    } catch (error) {
      throw error instanceof Failure ? inIndex(index, error) : error
    }
    const { doc } = scope
    if (doc !== undefined && (doc === null || typeof doc !== 'object' || Array.isArray(doc)))
      throw inIndex(index, new Failure('edit_documents_by_function_error', 'Document editions must keep documents as objects'))
    if (doc !== undefined && printJson((doc as Row)[index.primaryKey ?? ''] ?? null) !== printJson(row[index.primaryKey ?? ''] ?? null))
      throw inIndex(index, new Failure('edit_documents_by_function_error', "Document editions cannot modify a document's primary key"))
    changed.set(id, doc as Row | undefined)
  }
  for (const [id, row] of changed) {
    if (row) index.documents.set(id, row)
    else index.documents.delete(id)
  }
  return editDetails(work, changed.size, changed.size)
}

const inIndex = ({ uid }: Index, { code, message }: Failure) => new Failure(code, `Index \`${uid}\`: ${message}`)

/** Why a batch that holds this work fails as a whole. */
export function poisonOf(work: Work, isPoison: (document: Document) => boolean): string | undefined {
  if (work.type !== 'documentAdditionOrUpdate') return undefined
  for (const document of work.documents) {
    for (const { poison } of document.values()) if (poison !== undefined) return poison
    if (isPoison(document)) return 'a document that the server chokes on'
  }
  return undefined
}
