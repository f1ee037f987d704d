/**
 * Edits of the resources that users set up. Each is one transaction, in which it is checked against what is stored at that moment,
 * and has taken effect here when it settles. A configuration file makes the same edits, all of its own in one transaction.
 */
import { EngineError, fieldRefused } from '../../engine/errors.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { record } from '../../engine/state/audit.ts'
import { isRetention, splitSinks, targetName, userName } from '../../engine/state/change-retentions.ts'
import { endpointName } from '../../engine/state/destinations.ts'
import { unfitFunction, usersOf, type StoredFunction } from '../../engine/state/functions.ts'
import type { ResourceCache } from '../../engine/state/resource-cache.ts'
import { accountLock, listOf, NOUN_OF, ownList } from '../../engine/state/resource-store.ts'
import type {
  InputOf,
  ResourceLists,
  ResourceStore,
  Resources,
  ResourceType,
  SinkInput,
  StoredOf,
} from '../../engine/state/resource-store.ts'
import type { Account, Sink } from '../../engine/state/resources.ts'
import { NameChecks, namesToCheck, refuseMissing } from '../../engine/state/source-names.ts'
import type { Store } from '../../engine/state/store.ts'
import { keyInUse, type KeyInUse } from '../../engine/state/vault-rotation.ts'
import { changeOf } from './audited-changes.ts'
import { beginBackfills } from './backfill-edits.ts'
import { sinkNames } from './sink-names.ts'
import { askedSourceOf, firstBackfills } from './wanted-backfills.ts'

/** A transaction that edits the resources of an account. */
export type Edit = Readonly<{
  query: Query
  resources: ResourceStore
  account: Account
  /** what is stored at that moment */
  stored: ResourceLists
  /** by which secrets are encrypted */
  key: KeyInUse
}>

/** Describes what an edit of a type of resource has to look at. All of it throws VALIDATION_FAILED where the edit is refused. */
type EditRules<T extends ResourceType> = Readonly<{
  /** Gives the whole of a resource with some fields changed. */
  changed: (before: StoredOf<T>, changes: Partial<InputOf<T>>) => InputOf<T>
  /** Looks at what it refers to. @throws EngineError NOT_FOUND */
  refuse?: (edit: Edit, input: InputOf<T>, before: StoredOf<T> | undefined) => void
  /** Stores what a new one begins with. */
  begun?: (edit: Edit, stored: StoredOf<T>, input: InputOf<T>) => Promise<StoredOf<T>>
  /** Looks at what refers to it. @param after absent: it is to be deleted */
  refuseForUsers?: (edit: Edit, before: StoredOf<T>, after?: InputOf<T>) => void
}>

const RULES: { readonly [T in ResourceType]: EditRules<T> } = {
  database: {
    changed: ({ slot, ...before }, changes) => ({
      ...before,
      ...{ slotName: slot.name, publicationName: slot.publication, slotStatus: slot.status },
      ...changes,
    }),
    refuse: refuseSharedSlot,
    refuseForUsers: ({ stored }, { id, accountId, name }, after) => {
      const users = stored.sinks.filter(
        (sink) => sink.databaseId === id || (sink.accountId === accountId && targetName(sink.destination) === name),
      )
      const { sinks, retentions } = splitSinks(users)
      const told = [sinks, retentions].flatMap((those, i) => (those.length > 0 ? [`the ${i === 0 ? 'sink' : 'change retention'}${those.length > 1 ? 's' : ''} ${quoted(those)}`] : [])) // prettier-ignore
      if (!after && users.length > 0)
        throw new EngineError('RESOURCE_IN_USE', `the database "${name}" is in use by ${told.join(' and ').slice(0, 500)}`)
    },
  },
  http_endpoint: {
    changed: (before, changes) => ({ ...before, ...changes }),
    refuseForUsers: ({ stored, account }, { name }, after) => {
      const users = stored.sinks.filter((sink) => sink.accountId === account.id && endpointName(sink.destination) === name)
      if (after || users.length === 0) return
      throw new EngineError(
        'RESOURCE_IN_USE',
        `the HTTP endpoint "${name}" is in use by the sink${users.length > 1 ? 's' : ''} ${quoted(users).slice(0, 500)}`,
      )
    },
  },
  function: {
    changed: (before, changes) => ({ ...before, ...changes }),
    refuseForUsers: refuseForSinks,
  },
  change_retention: {
    changed: (before, changes) => ({ ...before, ...changes }),
    refuse: (edit, input, before) => {
      refuseSink(edit, input, before)
      const target = targetName(input.destination)
      if (!ownOf(edit, 'database').some(({ name }) => name === target))
        throw fieldRefused('destination_database', `names the database "${target}", which does not exist`)
    },
  },
  sink: { changed: (before, changes) => ({ ...before, ...changes }), refuse: refuseSink, begun: beginSinkBackfills },
}

