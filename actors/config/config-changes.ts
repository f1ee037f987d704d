/** What differs between two states of an account, told in the entries of a configuration file. Nothing here does I/O. */
import { isDeepStrictEqual } from 'node:util'
import type { ResourceType } from '../../engine/state/resource-store.ts'
import type { Form } from '../resources/form.ts'
import type { ExportedResource } from './config-export.ts'
import { isObject } from '../../engine/json.ts'

/**
 * @property resource_type `api_token`, `user`: token and password are never told
 * @property action delete: it isn't in the file, and stays all the same, but for an API token, which goes
 * @property old secrets are shown in part; null: there was none @property new the same
 */
export type ResourceChange = Readonly<{
  resource_type: ResourceType | 'api_token' | 'user'
  action: 'create' | 'update' | 'delete'
  name: string
  old: Form | null
  new: Form | null
}>

const keyOf = ({ type, name }: Pick<ExportedResource, 'type' | 'name'>): string => `${type} ${name}`

/**
 * Compares the resources of an account before and after a file is applied. @param isNamed whether the file has the resource.
 * @returns in the order of a file: what is created or changed, then what the file lacks
 */
export function changesOf(
  before: readonly ExportedResource[],
  after: readonly ExportedResource[],
  isNamed: (resource: ExportedResource) => boolean,
): readonly ResourceChange[] {
  const known = new Map(before.map((one) => [keyOf(one), one]))
  const changed = after.flatMap((one): ResourceChange[] => {
    const { type: resource_type, name, whole, shown } = one
    const was = known.get(keyOf(one))
    if (!was) return [{ resource_type, action: 'create', name, old: null, new: shown }]
    if (was === one || isDeepStrictEqual(was.whole, whole)) return []
    const secrets = ([key, value]: [string, unknown]) =>
      [key, withChangedSecrets({ old: was.whole[key], new: whole[key] }, { old: was.shown[key], new: value })] as const
    return [{ resource_type, action: 'update', name, old: was.shown, new: Object.fromEntries(Object.entries(shown).map(secrets)) }]
  })
  const missing = before.filter((one) => !isNamed(one))
  return [
    ...changed,
    ...missing.map(({ type, name, shown }): ResourceChange => ({ resource_type: type, action: 'delete', name, old: shown, new: null })),
  ]
}

type Pair = Readonly<{ old: unknown; new: unknown }>

/** Marks a secret that was changed and looks as it did before when it is shown in part. */
function withChangedSecrets(whole: Pair, shown: Pair): unknown {
  if (typeof shown.new === 'string') return shown.new === shown.old && whole.new !== whole.old ? `${shown.new} (another one)` : shown.new
  const below = (pair: Pair, key: string | number) => ({ old: memberOf(pair.old, key), new: memberOf(pair.new, key) })
  if (Array.isArray(shown.new)) return shown.new.map((_, i) => withChangedSecrets(below(whole, i), below(shown, i)))
  if (!isObject(shown.new)) return shown.new
  return Object.fromEntries(Object.keys(shown.new).map((key) => [key, withChangedSecrets(below(whole, key), below(shown, key))]))
}

const memberOf = (holder: unknown, key: string | number): unknown =>
  Array.isArray(holder) ? holder[Number(key)] : isObject(holder) ? holder[key] : undefined
