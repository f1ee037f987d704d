/** The entry of the audit log for a change of a resource: the fields that differ, with secrets hidden. Nothing here does I/O. */
import { isDeepStrictEqual } from 'node:util'
import type { Change, FieldChanges } from '../../engine/state/audit.ts'
import { userName } from '../../engine/state/change-retentions.ts'
import { isObject } from '../../engine/json.ts'
import type { ResourceType, StoredOf } from '../../engine/state/resource-store.ts'
import type { ExportDefaults, Form } from './form.ts'
import { RESOURCE_FORMS } from './resource-forms.ts'

const HIDDEN = '********'
/** Longer texts, such as the code of functions, are cut. */
const MAX_TEXT = 2_000

/** A resource at one time: as it is, and with its secrets hidden. */
type Known = Readonly<{ whole: Form; shown: Form }>

/** Gives the change of a resource; undefined: nothing differs. @param before absent: it is new @param after absent: it is deleted */
export function changeOf<T extends ResourceType>(
  type: T,
  { before, after }: Readonly<{ before?: StoredOf<T> | undefined; after?: StoredOf<T> | undefined }>,
  defaults: ExportDefaults,
): Change | undefined {
  const one = after ?? before
  if (!one) return undefined
  const { entry } = RESOURCE_FORMS[type]
  const known = (stored: StoredOf<T> | undefined): Known | undefined =>
    stored && { whole: entry(stored, (text) => text, defaults), shown: entry(stored, () => HIDDEN, defaults) }
  const changes = fieldChanges(known(before), known(after))
  const action = before ? (after ? 'update' : 'delete') : 'create'
  if (action === 'update' && Object.keys(changes).length === 0) return undefined
  return { accountId: one.accountId, action, kind: type, name: userName(one.name), changes }
}

/** Gives the fields that differ. @param before undefined: there was nothing @param after undefined: there is nothing any more */
export function fieldChanges(before: Known | undefined, after: Known | undefined): FieldChanges {
  const names = new Set([...Object.keys(before?.whole ?? {}), ...Object.keys(after?.whole ?? {})])
  return Object.fromEntries(
    [...names].flatMap((name) => {
      const whole = { old: before?.whole[name], new: after?.whole[name] }
      if (isDeepStrictEqual(whole.old, whole.new)) return []
      const shown = { old: before?.shown[name], new: after?.shown[name] }
      return [[name, { old: cut(shown.old) ?? null, new: cut(before ? marked(whole, shown) : shown.new) ?? null }]]
    }),
  )
}

/** Gives a form in which nothing is secret as what is known of it. */
export const plainly = (form: Form): Known => ({ whole: form, shown: form })

type Pair = Readonly<{ old: unknown; new: unknown }>

/** Marks secrets that differ, of which nothing else is told. */
function marked(whole: Pair, shown: Pair): unknown {
  if (typeof shown.new === 'string') return shown.new === shown.old && whole.new !== whole.old ? `${shown.new} (another one)` : shown.new
  const member = (of: unknown, key: string) => (isObject(of) || Array.isArray(of) ? Reflect.get(of, key) : undefined)
  const below = (key: string) =>
    marked({ old: member(whole.old, key), new: member(whole.new, key) }, { old: member(shown.old, key), new: member(shown.new, key) })
  if (Array.isArray(shown.new)) return shown.new.map((_, i) => below(String(i)))
  return isObject(shown.new) ? Object.fromEntries(Object.keys(shown.new).map((key) => [key, below(key)])) : shown.new
}

function cut(value: unknown): unknown {
  if (typeof value === 'string') return value.length > MAX_TEXT ? `${value.slice(0, MAX_TEXT)}… (${value.length} characters)` : value
  if (Array.isArray(value)) return value.map(cut)
  return isObject(value) ? Object.fromEntries(Object.entries(value).map(([key, part]) => [key, cut(part)])) : value
}