/** Gives the resources of a type that the account of an edit has. */
const ownOf = <T extends ResourceType>({ stored, account }: Edit, type: T): readonly StoredOf<T>[] => ownList(stored, type, account.id)

/**
 * Stores a resource under its name. @param before as it is stored, perhaps under another name; absent: it is new
 * @throws EngineError VALIDATION_FAILED, NOT_FOUND
 */
export async function saveResource<T extends ResourceType>(
  edit: Edit,
  type: T,
  { input, before }: Readonly<{ input: InputOf<T>; before: StoredOf<T> | undefined }>,
): Promise<StoredOf<T>> {
  const rules: EditRules<T> = RULES[type]
  const { query, resources, account, key } = edit
  if (ownOf(edit, type).some(({ id, name }) => name === input.name && id !== before?.id))
    throw new EngineError('VALIDATION_FAILED', `another ${NOUN_OF[type]} is named "${userName(input.name)}"`, { name: 'is taken' })
  rules.refuse?.(edit, input, before)
  if (before && input.name !== before.name) await resources.rename(query, type, before, input.name)
  const databaseId = 'database' in input ? ownOf(edit, 'database').find(({ name }) => name === input.database)?.id : undefined
  const beside = async (after: StoredOf<T>) => {
    const change = changeOf(type, { before, after }, resources.defaults)
    if (change) await record(query, [change])
  }
  const stored = await resources.save(query, type, { account, input, before, databaseId, key, beside })
  return before || !rules.begun ? stored : rules.begun(edit, stored, input)
}

type EditsOptions = Readonly<{
  store: Store
  resources: ResourceStore
  cache: ResourceCache
  /** Makes what is stored take effect. @param stored what that is, where it is known without being read */
  takeIn: (stored?: Resources) => Promise<void>
}>

/** Creates, changes and deletes resources for the API. */
export class ResourceEdits {
  readonly #options: EditsOptions
  readonly #names = new NameChecks()

  constructor(options: EditsOptions) {
    this.#options = options
  }

  /** Stores a new resource. @throws EngineError VALIDATION_FAILED, NOT_FOUND */
  async create<T extends ResourceType>(type: T, account: Account, input: InputOf<T>): Promise<StoredOf<T>> {
    await this.#refuseMissingNames(account, input)
    const whole = await this.#withBackfills(account, input)
    const { loaded, created } = await this.#edit(account, async (edit, loaded) => {
      return { loaded, created: await saveResource(edit, type, { input: whole, before: undefined }) }
    })
    const isAlone = !('hasBackfills' in created) || !created.hasBackfills
    await this.#options.takeIn(isAlone ? this.#options.resources.afterSaved(loaded, type, created.id) : undefined)
    return created
  }

  /**
   * Stores some fields of a resource anew; those that go by its name go by the new one. @throws EngineError VALIDATION_FAILED,
   * NOT_FOUND
   */
  async update<T extends ResourceType>(type: T, id: string, changes: Partial<InputOf<T>>): Promise<StoredOf<T>> {
    const rules: EditRules<T> = RULES[type]
    const known = this.#now(type, id)
    const account = { id: known.accountId, name: '' }
    await this.#refuseMissingNames(account, rules.changed(known, changes), known)
    const { loaded, saved, isRenamed } = await this.#edit(account, async (edit, loaded) => {
      const before = ownOf(edit, type).find((one) => one.id === id) ?? gone(type)
      const input = rules.changed(before, changes)
      rules.refuseForUsers?.(edit, before, input)
      return { loaded, saved: await saveResource(edit, type, { input, before }), isRenamed: input.name !== before.name }
    })
    await this.#options.takeIn(isRenamed ? undefined : this.#options.resources.afterSaved(loaded, type, id))
    return saved
  }

  /** Deletes a resource with everything that is kept of it. @throws EngineError VALIDATION_FAILED, RESOURCE_IN_USE: another one needs it */
  async delete(type: ResourceType, id: string): Promise<void> {
    const { accountId } = this.#now(type, id)
    const loaded = await this.#edit({ id: accountId, name: '' }, async (edit, loaded) => {
      await deleteResource(edit, type, id)
      return loaded
    })
    await this.#options.takeIn(this.#options.resources.afterDeleted(loaded, type, id))
  }

  /** One edit of an account at a time, of all processes: each begins with what the one before it left. */
  #edit<T>(account: Account, work: (edit: Edit, loaded: Resources) => Promise<T>): Promise<T> {
    const { store, resources } = this.#options
    return store.transaction(async (query) => {
      const [stored, key] = await Promise.all([resources.load(query), keyInUse(query)])
      return work({ query, resources, account, stored, key }, stored)
    }, accountLock(account.id))
  }

  /** Asked of the source before anything is locked: it may take its time to answer. @throws EngineError VALIDATION_FAILED */
  async #refuseMissingNames({ id }: Account, input: InputOf<ResourceType>, known?: StoredOf<ResourceType>): Promise<void> {
    if (!('source' in input)) return
    const database = listOf(this.#options.cache, 'database').find((one) => one.accountId === id && one.name === input.database)
    const names = sinkNames(input)
    if (!database) return // it will be refused
    const asked = known && 'source' in known ? namesToCheck(names, known, input.status) : names
    refuseMissing(await this.#names.missing(database.connection, asked))
  }

  /** Looks up which backfills a sink begins with, before anything is locked. @throws EngineError VALIDATION_FAILED, SOURCE_UNREACHABLE … */
  async #withBackfills<I extends InputOf<ResourceType>>({ id }: Account, input: I): Promise<I> {
    if (!('source' in input) || input.initial_backfill === undefined) return input
    const database = listOf(this.#options.cache, 'database').find((one) => one.accountId === id && one.name === input.database)
    if (!database) return input // it will be refused
    return { ...input, initial_backfill: await firstBackfills(askedSourceOf(database), input.source, input.initial_backfill) }
  }

  #now<T extends ResourceType>(type: T, id: string): StoredOf<T> {
    return listOf(this.#options.cache, type).find((one) => one.id === id) ?? gone(type)
  }
}

