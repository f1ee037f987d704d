/**
 * What an account has, as a configuration file says it: nothing that has its default, and no account, users or tokens. What
 * is exported and applied again changes nothing. Nothing here does I/O.
 */
import { stringify } from 'yaml'
import { userName } from '../../engine/state/change-retentions.ts'
import { ownList, RESOURCE_TYPES, type ResourceLists, type ResourceType } from '../../engine/state/resource-store.ts'
import { RESOURCE_FORMS } from '../resources/resource-forms.ts'
import type { ExportDefaults, Form } from '../resources/form.ts'
import { obfuscated } from '../resources/secret-form.ts'
import { withoutVariables } from './config-reader.ts'

/**
 * A resource as a configuration file has it. @property whole its entry there @property shown that with only enough of its secrets
 * to know them
 */
export type ExportedResource = Readonly<{ type: ResourceType; id: string; name: string; whole: Form; shown: Form }>

/** By the resource as it is stored, which is the same object until it is written: most are exported again and again as they were. */
const EXPORTED = new WeakMap<object, Readonly<{ partitions: number; one: ExportedResource }>>()

/** Gives the resources of an account, in the order of a file. */
export function exportedResources(lists: ResourceLists, ofAccount: string, defaults: ExportDefaults): readonly ExportedResource[] {
  const exported = <T extends ResourceType>(type: T): ExportedResource[] => {
    const { entry } = RESOURCE_FORMS[type]
    return ownList(lists, type, ofAccount).map((stored) => {
      const before = EXPORTED.get(stored)
      if (before?.partitions === defaults.partitions) return before.one
      const whole = entry(stored, (text) => text, defaults)
      const one = { type, id: stored.id, name: userName(stored.name), whole, shown: entry(stored, obfuscated, defaults) }
      EXPORTED.set(stored, { ...defaults, one })
      return one
    })
  }
  return RESOURCE_TYPES.flatMap((type) => exported(type))
}

/** Writes resources as a configuration file, in YAML. */
export function exportYaml(resources: readonly ExportedResource[], { showSensitive }: Readonly<{ showSensitive: boolean }>): string {
  const sections = Object.entries(RESOURCE_FORMS).map(([type, { section }]) => [
    section,
    resources.filter((one) => one.type === type).map(({ whole, shown }) => escaped(showSensitive ? whole : shown)),
  ])
  return yamlOf(Object.fromEntries(sections.filter(([, list]) => list?.length !== 0)))
}

/** Prints a value as YAML; texts of many lines stay texts of many lines. */
export const yamlOf = (value: unknown): string => stringify(value, { lineWidth: 0, blockQuote: 'literal', aliasDuplicateObjects: false })

/** Writes the texts of a value so that each stands for itself where variables are replaced; in the code of functions none are. */
function escaped(value: unknown): unknown {
  if (typeof value === 'string') return withoutVariables(value)
  if (Array.isArray(value)) return value.map(escaped)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, key === 'code' ? part : escaped(part)]))
}