/** Each database needs a slot of its own: what one of them confirmed the other one would never get. */
function refuseSharedSlot(edit: Edit, { connection, slotName }: InputOf<'database'>, before: StoredOf<'database'> | undefined): void {
  const { hostname, port } = connection
  const other = ownOf(edit, 'database').find(
    (one) => one.id !== before?.id && one.slot.name === slotName && one.connection.hostname === hostname && one.connection.port === port,
  )
  if (other) throw fieldRefused('replication_slots', `name the slot "${slotName}", which is that of the database "${other.name}"`)
}

function gone(type: ResourceType): never {
  throw new EngineError('NOT_FOUND', `the ${NOUN_OF[type]} does not exist any more`)
}

async function deleteResource<T extends ResourceType>(edit: Edit, type: T, id: string): Promise<void> {
  const rules: EditRules<T> = RULES[type]
  const before = ownOf(edit, type).find((one) => one.id === id)
  if (before) rules.refuseForUsers?.(edit, before)
  const change = changeOf(type, { before }, edit.resources.defaults)
  await Promise.all([edit.resources.delete(edit.query, type, id), change && record(edit.query, [change])])
}

function refuseSink(edit: Edit, input: SinkInput, before: Sink | undefined): void {
  const { destination } = input
  const database = ownOf(edit, 'database').find(({ name }) => name === input.database)
  if (!database) throw new EngineError('NOT_FOUND', `there is no database "${input.database}"`)
  if (before && before.databaseId !== database.id)
    throw new EngineError(
      'VALIDATION_FAILED',
      `the database of a ${NOUN_OF[isRetention(input) ? 'change_retention' : 'sink']} cannot be changed`,
    )
  if (before && before.destination.type !== destination.type)
    throw new EngineError('VALIDATION_FAILED', `the type of a destination cannot be changed (it is "${before.destination.type}")`)
  const endpoint = endpointName(destination)
  if (endpoint !== undefined && !ownOf(edit, 'http_endpoint').some(({ name }) => name === endpoint))
    throw new EngineError('VALIDATION_FAILED', `there is no HTTP endpoint "${endpoint}"`, {
      'destination.http_endpoint': `names "${endpoint}", which does not exist`,
    })
  const unfit = unfitFunction(input, ownOf(edit, 'function'))
  if (unfit) throw fieldRefused(...unfit)
}

async function beginSinkBackfills({ query }: Edit, sink: Sink, { initial_backfill: first }: SinkInput): Promise<Sink> {
  return first === undefined || first === 'all' || first.length === 0 ? sink : beginBackfills(query, sink, first)
}

function refuseForSinks(edit: Edit, before: StoredFunction, after?: InputOf<'function'>): void {
  const users = usersOf(before, edit.stored.sinks)
  if (!after && users.length > 0) {
    const reason = `is attached to the sink${users.length > 1 ? 's' : ''} ${quoted(users)}: set "none" there to detach it`
    throw new EngineError('VALIDATION_FAILED', `the function "${before.name}" ${reason}`, { name: reason })
  }
  if (!after) return
  const functions = ownOf(edit, 'function').map((fn) => (fn.id === before.id ? { ...after, name: before.name } : fn))
  for (const sink of users) {
    const [field, why] = unfitFunction(sink, functions) ?? []
    if (field === undefined) continue
    const reason = `of the sink "${sink.name}" ${why}`
    throw fieldRefused(field, reason)
  }
}

const quoted = (those: readonly Readonly<{ name: string }>[]): string => those.map(({ name }) => `"${userName(name)}"`).join(', ')
